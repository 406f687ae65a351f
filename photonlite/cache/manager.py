"""Pages for sequences, and as much of their prefix as the cache has: what the scheduler calls.

```
name      on the thread that asks: hashes the prompt, and changes nothing of the manager
admit ──launch──> confirm ──grow, grow ...──> release        the blocks it built stay, for whoever comes next
           └────> withdraw ─────────────────> release        the step failed: what it was building is no more
```

Whose pages a sequence with an image has, where the image prefix ends inside a page:

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
from photonlite.cache.prefix import Block, PrefixCache, image_key, page_key, text_root
from photonlite.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Admission:
    """What a sequence that has got its pages must compute.

    Attributes:
        start: First position to compute: 0, the end of the image prefix, or a page boundary behind it.
        copies: To make before the forward pass.
        saves: To make after it.
    """

    start: int
    copies: tuple[PageCopy, ...] = ()
    saves: tuple[PageCopy, ...] = ()


@dataclass(eq=False, slots=True)
class _Lease:
    """What an admitted sequence uses of the prefix cache.

    Attributes:
        chain: Blocks it uses, from the root; its page table has their pages.
        hold: The source of its copy, until confirmed or withdrawn.
        building: Those at the chain's end that it computes itself, until confirmed or withdrawn.
    """

    chain: list[Block]
    hold: int | None
    building: list[Block] = field(default_factory=list)


class CacheManager:
    """Admits sequences to the cache, lets them grow and takes their pages back.

    Args:
        pages: All pages there are.
        prefix_length: Positions of BOS and image tokens, for a sequence with an image.
        prefix_caching: Whether prefixes are kept for later sequences.

    Attributes:
        pages: As given.
        prefix: The cached blocks and their counts.
        prefix_length: As given.
    """

    def __init__(self, pages: PagePool, prefix_length: int, *, prefix_caching: bool = True) -> None:
        self.pages = pages
        self.prefix = PrefixCache(pages)
        self.prefix_length = prefix_length
        self._caching = prefix_caching
        self._leases: dict[int, _Lease] = {}

    def pages_needed(self, positions: int, with_image: bool) -> int:
        """Tell how many pages a request that fills so many positions needs when it is alone in the machine.

        One page more than its page table has where the cache keeps a copy of the page in which the image ends: that
        one cannot be evicted while the sequence uses the image's other pages.
        """
        keeps_tail = with_image and self._caching and self.prefix_length % self.pages.page_size != 0
        return self.pages.pages_for(positions) + keeps_tail

    def fits(self, positions: int, with_image: bool) -> bool:
        """Tell whether a request can ever fill so many positions; if so it can as soon as the others are gone."""
        return self.pages_needed(positions, with_image) <= self.pages.usable

    def name(self, sequence: Sequence) -> None:
        """Set the keys of the blocks that a sequence's prompt consists of: the image, then full pages. On any thread.

        Empty without prefix caching, and for text shorter than a page.
        """
        sequence.prefix_keys = tuple(self._keys(sequence)) if self._caching else ()

    def image_state(self, key: str) -> Literal["missing", "building", "ready"]:
        """Tell whether the image block of an image is there, or on its way in a step that is not yet committed."""
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

        Raises:
            AssertionError: The sequence has pages already, its image has another length, or it was not named.
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
        self.pages.retain_all(shared)
        saves_tail = spare > 0 and self._builds_tail(sequence, keys)
        taken = self._take(fresh + saves_tail)
        own_tail = taken.pop() if saves_tail else None
        sequence.pages = shared + taken
        if keys:
            self.prefix.hits += bool(chain)
            self.prefix.misses += not chain
            lease = self._leases[sequence.number] = _Lease(chain, hold=source)
            self._register(sequence, keys, lease, own_tail)
        last = self.prefix_length // self.pages.page_size
        if source is not None:
            self.pages.retain(source)
            return Admission(start, copies=(PageCopy(source, sequence.pages[last]),))
        if own_tail is not None:
            return Admission(start, saves=(PageCopy(sequence.pages[last], own_tail),))
        return Admission(start)

    def confirm(self, sequence: Sequence) -> None:
        """Note that the step which computed a sequence's blocks has committed well: they are ready for others."""
        lease = self._leases.get(sequence.number)
        if lease is None:
            return
        for block in lease.building:
            block.state = "ready"
        lease.building.clear()
        self._end_hold(lease)

    def withdraw(self, sequence: Sequence) -> None:
        """Note that the step failed: the blocks that the sequence was building are removed, those of others stay."""
        lease = self._leases.get(sequence.number)
        if lease is None:
            return
        while lease.building:
            # From the end, and nobody else goes on behind a block that is not ready: so there are no descendants.
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
        sequence.pages.extend(self._take(missing))
        return True

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's pages back; the blocks it used stay as long as their pages are not needed.

        Raises:
            AssertionError: Its blocks are neither confirmed nor withdrawn.
        """
        lease = self._leases.get(sequence.number)
        if lease is not None:
            if lease.building or lease.hold is not None:
                raise AssertionError(
                    f"sequence {sequence.number} is released with {len(lease.building)} blocks being built "
                    f"and the hold {lease.hold}"
                )
            del self._leases[sequence.number]
            self.prefix.leave(lease.chain)
        self.pages.release_all(sequence.pages)
        sequence.pages = []

    def forget_all(self) -> None:
        """Evict every block that nobody uses."""
        self.prefix.evict(self.prefix.idle_pages)

    def held_pages(self) -> int:
        """Tell how many pages the cache keeps, shared with sequences or not."""
        return self.prefix.held_pages

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

    def _take(self, count: int) -> list[int]:
        """Hand out pages, evicting for them; the caller knows that there are enough."""
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
            block = Block(
                keys[place],
                parent=lease.chain[-1] if lease.chain else None,
                pages=tuple(sequence.pages[:full] if is_image else sequence.pages[page : page + 1]),
                tail=own_tail if is_image else None,
                end=self.prefix_length if is_image else (page + 1) * size,
            )
            self.pages.retain_all(block.pages)
            self.prefix.insert(block)
            lease.chain.append(block)
            lease.building.append(block)

    def _end_hold(self, lease: _Lease) -> None:
        if lease.hold is not None:
            self.pages.release(lease.hold)
            lease.hold = None


def _reused(chain: list[Block], copies: bool) -> tuple[list[int], int | None]:
    """Give the pages that a sequence shares with a chain, and the one that it copies for itself, if any.

    Args:
        chain: What it reuses, from the root.
        copies: Whether it goes on behind the chain: else it never writes, and shares the image's tail as well.
    """
    shared = [page for block in chain for page in block.pages]
    tail = chain[-1].tail if chain else None
    if tail is None or copies:
        return shared, tail
    return [*shared, tail], None
