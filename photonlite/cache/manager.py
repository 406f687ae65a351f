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

from collections.abc import Iterator
from typing import Literal

from photonlite.batch import PageCopy
from photonlite.cache.pages import PagePool, PrefixBlock, PrefixCache, image_key, page_key, text_root
from photonlite.sequence import Sequence


class CacheManager:
    """Allocates pages and shares prefixes; `prefix_length` counts BOS and image tokens of a sequence with an image."""

    def __init__(self, pages: PagePool, prefix_length: int, *, prefix_caching: bool = True) -> None:
        self.pages = pages
        self.prefix = PrefixCache(pages)
        self.prefix_length = prefix_length
        self._caching = prefix_caching
        self._keeps_tail = prefix_caching and prefix_length % pages.page_size != 0
        # The blocks of each admitted sequence, from the root. In use, they keep their pages, the source of the
        # sequence's copy included; those that it computes itself stand at the end, until its step has committed.
        self._chains: dict[int, list[PrefixBlock]] = {}

    def pages_needed(self, positions: int, with_image: bool) -> int:
        """Return how many pages a request of so many positions needs when it runs alone."""
        # The cache's copy of the page in which the image ends cannot be evicted while the sequence uses the image.
        return self.pages.pages_for(positions) + (with_image and self._keeps_tail)

    def fits(self, positions: int, with_image: bool) -> bool:
        """Whether a request can ever fill so many positions; if so it can as soon as it runs alone."""
        return self.pages_needed(positions, with_image) <= self.pages.usable

    def name(self, sequence: Sequence) -> None:
        """Set the keys of the blocks of a sequence's prompt: the image, then full pages; from any thread."""
        sequence.prefix_keys = tuple(self._keys(sequence)) if self._caching else ()

    def image_state(self, key: str) -> Literal["missing", "building", "ready"]:
        """Return the state of an image's block; "building" until the step that computes it has committed."""
        block = self.prefix.lookup(image_key(key))
        return "missing" if block is None else block.state

    def admit(self, sequence: Sequence) -> tuple[int, tuple[PageCopy, ...], tuple[PageCopy, ...]] | None:
        """Allocate pages for a sequence's known positions and the next one; None, with nothing changed, if short.

        Returns the first position to compute (0, the end of the image prefix, or a page boundary behind it), and the
        pages to copy before the forward pass and after it.

        The longest chain of ready blocks that leaves a position to compute is reused (a sequence that produces nothing
        may be covered altogether; it then shares the image's tail page too, because it never writes). The rest of the
        prompt's chain is registered as being built by this sequence, up to the first block that is there already.
        """
        keys = self._check_new(sequence)
        chain = self.prefix.ready_chain(keys, sequence.num_tokens - sequence.samples)
        start = chain[-1].end if chain else 0
        shared = [page for block in chain for page in block.pages]
        source = chain[-1].tail if chain else None
        if source is not None and start == sequence.num_tokens:
            shared, source = [*shared, source], None
        # The last token of all is never fed back, so the position behind it needs no room.
        room = max(sequence.num_tokens, min(sequence.num_tokens + 1, sequence.longest))
        fresh = self.pages.pages_for(room) - len(shared)
        spare = self.pages.free + self.prefix.idle_pages_without(chain) - fresh
        if spare < 0:
            return None

        self.prefix.touch(chain)
        self.pages.retain(shared)
        builds_tail = self._keeps_tail and sequence.image is not None and self.prefix.lookup(keys[0]) is None
        saves_tail = builds_tail and spare > 0
        taken = self._allocate(fresh + saves_tail)
        own_tail = taken.pop() if saves_tail else None
        sequence.pages = shared + taken
        if keys:
            self._register(sequence, keys, chain, own_tail)
        last = self.prefix_length // self.pages.page_size
        if source is not None:
            return start, (PageCopy(source, sequence.pages[last]),), ()
        if own_tail is not None:
            return start, (), (PageCopy(sequence.pages[last], own_tail),)
        return start, (), ()

    def confirm(self, sequence: Sequence) -> None:
        """Make the blocks that a sequence has built ready for others: its step has committed."""
        for block in reversed(self._chains.get(sequence.number, [])):
            if block.state == "ready":
                return
            block.state = "ready"

    def withdraw(self, sequence: Sequence) -> None:
        """Remove the blocks that a sequence was building: its step failed. Blocks of others stay."""
        chain = self._chains.get(sequence.number, [])
        while chain and chain[-1].state == "building":
            # From the end: a block that is not ready has no children of other sequences.
            self.prefix.remove(chain.pop())

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
        chain = self._chains.get(sequence.number, [])
        if building := sum(block.state == "building" for block in chain):
            raise AssertionError(f"sequence {sequence.number} is released with {building} blocks being built")
        self._chains.pop(sequence.number, None)
        self.prefix.leave(chain)
        self.pages.release(sequence.pages)
        sequence.pages = []

    def _check_new(self, sequence: Sequence) -> tuple[bytes, ...]:
        if sequence.pages or sequence.number in self._chains:
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

    def _allocate(self, count: int) -> list[int]:
        """Allocate pages that the caller knows to be there, evicting for them."""
        self.prefix.evict(count - self.pages.free)
        pages = self.pages.allocate(count)
        if pages is None:
            raise AssertionError(f"{count} pages are not free after eviction, only {self.pages.free}")
        return pages

    def _register(
        self, sequence: Sequence, keys: tuple[bytes, ...], chain: list[PrefixBlock], own_tail: int | None
    ) -> None:
        """Enter the blocks that a sequence computes behind its chain; `own_tail` is the image block's own page."""
        self._chains[sequence.number] = chain
        size, images = self.pages.page_size, int(sequence.image is not None)
        full = self.prefix_length // size if images else 0
        for place in range(len(chain), len(keys)):
            is_image = place < images
            if self.prefix.lookup(keys[place]) is not None or (is_image and self._keeps_tail and own_tail is None):
                return
            page = full + place - images
            block = PrefixBlock(
                keys[place],
                parent=chain[-1] if chain else None,
                pages=tuple(sequence.pages[:full] if is_image else sequence.pages[page : page + 1]),
                tail=own_tail if is_image else None,
                end=self.prefix_length if is_image else (page + 1) * size,
            )
            self.pages.retain(block.pages)
            self.prefix.insert(block)
            chain.append(block)
