"""Random histories of admissions, steps and failures, with few pages and a memory of distinct contents."""

import random
from collections import Counter, defaultdict
from collections.abc import Hashable

import pytest

from photonlite.request import Token
from photonlite.sequence import Sequence
from tests.cache.sequences import admit, check, forget, manager_of, sequence, state_of

BUDGET = 6
# Some are prefixes of others, so that chains of many lengths are reused; two contain a coordinate.
PROMPTS = [
    (1,),
    (2, 1),
    tuple(range(7)),
    tuple(range(14)),
    (*range(7), *range(20, 30)),
    (0, 1, 2, Token(3, (0.5,)), 4, 5, 6),
    (0, 1, 2, Token(3, (0.75,)), 4, 5, 6),
]
LONGEST = max(PROMPTS, key=len)


class World:
    """A manager, its sequences, and the contents of each position of each page.

    A position's content is a number for everything it depends on: the image and all inputs up to it.
    """

    def __init__(self, seed: int, page_size: int, prefix: int) -> None:
        self.random = random.Random(seed)
        self.prefix, self.size = prefix, page_size
        longest = sequence(LONGEST, "a", prefix=prefix, budget=BUDGET)
        usable = manager_of(1, page_size).pages_needed(longest) + self.random.choice((0, 0, 1, 3, 8, 20))
        self.manager = manager_of(usable, page_size)
        assert self.manager.fits(longest)
        self.memory: list[list[int]] = [[0] * page_size for _ in range(usable + 1)]
        self.names: dict[Hashable, int] = {}
        self.pending: list[Sequence] = []
        self.running: list[Sequence] = []
        self.turns: defaultdict[str | None, list[tuple[int | Token, ...]]] = defaultdict(list)
        self.seen = Counter[str]()

    def act(self) -> None:
        actions = [self.admit, self.admit, self.commit, self.decode, self.decode, self.stop, self.forget]
        self.random.choices(actions, (6, 6, 8, 8, 8, 4, 0.2))[0]()
        self.check()

    def admit(self) -> None:
        """Admit and launch a new request, or one that was pre-empted after a few tokens."""
        image = self.random.choice((None, "a", "b", "c"))
        if image and state_of(self.manager, image) == "building":
            return
        is_handle = image is not None and self.random.random() < 0.2
        prompt, budget = ((), 0) if is_handle else (self.random.choice(PROMPTS), BUDGET)
        going = [(*one.prompt, *one.tokens) for one in self.running if (one.image and one.image.key) == image]
        if (self.turns[image] or going) and self.random.random() < 0.3:  # goes on behind an answer, or part of one
            prompt, budget, is_handle = self.random.choice(self.turns[image] + going)[: len(LONGEST)], BUDGET, False
        new = sequence(prompt, image, prefix=self.prefix, budget=budget, kept=self.random.random() < 0.5)
        if not is_handle and self.random.random() < 0.25:
            new.tokens = [Token(self.random.randrange(3)) for _ in range(self.random.randrange(1, BUDGET))]
        before = (self.manager.prefix.owners(), vars(self.manager.prefix).copy(), self.manager.pages.free)
        admission = admit(self.manager, new)
        if admission is None:
            assert (self.manager.prefix.owners(), vars(self.manager.prefix), self.manager.pages.free) == before
            assert new.pages == []
            self.seen["refused"] += 1
            return
        self.seen["hit" if admission.start else "miss"] += 1
        self.seen["answer hit"] += prompt not in PROMPTS and admission.start > new.prefix_len
        self.seen["handle hit"] += admission.start == new.num_tokens
        assert admission.start < new.num_tokens + (budget == 0)
        assert admission.start in (0, self.prefix if image else 0) or admission.start % self.size == 0
        for copy in admission.copies:
            self.seen["copy"] += 1
            assert copy.source not in new.pages
            self.memory[copy.target] = list(self.memory[copy.source])
        self.pending.append(new)
        if self.random.random() < 0.15:
            new.error = RuntimeError("the step fails and leaves nonsense behind")
        self.write(new, admission.start, new.num_tokens)
        for copy in admission.saves:
            self.seen["save"] += 1
            assert copy.target not in new.pages
            self.memory[copy.target] = list(self.memory[copy.source])

    def commit(self) -> None:
        """Commit the oldest launch; if it failed, its sequence ends."""
        if not self.pending:
            return
        first = self.pending.pop(0)
        if first.error is None:
            self.manager.confirm(first)
            self.running.append(first)
        else:
            self.seen["withdrawn"] += 1
            self.manager.withdraw(first)
            self.manager.release(first)

    def decode(self) -> None:
        """Append a token to one running sequence, or pre-empt it where pages are short."""
        able = [one for one in self.running if one.num_tokens < one.longest]
        if not able:
            return
        one = self.random.choice(able)
        if self.manager.grow(one, one.num_tokens + 1):
            one.tokens.append(Token(self.random.randrange(3)))
            self.write(one, one.num_tokens - 1, one.num_tokens)
        else:
            self.seen["pre-empted"] += 1
            assert len(self.running) + len(self.pending) > 1
            self.running.remove(one)
            self.manager.release(one)

    def stop(self) -> None:
        if self.running:
            one = self.running.pop(self.random.randrange(len(self.running)))
            one.finalized = True
            blocks = len(self.manager.prefix._blocks)
            self.manager.keep_answer(one)
            self.manager.release(one)
            self.seen["answer kept"] += len(self.manager.prefix._blocks) > blocks
            self.turns[one.image and one.image.key].append((*one.prompt, *one.tokens))

    def forget(self) -> None:
        forget(self.manager)
        assert self.manager.prefix.idle_pages == 0

    def contents(self, one: Sequence) -> list[int]:
        """Return the expected contents of each position of a sequence."""
        name = 0 if one.image is None else self.name(("image", one.image.key))
        names = [name] * one.prefix_len
        for token in (*one.request.prompt, *one.tokens):
            name = self.name((name, token.id, token.values))
            names.append(name)
        return names

    def name(self, what: Hashable) -> int:
        return self.names.setdefault(what, len(self.names) + 1)

    def write(self, one: Sequence, start: int, end: int) -> None:
        contents = self.contents(one)
        for position in range(start, end):
            page = one.pages[position // self.size]
            self.memory[page][position % self.size] = contents[position] if one.error is None else -1
        one.num_committed_tokens = end

    def check(self) -> None:
        """Check the owners of pages, and the contents of all sequences without an error."""
        everyone = self.pending + self.running
        check(self.manager, everyone)
        for one in everyone:
            if one.error is None:
                found = [self.memory[page][place] for page in one.pages for place in range(self.size)]
                assert found[: one.num_tokens] == self.contents(one)

    def drain(self) -> None:
        while self.pending:
            self.commit()
        while self.running:
            self.stop()
        self.check()

    def serve_longest(self) -> None:
        """Serve the longest request alone, with the current cache."""
        image = self.random.choice("abcd")
        one = sequence(LONGEST, image, prefix=self.prefix, budget=BUDGET)
        assert admit(self.manager, one) is not None
        assert self.manager.grow(one, one.longest)
        self.manager.withdraw(one)
        self.manager.release(one)
        self.check()


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 5, 16])
@pytest.mark.parametrize("prefix", [2, 6, 12])
def test_random_histories_keep_owners_and_contents(page_size: int, prefix: int):
    seen = Counter[str]()
    for seed in range(4):
        world = World(seed, page_size, prefix)
        for step in range(150):
            world.act()
            if step % 50 == 49:
                world.drain()
                world.serve_longest()
        forget(world.manager)
        assert world.manager.pages.free == world.manager.pages.usable
        seen += world.seen
        seen["evicted"] += world.manager.prefix.evictions
    # A history in which nothing happens would prove nothing.
    expected = {"refused", "hit", "handle hit", "miss", "withdrawn", "evicted"}
    expected |= {"answer kept", "answer hit"} if page_size < 5 else set()
    assert expected | ({"copy", "save"} if prefix % page_size else set()) <= seen.keys(), seen
