"""Pages for sequences, and as much of their prefix as the cache has: the scheduler's interface to the KV cache.

```
name      on the calling thread: hashes the prompt, and changes nothing of the manager
admit ──launch──> confirm ──grow, grow ...──> release        the blocks it built stay, for later sequences
           └────> withdraw ─────────────────> release        the step failed: the blocks it was building are removed
```

Which pages a sequence with an image shares, where the image prefix ends inside a page:

```
position   0               prefix_length          prompt_length
           ├─ full pages ─┼─ tail page ─┼─ full pages ─┼─ last page, generated ...
miss       shared: image    own (saved)   shared: text    own
hit        shared: image    own (copied)  own             own        another prompt
hit        shared: image    shared: text  shared: text    own        the same prompt
```
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from photonlite.batch import PageCopy
from photonlite.cache.pages import PagePool
from photonlite.cache.prefix import PrefixBlock, PrefixCache, image_key, page_key, text_root
from photonlite.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Admission:
    """What a sequence that has got its pages must compute."""

    start: int  # first position to compute: 0, the end of the image prefix, or a page boundary behind it
    copies: tuple[PageCopy, ...] = ()  # before the forward pass
    saves: tuple[PageCopy, ...] = ()  # after it


@dataclass(eq=False, slots=True)
class _Lease:
    """What an admitted sequence uses of the prefix cache."""

    chain: list[PrefixBlock]  # from the root; the sequence's page table has their pages
    hold: int | None  # the source of its copy, until confirmed or withdrawn
    building: list[PrefixBlock] = field(default_factory=list)  # the chain's end that it computes itself, until then


class CacheManager:
    """Gives sequences pages, shares prefixes among them, and takes pages back.

    Args:
        pages: All pages there are.
        prefix_length: Positions of BOS and image tokens, for a sequence with an image.
        prefix_caching: Whether prefixes are kept for later sequences.
    """

    def __init__(self, pages: PagePool, prefix_length: int, *, prefix_caching: bool = True) -> None:
        self.pages = pages
        self.prefix = PrefixCache(pages)
        self.prefix_length = prefix_length
        self._caching = prefix_caching
        self._leases: dict[int, _Lease] = {}

    def pages_needed(self, positions: int, with_image: bool) -> int:
        """Return how many pages a request of so many positions needs when it runs alone.

        One page more than its page table has where the cache keeps a copy of the page in which the image ends: that
        one cannot be evicted while the sequence uses the image's other pages.
        """
        keeps_tail = with_image and self._caching and self.prefix_length % self.pages.page_size != 0
        return self.pages.pages_for(positions) + keeps_tail

    def fits(self, positions: int, with_image: bool) -> bool:
        """Whether a request can ever fill so many positions; if so it can as soon as it runs alone."""
        return self.pages_needed(positions, with_image) <= self.pages.usable

    def name(self, sequence: Sequence) -> None:
        """Set the keys of the blocks that a sequence's prompt consists of: the image, then full pages. On any thread.

        Empty without prefix caching, and for text shorter than a page.
        """
        sequence.prefix_keys = tuple(self._keys(sequence)) if self._caching else ()

    def image_state(self, key: str) -> Literal["missing", "building", "ready"]:
        """Return the state of an image's block; "building" until the step that computes it has committed."""
        block = self.prefix.lookup(image_key(key))
        return "missing" if block is None else block.state

    def admit(self, sequence: Sequence) -> Admission | None:
        """Give a sequence pages for its known positions and the next one, as far as it will ever fill that.

        The longest chain of ready blocks that leaves a position to compute is reused (a sequence that produces nothing
        may be covered altogether; it then shares the image's tail page too, because it never writes). What is left of
        the prompt's chain is registered as being built by this sequence, up to the first block that is there already.
        An image for whose tail there is no page is not registered.

        Returns:
            What to compute, or None, with nothing changed, if pages are short.
        """
        keys = self._check_new(sequence)
        chain = self.prefix.ready_chain(keys, sequence.num_tokens - sequence.samples) if keys else []
        start = chain[-1].end if chain else 0
        shared, source = _reused(chain, copies=start < sequence.num_tokens)
        # The last token of all is never fed back, so the position behind it needs no room.
        room = max(sequence.num_tokens, min(sequence.num_tokens + 1, sequence.longest))
        fresh = self.pages.pages_for(room) - len(shared)
        spare = self.pages.free + self.prefix.idle_pages_without(chain) - fresh
        if spare < 0:
            return None

        self.prefix.touch(chain)
        self.pages.retain(shared)
        saves_tail = spare > 0 and self._builds_tail(sequence, keys)
        taken = self._allocate(fresh + saves_tail)
        own_tail = taken.pop() if saves_tail else None
        sequence.pages = shared + taken
        if keys:
            self.prefix.hits += bool(chain)
            self.prefix.misses += not chain
            lease = self._leases[sequence.number] = _Lease(chain, hold=source)
            self._register(sequence, keys, lease, own_tail)
        last = self.prefix_length // self.pages.page_size
        if source is not None:
            self.pages.retain((source,))
            return Admission(start, copies=(PageCopy(source, sequence.pages[last]),))
        if own_tail is not None:
            return Admission(start, saves=(PageCopy(sequence.pages[last], own_tail),))
        return Admission(start)

    def confirm(self, sequence: Sequence) -> None:
        """Make the blocks that a sequence has built ready for others: its step has committed."""
        lease = self._leases.get(sequence.number)
        if lease is None:
            return
        for block in lease.building:
            block.state = "ready"
        lease.building.clear()
        self._end_hold(lease)

    def withdraw(self, sequence: Sequence) -> None:
        """Remove the blocks that a sequence was building: its step failed. Blocks of others stay."""
        lease = self._leases.get(sequence.number)
        if lease is None:
            return
        while lease.building:
            # From the end; a block that is not ready has no children of others: so there are no descendants.
            self.prefix.remove(lease.building.pop())
            lease.chain.pop()
        self._end_hold(lease)

    def grow(self, sequence: Sequence, positions: int) -> bool:
        """Make room for that many positions; False, with nothing changed, if pages are short."""
        missing = self.pages.pages_for(positions) - len(sequence.pages)
        if missing <= 0:
            return True
        if missing > self.pages.free + self.prefix.idle_pages:
            return False
        sequence.pages.extend(self._allocate(missing))
        return True

    def release(self, sequence: Sequence) -> None:
        """Release a sequence's pages; the blocks it used stay as long as their pages are not needed."""
        lease = self._leases.get(sequence.number)
        if lease is not None:
            if lease.building or lease.hold is not None:
                raise AssertionError(
                    f"sequence {sequence.number} is released with {len(lease.building)} blocks being built "
                    f"and the hold {lease.hold}"
                )
            del self._leases[sequence.number]
            self.prefix.leave(lease.chain)
        self.pages.release(sequence.pages)
        sequence.pages = []

    def forget_all(self) -> None:
        """Evict every unused block."""
        self.prefix.evict(self.prefix.idle_pages)

    def owners(self) -> Counter[int]:
        """Count the references of blocks and holds by page: with the sequences' pages, these are all there are."""
        owners = self.prefix.owners()
        owners.update(lease.hold for lease in self._leases.values() if lease.hold is not None)
        return owners

    def _check_new(self, sequence: Sequence) -> tuple[bytes, ...]:
        if sequence.pages or sequence.number in self._leases:
            raise AssertionError(f"sequence {sequence.number} is admitted with {len(sequence.pages)} pages in hand")
        if sequence.image is not None and sequence.prefix_len != self.prefix_length:
            raise AssertionError(
                f"sequence {sequence.number} has a prefix of {sequence.prefix_len} positions, not {self.prefix_length}"
            )
        if sequence.prefix_keys is None:
            raise AssertionError(f"sequence {sequence.number} is admitted before its prefixes were named")
        return sequence.prefix_keys

    def _keys(self, sequence: Sequence) -> Iterator[bytes]:
        size, before, prompt = self.pages.page_size, sequence.prefix_len, sequence.prompt
        if sequence.image_key is None:
            first, parent = 0, text_root(sequence.cache_salt)
        else:
            first, parent = before // size, image_key(sequence.image_key)
            yield parent
        for page in range(first, sequence.prompt_length // size):
            parent = page_key(parent, prompt[max(0, page * size - before) : (page + 1) * size - before])
            yield parent

    def _builds_tail(self, sequence: Sequence, keys: tuple[bytes, ...]) -> bool:
        missing = self._caching and sequence.image is not None and self.prefix.lookup(keys[0]) is None
        return missing and self.prefix_length % self.pages.page_size != 0

    def _allocate(self, count: int) -> list[int]:
        """Allocate pages that the caller knows to be there, evicting for them."""
        self.prefix.evict(count - self.pages.free)
        pages = self.pages.allocate(count)
        if pages is None:
            raise AssertionError(f"{count} pages are not free after eviction, only {self.pages.free}")
        return pages

    def _register(self, sequence: Sequence, keys: tuple[bytes, ...], lease: _Lease, own_tail: int | None) -> None:
        """Enter the blocks that a sequence computes; `own_tail` is the image block's own page."""
        size, images = self.pages.page_size, int(sequence.image is not None)
        full, inside = divmod(self.prefix_length, size) if images else (0, 0)
        for place in range(len(lease.chain), len(keys)):
            is_image = place < images
            if self.prefix.lookup(keys[place]) is not None or (is_image and inside and own_tail is None):
                return
            page = full + place - images
            block = PrefixBlock(
                keys[place],
                parent=lease.chain[-1] if lease.chain else None,
                pages=tuple(sequence.pages[:full] if is_image else sequence.pages[page : page + 1]),
                tail=own_tail if is_image else None,
                end=self.prefix_length if is_image else (page + 1) * size,
            )
            self.pages.retain(block.pages)
            self.prefix.insert(block)
            lease.chain.append(block)
            lease.building.append(block)

    def _end_hold(self, lease: _Lease) -> None:
        if lease.hold is not None:
            self.pages.release((lease.hold,))
            lease.hold = None


def _reused(chain: list[PrefixBlock], copies: bool) -> tuple[list[int], int | None]:
    """Return the pages that a sequence shares with a chain, and the one that it copies, if any.

    It copies the image's tail where it goes on behind the chain; else it never writes, and shares the tail as well.
    """
    shared = [page for block in chain for page in block.pages]
    tail = chain[-1].tail if chain else None
    if tail is None or copies:
        return shared, tail
    return [*shared, tail], None
