"""Answers out of a list, as a tree of token ids.

```
"yes"  12 7           root ┬ 12 ─ 7 ─ yes
"no"   31                  └ 31 ─ no ─ 4 ─ none        at `no` the answer may end, or go on
"none" 31 4
```

Spellings are sorted, so a node of the tree is a range of them, and nodes are made when they are reached: thousands of
choices cost no more than sorting them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.decoding.grammars import BudgetedGrammar
from photonlite.request import MAX_SCORED, Allowed, Token

MAX_CHOICES = 5000  # of one question
_MAX_SPELLINGS = 4 * MAX_CHOICES


@dataclass(eq=False, slots=True)
class _Node:
    """The spellings [low, high), which agree on their first `depth` ids."""

    low: int
    high: int
    depth: int
    choice: int | None  # the choice that is complete here
    shortest: int  # ids of the shortest way on from here, including the end id where it is needed
    longest: int
    allowed: Allowed | None = None  # what may follow where the budget excludes nothing; made when asked for

    @property
    def goes_on(self) -> bool:
        return self.high - self.low > (self.choice is not None)


class ChoiceTrie:
    """Spellings (token ids, index of the choice) as a tree; `scored` asks for probabilities of what may follow."""

    def __init__(self, spellings: Sequence[tuple[tuple[int, ...], int]], end: int, *, scored: bool = True) -> None:
        if not spellings:
            raise GrammarError("there is nothing to choose from: give at least one choice")
        if len(spellings) > _MAX_SPELLINGS or len({choice for _, choice in spellings}) > MAX_CHOICES:
            raise GrammarTooLargeError(f"there are more than {MAX_CHOICES} choices: give fewer")
        self.end = end
        self._most_scored = MAX_SCORED if scored else 0
        self._choice_of = _by_spelling(spellings, end)
        self._spellings = sorted(self._choice_of)
        self._costs = _costs(self._spellings)
        self.root = self._node(0, len(self._spellings), 0)
        self.shortest, self.longest = self.root.shortest, self.root.longest
        self.allowed(self.root, self.longest)  # lists thousands of ids now, not in an engine step

    def follow(self, ids: Iterable[int]) -> _Node | None:
        """Walk down from the root; None where no choice begins with these ids."""
        node: _Node | None = self.root
        for index in ids:
            if node is None:
                return None
            node = self.child(node, index)
        return node

    def child(self, node: _Node, index: int) -> _Node | None:
        """Return the node behind an id; None where no choice goes on with it."""
        at = node.depth
        first = node.low + (node.choice is not None)
        low = bisect_left(self._spellings, index, first, node.high, key=lambda ids: ids[at])
        high = bisect_right(self._spellings, index, low, node.high, key=lambda ids: ids[at])
        return self._node(low, high, at + 1) if low < high else None

    def children(self, prefix: Iterable[int] = ()) -> tuple[int, ...]:
        """Return what may follow a prefix: the end id where a choice is complete and others go on, then other ids."""
        node = self.follow(prefix)
        return () if node is None else self._listed(node)

    def choices(self, prefix: Iterable[int] = ()) -> frozenset[int]:
        """Return the choices that have a spelling with this prefix."""
        node = self.follow(prefix)
        below = () if node is None else self._spellings[node.low : node.high]
        return frozenset(self._choice_of[ids] for ids in below)

    def choice(self, ids: Sequence[int]) -> int | None:
        """Return the choice that an answer spells, with or without the end id; None where it spells none."""
        return self._choice_of.get(tuple(ids[:-1] if ids and ids[-1] == self.end else ids))

    def allowed(self, node: _Node, left: int) -> Allowed:
        """Return what may follow with `left` tokens left; 2 to `MAX_SCORED` ids are scored if that is wanted."""
        if left >= node.longest:
            if node.allowed is None:
                node.allowed = self._scored(self._listed(node))
            return node.allowed
        ends, ids = self._ends(node), self._onward(node)
        fitting = [index for index in ids if (child := self.child(node, index)) and 1 + child.shortest <= left]
        return self._scored((*ends, *fitting))

    def limits(self, node: _Node, left: int) -> bool:
        """Whether having only `left` tokens left excludes something that might follow."""
        return left < node.longest and self.allowed(node, left).ids != self._listed(node)

    def _scored(self, ids: tuple[int, ...]) -> Allowed:
        return Allowed(ids, scored=ids if 2 <= len(ids) <= self._most_scored else ())

    def _listed(self, node: _Node) -> tuple[int, ...]:
        return (*self._ends(node), *self._onward(node))

    def _ends(self, node: _Node) -> tuple[int, ...]:
        return (self.end,) if node.choice is not None and node.goes_on else ()

    def _onward(self, node: _Node) -> list[int]:
        """Return the ids with which choices go on, in order."""
        first = node.low + (node.choice is not None)
        return list(dict.fromkeys(ids[node.depth] for ids in self._spellings[first : node.high]))

    def _node(self, low: int, high: int, depth: int) -> _Node:
        first, costs = self._spellings[low], self._costs[low:high]
        choice = self._choice_of[first] if len(first) == depth else None
        return _Node(low, high, depth, choice, min(costs) - depth, max(costs) - depth)


class ChoiceGrammar(BudgetedGrammar):
    """One of the choices that begin with `prefix`, without these ids; the end id only where another choice goes on."""

    def __init__(self, trie: ChoiceTrie, budget: int, prefix: tuple[int, ...] = ()) -> None:
        super().__init__(budget)
        node = trie.follow(prefix)
        if node is None:
            raise GrammarError(f"no choice begins with the ids {prefix}")
        if budget < node.shortest:
            raise GrammarError(
                f"the shortest choice takes {node.shortest} tokens, and {budget} are left for it: raise max_tokens, or "
                "give shorter choices"
            )
        self._trie = trie
        self._node = node
        self._limited = False
        if not node.goes_on:
            self._finish_reason = "stop"

    @property
    def allowed(self) -> Allowed:
        return self._trie.allowed(self._node, self._left)

    @property
    def run(self) -> tuple[int, ...]:
        return self._walk()

    def _advance(self, token: Token) -> str | None:
        self._limited = self._limited or self._trie.limits(self._node, self._left + 1)
        if token.id != self._trie.end:
            node = self._trie.child(self._node, token.id)
            if node is None:
                raise ValueError(f"no choice goes on with token {token.id}")
            self._node = node
            if node.goes_on:
                return None
        return "length" if self._limited else "stop"


def _by_spelling(spellings: Sequence[tuple[tuple[int, ...], int]], end: int) -> dict[tuple[int, ...], int]:
    choice_of: dict[tuple[int, ...], int] = {}
    for ids, choice in spellings:
        if not ids or end in ids:
            raise GrammarError(f"choice {choice} is spelled {ids}: a spelling has ids, and the end id is none of them")
        other = choice_of.setdefault(ids, choice)
        if other != choice:
            raise GrammarError(
                f"choices {other} and {choice} are spelled alike (white space in front may not count): give each "
                "choice once"
            )
    return choice_of


def _costs(spellings: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the tokens of each of the sorted spellings; one that the next spelling goes on from needs the end id."""
    following = (*spellings[1:], ())
    return [len(ids) + (onward[: len(ids)] == ids) for ids, onward in zip(spellings, following, strict=True)]
