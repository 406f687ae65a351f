"""Pages of the KV cache, and the prefixes that are kept in them; the keys and values themselves lie on the device.

A page has an id and a count of its owners:

```
page      0         1 .. total - 1
          scratch   usable: free (count 0) or owned (count = sequences + cached blocks + holds)
```

A prefix is a chain of blocks of positions, found again by a chain of hashes:

```
root           blocks                                     page size 4, image prefix of 6 positions
image key ── image [0, 6) ── page [4, 8) ── page [8, 12)    owned: pages 0-1 · 1 · 2 of the sequence that built them
                 └ tail: a page of its own with positions 4 and 5, for prompts that go on otherwise
text root ──── page [0, 4) ─── page [4, 8)                    text alone can never reach an image block
```

The image block attends in both directions, so it is reused whole or not at all. A block in use keeps its whole chain
in use; the others can be evicted, least recently used first.
"""

import functools
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as ListLike
from dataclasses import dataclass
from hashlib import blake2b
from struct import pack
from typing import Literal

from photonlite.request import Token

_KEY_BYTES = 32


class PagePool:
    """Allocates pages and counts references. Page 0 is scratch: padding rows write there, and it is never owned."""

    def __init__(self, total: int, page_size: int) -> None:
        if total < 2 or page_size < 1:
            raise AssertionError(f"{total} pages of {page_size} positions: at least 2 and 1 are needed")
        self.total = total
        self.page_size = page_size
        self._counts = [0] * total
        # Allocated from the end: the page that was freed last is used first, so that runs can be replayed.
        self._free = list(range(total - 1, 0, -1))

    @property
    def usable(self) -> int:
        """Pages that can be owned: all but the scratch page."""
        return self.total - 1

    @property
    def free(self) -> int:
        return len(self._free)

    def refcount(self, page: int) -> int:
        return self._counts[page]

    def pages_for(self, positions: int) -> int:
        return -(-positions // self.page_size)

    def allocate(self, count: int) -> list[int] | None:
        """Take pages with one owner each; None, with nothing changed, if there are not enough."""
        left = len(self._free) - count
        if left < 0:
            return None
        pages = self._free[left:]
        del self._free[left:]
        pages.reverse()
        for page in pages:
            self._counts[page] = 1
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """Count one more owner of each page."""
        counts = self._counts
        for page in pages:
            if counts[page] < 1:
                raise AssertionError(f"page {page} is retained, but has no owner")
            counts[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Count one owner less of each page; a page without owners is free."""
        counts = self._counts
        for page in pages:
            left = counts[page] - 1
            if left < 0:
                raise AssertionError(f"page {page} is released, but has no owner")
            counts[page] = left
            if left == 0:
                self._free.append(page)


@dataclass(eq=False, slots=True)
class PrefixBlock:
    """Positions whose keys and values are computed, or are being computed."""

    key: bytes  # of the whole chain up to here
    parent: "PrefixBlock | None"  # None at a root
    pages: tuple[int, ...]  # full pages that sequences using the block have in their page tables, in order
    tail: int | None  # the image block's own copy of the page in which the image ends; None where it ends with a page
    end: int  # positions that the chain covers, this block included
    state: Literal["building", "ready"] = "building"  # ready once the step that computes it has committed
    users: int = 1  # sequences that use the block: it cannot be evicted while there are any
    children: int = 0  # blocks right behind it

    @property
    def owned(self) -> tuple[int, ...]:
        """All pages of which it owns one reference."""
        return self.pages if self.tail is None else (*self.pages, self.tail)

    @property
    def size(self) -> int:
        return len(self.owned)


class PrefixCache:
    """All blocks by their keys, and the order in which unused ones are evicted."""

    def __init__(self, pool: PagePool) -> None:
        self.evictions = 0
        self.idle_pages = 0  # that `evict` can free: of blocks without users
        self._pool = pool
        self._blocks: dict[bytes, PrefixBlock] = {}
        # Least recently used first. A chain is left from its end, and using a block is using those before it: so a
        # block always comes behind its descendants, and the first one is a leaf.
        self._idle: OrderedDict[bytes, PrefixBlock] = OrderedDict()

    def lookup(self, key: bytes) -> PrefixBlock | None:
        return self._blocks.get(key)

    def ready_chain(self, keys: Iterable[bytes], limit: int) -> list[PrefixBlock]:
        """Return the longest chain of ready blocks, from the root, that covers at most `limit` positions."""
        chain: list[PrefixBlock] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None or block.state != "ready" or block.end > limit:
                break
            chain.append(block)
        return chain

    def idle_pages_without(self, chain: Iterable[PrefixBlock]) -> int:
        """Return how many pages `evict` can free once `chain` is in use."""
        return self.idle_pages - sum(block.size for block in chain if block.users == 0)

    def touch(self, chain: Iterable[PrefixBlock]) -> None:
        """Count one more user of a chain, given from its root: it cannot be evicted until `leave`."""
        for block in chain:
            if block.users == 0:
                del self._idle[block.key]
                self.idle_pages -= block.size
            block.users += 1

    def leave(self, chain: ListLike[PrefixBlock]) -> None:
        """Count one user of a chain less; blocks without users become the most recently used ones."""
        for block in reversed(chain):
            block.users -= 1
            if block.users == 0:
                self._idle[block.key] = block
                self.idle_pages += block.size

    def insert(self, block: PrefixBlock) -> None:
        """Enter a new block, used by the sequence that builds it, which has retained its pages for it."""
        if block.key in self._blocks:
            raise AssertionError(f"a block up to position {block.end} is in the cache twice")
        self._blocks[block.key] = block
        if block.parent is not None:
            block.parent.children += 1

    def remove(self, block: PrefixBlock) -> None:
        """Remove a block that is unused, or withdrawn by its builder; releases its pages."""
        if block.children or block.users > (block.state == "building"):
            raise AssertionError(
                f"a {block.state} block with {block.users} users and {block.children} children is removed"
            )
        del self._blocks[block.key]
        if self._idle.pop(block.key, None) is not None:
            self.idle_pages -= block.size
        if block.parent is not None:
            block.parent.children -= 1
        self._pool.release(block.owned)

    def evict(self, pages_needed: int) -> None:
        """Remove unused blocks, least recently used first, until so many more pages are free."""
        if pages_needed > self.idle_pages:
            raise AssertionError(f"{pages_needed} pages are to be evicted, but only {self.idle_pages} are idle")
        goal = self._pool.free + pages_needed
        while self._pool.free < goal:
            block = next(iter(self._idle.values()))
            free = self._pool.free
            self.remove(block)
            self.evictions += 1
            if self._pool.free != free + block.size:
                raise AssertionError(f"of the evicted pages {block.owned} some are in use")

    def owners(self) -> Counter[int]:
        """Count the blocks' references by page."""
        return Counter(page for block in self._blocks.values() for page in block.owned)


@functools.lru_cache(maxsize=4096)
def text_root(cache_salt: str = "", adapter: str = "") -> bytes:
    """Return the key that prompts without an image begin behind; each cache salt and each adapter has its own."""
    salt = _bytes(cache_salt)
    return blake2b(pack("<q", len(salt)) + salt + _bytes(adapter), digest_size=_KEY_BYTES, person=b"text").digest()


@functools.lru_cache(maxsize=4096)  # looked up at every tick for waiting requests
def image_key(image: str) -> bytes:
    return blake2b(_bytes(image), digest_size=_KEY_BYTES, person=b"image").digest()


def page_key(parent: bytes, tokens: ListLike[Token], images: Iterable[tuple[str, int]] = ()) -> bytes:
    """Return the key of prompt tokens behind a chain, of a page or up to an image's end.

    Equal keys mean equal inputs at all positions up to there: how many tokens a part holds follows from where its chain
    begins, and everything that is embedded (ids and values) is hashed with its place. `images` are those of which the
    part holds positions: key, and how many of its positions stand before the part.
    """
    digest = blake2b(parent, digest_size=_KEY_BYTES, person=b"page")
    digest.update(array("q", [token.id for token in tokens]).tobytes())
    for place, token in enumerate(tokens):
        if token.values:
            digest.update(pack("<qq", place, len(token.values)) + array("d", token.values).tobytes())
    for image, before in images:
        digest.update(pack("<q", before) + image_key(image))
    return digest.digest()


def _bytes(text: str) -> bytes:
    """Encode any text, lone surrogates too: two texts never become the same bytes."""
    return text.encode("utf-8", "surrogatepass")
