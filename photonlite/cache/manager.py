"""Pages for sequences, and as much of their prefix as the cache has: the scheduler's interface to the KV cache.

```
name      on the calling thread: hashes the prompt, and changes nothing of the manager
admit ──launch──> confirm ──grow, grow ...──> release        the blocks it built stay, for later sequences
           └────> withdraw ─────────────────> release        the step failed: the blocks it was building are removed
```

Pages that an answer has filled stay as well, where a later request may go on behind it: the next turn of a
conversation.

Prompts about an image differ behind it, so that the chain has a block that ends with each image. Where that is inside a
page, the block keeps a copy of the page: its tail. Which pages a sequence with a leading image shares then:

```
position   0               prefix_len             prompt_length
           ├─ full pages ─┼─ tail page ─┼─ full pages ─┼─ last page, generated ...
miss       shared: image    own (saved)   shared: text    own
hit        shared: image    own (copied)  own             own        another prompt
hit        shared: image    shared: text  shared: text    own        the same prompt
```

Where the whole prompt attends to itself in both directions, keys and values of its image depend on its words. Then the
chain is one block, which is named by all of them: it ends before the prompt's last position, which is computed again
because its hidden state has the answer's first token.
"""

from collections.abc import Iterator
from collections.abc import Sequence as ListLike
from itertools import takewhile
from typing import Literal

from photonlite.batch import PageCopy
from photonlite.cache.pages import PagePool, PrefixBlock, PrefixCache, image_key, page_key, text_root
from photonlite.image_inputs import PrefixPages
from photonlite.sequence import ImageSpan, PrefixLink, Sequence


class CacheManager:
    """Allocates pages and shares prefixes."""

    def __init__(self, pages: PagePool, *, prefix_caching: bool = True) -> None:
        self.pages = pages
        self.prefix = PrefixCache(pages)
        self._caching = prefix_caching
        # The blocks of each admitted sequence, from the root. In use, they keep their pages, the source of the
        # sequence's copy included; those that it computes itself stand at the end, until its step has committed.
        self._chains: dict[int, list[PrefixBlock]] = {}

    def pages_needed(self, sequence: Sequence) -> int:
        """Return how many pages a sequence needs when it runs alone, at its longest."""
        # The cache's copies of the pages in which images end cannot be evicted while the sequence uses them.
        ends = [_block_end(sequence)] if sequence.prompt_block else [span.end for span in sequence.images]
        tails = sum(end % self.pages.page_size != 0 for end in ends) if self._caching else 0
        return self.pages.pages_for(sequence.longest) + tails

    def fits(self, sequence: Sequence) -> bool:
        """Whether a sequence can ever reach its full length; if so it can as soon as it runs alone."""
        return self.pages_needed(sequence) <= self.pages.usable

    def name(self, sequence: Sequence) -> None:
        """Find the blocks of a sequence's prompt, and name its images' ends; from any thread.

        The key of a block that ends with an image names the pages up to there in a store as well.
        """
        links, size = tuple(self._links(sequence)), self.pages.page_size
        sequence.links = links if self._caching else ()
        first = start = 0
        for span in sequence.images:
            span.link = next((link.key for link in links if link.end >= span.end), b"")
            if not sequence.prompt_block:
                stop = self.pages.pages_for(span.end) if span.end <= sequence.prefix_len else span.end // size
                end = min(stop * size, span.end)
                if stop > first:
                    span.pages = PrefixPages(span.link.hex(), first, stop, start, end)
                first, start = stop, end

    def image_state(self, span: ImageSpan) -> Literal["missing", "building", "ready"]:
        """Return the state of the block that ends with an image; "building" until its step has committed."""
        block = self.prefix.lookup(span.link)
        return "missing" if block is None else block.state

    def admit(
        self, sequence: Sequence, spared: int = 0, *, whole: bool = True
    ) -> tuple[int, tuple[PageCopy, ...], tuple[PageCopy, ...]] | None:
        """Allocate pages for a sequence's known positions and the next one; None, with nothing changed, if short.

        Pages are short where fewer than `spared` would be left, which others are about to get.

        Returns the first position to compute (0, the end of an image, or a page boundary), and the pages to copy before
        the forward pass and after it.

        The longest chain of ready blocks that leaves a position to compute is reused (a sequence that produces nothing
        may be covered altogether; it then shares an image's tail page too, because it never writes). The rest of the
        prompt's chain is registered as being built by this sequence, up to the first block that is there already, and
        without `whole` to the last that does not need the last known position.
        """
        links, size = self._check_new(sequence), self.pages.page_size
        chain = self.prefix.ready_chain((link.key for link in links), sequence.num_tokens - sequence.samples)
        start = chain[-1].end if chain else 0
        shared = [page for block in chain for page in block.pages]
        source = chain[-1].tail if chain else None
        if source is not None and start == sequence.num_tokens:
            shared, source = [*shared, source], None
        fresh = self.pages.pages_for(_room(sequence)) - len(shared)
        spare = self.pages.free + self.prefix.idle_pages_without(chain) - fresh - spared
        if spare < 0:
            return None

        self.prefix.touch(chain)
        self.pages.retain(shared)
        new = list(takewhile(lambda link: self.prefix.lookup(link.key) is None, links[len(chain) :]))
        new = [link for link in new if whole or link.end < sequence.num_tokens]
        tails = min(spare, sum(link.has_tail for link in new))
        taken = self._allocate(fresh + tails)
        sequence.pages, sequence.shared_pages = shared + taken[:fresh], len(shared)
        copies = () if source is None else (PageCopy(source, sequence.pages[start // size]),)
        saves = self._register(sequence, new, chain, taken[fresh:]) if links else []
        return start, copies, tuple(saves)

    def readmit(self, sequence: Sequence, others: ListLike[Sequence] = (), positions: int = 1) -> int | None:
        """Allocate pages for a sequence whose keys and values are kept elsewhere; None, with nothing changed, if short.

        It and `others`, which run, get room for so many positions more. Returns how many of its first pages the cache
        still had.
        """
        keys = (link.key for link in self._check_new(sequence))
        chain = self.prefix.ready_chain(keys, sequence.num_computed_tokens)
        shared = [page for block in chain for page in block.pages]
        fresh = self.pages.pages_for(_room(sequence)) - len(shared)
        growing = [(one, min(max(_room(one), one.num_computed_tokens + positions), one.longest)) for one in others]
        own = min(max(_room(sequence), sequence.num_tokens - 1 + positions), sequence.longest)
        wanted = self.pages.pages_for(own) - len(shared)
        wanted += sum(max(0, self.pages.pages_for(end) - len(one.pages)) for one, end in growing)
        if self.pages.free + self.prefix.idle_pages_without(chain) < wanted:
            return None
        self.prefix.touch(chain)
        self.pages.retain(shared)
        sequence.pages, sequence.shared_pages = shared + self._allocate(fresh), len(shared)
        self._chains[sequence.number] = chain
        for one, end in (*growing, (sequence, own)):
            self.grow(one, end)
        return len(shared)

    def shared_positions(self, sequence: Sequence) -> int:
        """Return how many leading positions of an admitted sequence the cache keeps for others too."""
        chain = takewhile(lambda block: block.users > 1, self._chains.get(sequence.number, ()))
        return max((block.end for block in chain), default=0)

    def cached_pages(self, sequence: Sequence) -> int:
        """Return how many pages the cache has ready for a sequence that may be admitted."""
        keys = (link.key for link in sequence.links or ())
        chain = self.prefix.ready_chain(keys, sequence.num_tokens - sequence.samples)
        return sum(len(block.pages) for block in chain)

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
        sequence.pages, sequence.shared_pages = [], 0

    def _check_new(self, sequence: Sequence) -> tuple[PrefixLink, ...]:
        if sequence.pages or sequence.number in self._chains:
            raise AssertionError(f"sequence {sequence.number} is admitted with {len(sequence.pages)} pages in hand")
        if sequence.links is None:
            raise AssertionError(f"sequence {sequence.number} is admitted before its prefixes were named")
        return sequence.links

    def _links(self, sequence: Sequence) -> Iterator[PrefixLink]:
        size, before = self.pages.page_size, sequence.prefix_len
        if sequence.prompt_block:
            if end := _block_end(sequence):
                tokens = sequence.prompt[: sequence.prompt_block - before]
                images = [(span.key, -span.start) for span in sequence.images]
                key = page_key(_root(sequence), tokens, images)
                yield PrefixLink(key, 0, end // size, end, end % size != 0)
            return
        reached, first = 0, 0  # positions and full pages that the chain covers so far
        parent = _root(sequence)
        if sequence.image is not None:
            parent = image_key(sequence.images[0].key)
            reached, first = before, before // size
            yield PrefixLink(parent, 0, first, reached, reached % size != 0)
        pages = range((first + 1) * size, sequence.prompt_length + 1, size)
        inner = [span for span in sequence.images if span.start >= before]
        for end in sorted({*pages, *(span.end for span in inner)}):
            tokens = sequence.prompt[max(0, reached - before) : end - before]
            seen = [span for span in inner if span.start < end and span.end > reached]
            parent = page_key(parent, tokens, [(span.key, reached - span.start) for span in seen])
            yield PrefixLink(parent, first, end // size, end, end % size != 0)
            reached, first = end, end // size

    def keep_answer(self, sequence: Sequence) -> None:
        """Add the pages that an answer has filled to the sequence's chain, if that has its whole prompt.

        It is called once, before the caller has the answer: the next turn may follow while a step still carries the
        sequence, which writes behind these pages.
        """
        if not (self._caching and sequence.kept and sequence.error is None):
            return
        chain, links = self._chains.setdefault(sequence.number, []), sequence.links or ()
        if len(chain) < len(links):
            return
        parent, reached = (links[-1].key, links[-1].end) if links else (_root(sequence), 0)
        size, first = self.pages.page_size, max(reached, sequence.prefix_len)
        tokens = sequence.tokens_after_image(first)
        # Of the last tokens keys and values may not have been computed.
        for end in range((reached // size + 1) * size, sequence.num_committed_tokens + 1, size):
            parent = page_key(parent, tokens[max(0, reached - first) : end - first])
            block = self.prefix.lookup(parent)
            if block is None:
                pages = tuple(sequence.pages[reached // size : end // size])
                block = PrefixBlock(parent, chain[-1] if chain else None, pages, tail=None, end=end, state="ready")
                self.pages.retain(block.pages)
                self.prefix.insert(block)
            elif block.state == "ready":
                self.prefix.touch([block])
            else:
                return  # another prompt begins like this answer: nothing may hang on a block that may be withdrawn
            chain.append(block)
            reached = end

    def _allocate(self, count: int) -> list[int]:
        """Allocate pages that the caller knows to be there, evicting for them."""
        if count > self.pages.free:
            self.prefix.evict(count - self.pages.free)
        pages = self.pages.allocate(count)
        if pages is None:
            raise AssertionError(f"{count} pages are not free after eviction, only {self.pages.free}")
        return pages

    def _register(
        self, sequence: Sequence, new: list[PrefixLink], chain: list[PrefixBlock], tails: list[int]
    ) -> list[PageCopy]:
        """Enter the blocks that a sequence computes behind its chain; return what is saved to their own pages."""
        self._chains[sequence.number] = chain
        saves: list[PageCopy] = []
        for link in new:
            if link.has_tail and len(saves) == len(tails):
                break
            block = PrefixBlock(
                link.key,
                parent=chain[-1] if chain else None,
                pages=tuple(sequence.pages[link.first : link.stop]),
                tail=tails[len(saves)] if link.has_tail else None,
                end=link.end,
            )
            if block.tail is not None:
                saves.append(PageCopy(sequence.pages[link.stop], block.tail))
            self.pages.retain(block.pages)
            self.prefix.insert(block)
            chain.append(block)
        return saves


def _root(sequence: Sequence) -> bytes:
    """Return the key of a sequence's empty prefix; those of images have the adapter in their own keys."""
    return text_root(sequence.cache_salt, sequence.adapter_key)


def _room(sequence: Sequence) -> int:
    """Return the known positions of a sequence and the next one; the last token of all is never fed back."""
    return max(sequence.num_tokens, min(sequence.num_tokens + 1, sequence.longest))


def _block_end(sequence: Sequence) -> int:
    """Return the positions that are reused of a prompt that attends to itself in both directions; 0 for none.

    Nothing is where an image has its last position, which is computed again from the image's embeddings.
    """
    end = sequence.prompt_block - 1
    return 0 if any(span.end > end for span in sequence.images) else end
