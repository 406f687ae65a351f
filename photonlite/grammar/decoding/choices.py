"""Answers out of a list: a tree of token ids.

```
"yes"  12 7           root ┬ 12 ─ 7 ─ yes
"no"   31                  └ 31 ─ no ─ 4 ─ none        at `no` the answer may end, or go on
"none" 31 4
```

The spellings are sorted, so that a place in the tree is a range of them; only places that somebody comes to are made.
Thousands of choices cost no more than their sorting.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.decoding.base import BudgetedGrammar
from photonlite.request import MAX_SCORED, Allowed, Token

MAX_CHOICES = 5000
"""Choices of one question."""

_MAX_SPELLINGS = 4 * MAX_CHOICES


@dataclass(eq=False, slots=True)
class _Node:
    """A place in the tree: spellings ``[low, high)``, which agree on their first `depth` ids.

    Attributes:
        low: See above.
        high: See above.
        depth: See above.
        choice: Index of the choice that is complete here.
        shortest: Ids of the shortest way on from here, the end id among them where it is needed.
        longest: The same of the longest.
        allowed: What may follow where tokens are not short, once somebody has asked.
    """

    low: int
    high: int
    depth: int
    choice: int | None
    shortest: int
    longest: int
    allowed: Allowed | None = None

    @property
    def goes_on(self) -> bool:
        """Whether any choice goes on from here."""
        return self.high - self.low > (self.choice is not None)


class ChoiceTrie:
    """The spellings of all choices.

    Args:
        spellings: Token ids and the index of the choice that they spell; a choice may have several spellings, but a
            spelling has one choice.
        end: Ends an answer that might go on.
        scored: Whether the probabilities of what may follow are wanted.

    Attributes:
        end: As given.
        root: Where every answer begins.
        shortest: Tokens of the shortest answer, the end id among them where it is needed.
        longest: The same of the longest.

    Raises:
        GrammarError: There is no spelling, an empty one, one with the end id, or one of two choices.
        GrammarTooLargeError: There are too many.
    """

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
        self.allowed(self.root, self.longest)  # thousands of ids, listed where nobody waits

    def follow(self, ids: Iterable[int]) -> _Node | None:
        """Walk down from the root; None where no choice begins so."""
        node: _Node | None = self.root
        for index in ids:
            if node is None:
                return None
            node = self.child(node, index)
        return node

    def child(self, node: _Node, index: int) -> _Node | None:
        """Go on from a place with an id; None where no choice does."""
        at = node.depth
        first = node.low + (node.choice is not None)
        low = bisect_left(self._spellings, index, first, node.high, key=lambda ids: ids[at])
        high = bisect_right(self._spellings, index, low, node.high, key=lambda ids: ids[at])
        return self._node(low, high, at + 1) if low < high else None

    def children(self, prefix: Iterable[int] = ()) -> tuple[int, ...]:
        """Give what may follow a prefix: the end id where a choice is complete that others go on from, then others."""
        node = self.follow(prefix)
        return () if node is None else self._listed(node)

    def choices(self, prefix: Iterable[int] = ()) -> frozenset[int]:
        """Give the choices that have a spelling with this prefix."""
        node = self.follow(prefix)
        below = () if node is None else self._spellings[node.low : node.high]
        return frozenset(self._choice_of[ids] for ids in below)

    def choice(self, ids: Sequence[int]) -> int | None:
        """Give the choice that an answer spells, with or without the end id behind it; None where it spells none."""
        return self._choice_of.get(tuple(ids[:-1] if ids and ids[-1] == self.end else ids))

    def allowed(self, node: _Node, left: int) -> Allowed:
        """Give what may follow with so many tokens left; 2 to `MAX_SCORED` of them are scored if wanted."""
        if left >= node.longest:
            if node.allowed is None:
                node.allowed = self._scored(self._listed(node))
            return node.allowed
        ends, ids = self._ends(node), self._onward(node)
        fitting = [index for index in ids if (child := self.child(node, index)) and 1 + child.shortest <= left]
        return self._scored((*ends, *fitting))

    def limits(self, node: _Node, left: int) -> bool:
        """Whether so few tokens left exclude something that might follow."""
        return left < node.longest and self.allowed(node, left).ids != self._listed(node)

    def _scored(self, ids: tuple[int, ...]) -> Allowed:
        return Allowed(ids, scored=ids if 2 <= len(ids) <= self._most_scored else ())

    def _listed(self, node: _Node) -> tuple[int, ...]:
        return (*self._ends(node), *self._onward(node))

    def _ends(self, node: _Node) -> tuple[int, ...]:
        return (self.end,) if node.choice is not None and node.goes_on else ()

    def _onward(self, node: _Node) -> list[int]:
        """Give the ids with which choices go on from a place, in order."""
        first = node.low + (node.choice is not None)
        return list(dict.fromkeys(ids[node.depth] for ids in self._spellings[first : node.high]))

    def _node(self, low: int, high: int, depth: int) -> _Node:
        first, costs = self._spellings[low], self._costs[low:high]
        choice = self._choice_of[first] if len(first) == depth else None
        return _Node(low, high, depth, choice, min(costs) - depth, max(costs) - depth)


class ChoiceGrammar(BudgetedGrammar):
    """One of the choices; where no other choice goes on from it, without an end id.

    It ends with "length" if the budget excluded a choice on the way, else with "stop".

    Args:
        trie: The choices.
        budget: Tokens at most, the prefix among them.
        prefix: Ids that are forced before anything is chosen.

    Raises:
        GrammarError: No choice begins with the prefix, or the shortest takes more tokens than the budget.
    """

    def __init__(self, trie: ChoiceTrie, budget: int, prefix: tuple[int, ...] = ()) -> None:
        super().__init__(budget)
        begun = trie.follow(prefix)
        if begun is None:
            raise GrammarError(f"no choice begins with the ids {prefix}")
        if budget < len(prefix) + begun.shortest:
            raise GrammarError(
                f"the shortest choice takes {len(prefix) + begun.shortest} tokens, and {budget} are left for it: "
                f"raise max_tokens, or give shorter choices"
            )
        self._trie = trie
        self._ahead = list(reversed(prefix))
        self._node = trie.root
        self._limited = False

    @property
    def allowed(self) -> Allowed:
        """What may stand at the next position."""
        return Allowed((self._ahead[-1],)) if self._ahead else self._trie.allowed(self._node, self._left)

    def _advance(self, token: Token) -> str | None:
        self._limited = self._limited or (not self._ahead and self._trie.limits(self._node, self._left + 1))
        if token.id != self._trie.end:
            node = self._trie.child(self._node, token.id)
            if node is None:
                raise ValueError(f"no choice goes on with token {token.id}")
            self._node = node
            if self._ahead:
                self._ahead.pop()
            if node.goes_on:
                return None
        return "length" if self._limited else "stop"


def _by_spelling(spellings: Sequence[tuple[tuple[int, ...], int]], end: int) -> dict[tuple[int, ...], int]:
    """Give the choice of each spelling."""
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
    """Give the tokens of each of the sorted spellings; one that others go on from needs the end id as well.

    The first of those stands right behind it.
    """
    following = (*spellings[1:], ())
    return [len(ids) + (onward[: len(ids)] == ids) for ids, onward in zip(spellings, following, strict=True)]
