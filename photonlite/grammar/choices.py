"""Answers out of a list: a tree of token ids.

```
"yes"  12 7           root ┬ 12 ─ 7 ─ yes
"no"   31                  └ 31 ─ no ─ 4 ─ none        at `no` the answer may end, or go on
"none" 31 4
```
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.base import BudgetedGrammar
from photonlite.request import MAX_SCORED, Allowed, Token

MAX_CHOICES = 5000
"""Choices of one question."""

_MAX_SPELLINGS = 4 * MAX_CHOICES


@dataclass(eq=False, slots=True)
class _Node:
    """A place in the tree; `choice` is the index of the choice that is complete there."""

    children: "dict[int, _Node]" = field(default_factory=dict)
    choice: int | None = None
    shortest: int = 0
    longest: int = 0
    allowed: Allowed | None = None


class ChoiceTrie:
    """The spellings of all choices.

    Args:
        spellings: Token ids and the index of the choice that they spell; a choice may have several spellings, but a
            spelling has one choice.
        end: Ends an answer that might go on.

    Attributes:
        end: As given.
        shortest: Tokens of the shortest answer, the end id among them where it is needed.
        longest: The same of the longest.

    Raises:
        GrammarError: There is no spelling, an empty one, one with the end id, or one of two choices.
        GrammarTooLargeError: There are too many.
    """

    def __init__(self, spellings: Sequence[tuple[tuple[int, ...], int]], end: int) -> None:
        if not spellings:
            raise GrammarError("there is nothing to choose from: give at least one choice")
        if len(spellings) > _MAX_SPELLINGS or len({choice for _, choice in spellings}) > MAX_CHOICES:
            raise GrammarTooLargeError(f"there are more than {MAX_CHOICES} choices: give fewer")
        self.end = end
        self._root = _Node()
        for ids, choice in spellings:
            self._insert(ids, choice)
        for node in _upwards(self._root):
            self._measure(node)
        self.shortest, self.longest = self._root.shortest, self._root.longest

    def _insert(self, ids: tuple[int, ...], choice: int) -> None:
        if not ids or self.end in ids:
            raise GrammarError(f"choice {choice} is spelled {ids}: a spelling has ids, and the end id is none of them")
        node = self._root
        for index in ids:
            node = node.children.setdefault(index, _Node())
        if node.choice not in (None, choice):
            raise GrammarError(
                f"choices {node.choice} and {choice} are spelled alike (white space in front may not count): give each "
                "choice once"
            )
        node.choice = choice

    def _measure(self, node: _Node) -> None:
        below = list(node.children.values())
        ends = [] if node.choice is None else [1 if below else 0]
        node.shortest = min([*ends, *(1 + child.shortest for child in below)])
        node.longest = max([*ends, *(1 + child.longest for child in below)])

    def follow(self, ids: Iterable[int]) -> "_Node | None":
        """Walk down from the root; None where no choice begins so."""
        node: _Node | None = self._root
        for index in ids:
            if node is None:
                return None
            node = node.children.get(index)
        return node

    def children(self, prefix: Iterable[int] = ()) -> tuple[int, ...]:
        """Give what may follow a prefix: the end id where a choice is complete that others go on from, then others."""
        node = self.follow(prefix)
        return () if node is None else self._listed(node)

    def _listed(self, node: _Node) -> tuple[int, ...]:
        ends = (self.end,) if node.choice is not None and node.children else ()
        return (*ends, *node.children)

    def choices(self, prefix: Iterable[int] = ()) -> frozenset[int]:
        """Give the choices that have a spelling with this prefix."""
        node = self.follow(prefix)
        below = () if node is None else _upwards(node)
        return frozenset(each.choice for each in below if each.choice is not None)

    def choice(self, ids: Sequence[int]) -> int | None:
        """Give the choice that an answer spells, with or without the end id behind it; None where it spells none."""
        node = self.follow(ids[:-1] if ids and ids[-1] == self.end else ids)
        return None if node is None else node.choice

    def allowed(self, node: _Node, left: int) -> Allowed:
        """Give what may follow with so many tokens left; children are scored where they are 2 to `MAX_SCORED`."""
        if left >= node.longest:
            if node.allowed is None:
                node.allowed = _scored(self._listed(node))
            return node.allowed
        fitting = (index for index, child in node.children.items() if 1 + child.shortest <= left)
        return _scored((*self._listed(node)[: node.choice is not None], *fitting))


class ChoiceGrammar(BudgetedGrammar):
    """One of the choices. It always ends with "stop": where no other choice goes on from it, without an end id.

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
        self._node = trie.follow(()) or begun

    @property
    def allowed(self) -> Allowed:
        """What may stand at the next position."""
        return Allowed((self._ahead[-1],)) if self._ahead else self._trie.allowed(self._node, self._left)

    def _advance(self, token: Token) -> str | None:
        if token.id == self._trie.end:
            return "stop"
        self._node = self._node.children[token.id]
        if self._ahead:
            self._ahead.pop()
        return None if self._node.children else "stop"


def _scored(ids: tuple[int, ...]) -> Allowed:
    return Allowed(ids, scored=ids if 2 <= len(ids) <= MAX_SCORED else ())


def _upwards(root: _Node) -> Iterator[_Node]:
    """Give every node after its children; spellings may be longer than Python's stack is deep."""
    order = [root]
    for node in order:
        order.extend(node.children.values())
    return reversed(order)
