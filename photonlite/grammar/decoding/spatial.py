"""The grammars of points, boxes and outlines.

```
point    x ─ y ─┐            detect   x ─ y ─ size ─┐          segment   x ─ y ─ size ─ path ... end
         ^──────┴─ end                ^─────────────┴─ end               └─ end
```

A list of objects may end only where an `x` may stand; it may be empty. Where one id alone is allowed, it is forced and
not sampled. Skills drop an object that the budget cuts short.
"""

import functools
from typing import ClassVar

from photonlite.grammar.decoding.base import BudgetedGrammar, PathIds, Vocabulary
from photonlite.request import Allowed, Token

ARITY = {"M": 2, "L": 2, "H": 1, "V": 1, "C": 6, "S": 4, "Q": 4, "T": 2, "Z": 0}
"""Integers that each path command takes. Arcs (A) are left out: flags and angles do not fit a grid to 960."""


class PointGrammar(BudgetedGrammar):
    """Points: x, y, then x of the next point or the end."""

    fields: ClassVar[tuple[str, ...]] = ("x", "y")

    def __init__(self, vocabulary: Vocabulary, budget: int, max_objects: int) -> None:
        super().__init__(budget)
        coordinate, size, end = vocabulary.coordinate, vocabulary.size, vocabulary.end
        self._end = end
        self._allowed = {
            # The coordinate comes first: in a tie the list goes on.
            "x": Allowed(None if vocabulary.any_id_continues else (coordinate, end), coordinate=coordinate, end=end),
            "y": Allowed((coordinate,), coordinate=coordinate),
            "size": Allowed((size,), size=size),
        }
        self._field = 0
        self._objects_left = max_objects

    @property
    def allowed(self) -> Allowed:
        return self._allowed[self.fields[self._field]]

    def _advance(self, token: Token) -> str | None:
        if self._field == 0 and token.id == self._end:
            return "stop"
        self._field = (self._field + 1) % len(self.fields)
        if self._field == 0:
            self._objects_left -= 1
        return "max_objects" if self._objects_left == 0 else None


class DetectGrammar(PointGrammar):
    """Boxes: centre x, centre y, size, then x of the next box or the end."""

    fields = ("x", "y", "size")


class SegmentGrammar(BudgetedGrammar):
    """One outline: centre x (or the end: no object), centre y, size, then SVG path tokens and the end.

    The path is commands, each with groups of its integers, which may follow a minus.
    """

    def __init__(self, vocabulary: Vocabulary, path_ids: PathIds, budget: int) -> None:
        super().__init__(budget)
        self._box = DetectGrammar(vocabulary, budget, max_objects=1)  # of this budget
        self._ids = path_ids
        self._end = vocabulary.end
        self._begun = False
        self._arity = 0  # of the last command
        self._integers = 0  # after the last command
        self._negative = False

    @property
    def allowed(self) -> Allowed:
        if not self._box.finished:
            return self._box.allowed
        whole = self._arity == 0 or (self._integers > 0 and self._integers % self._arity == 0)
        return _path_choices(self._ids, self._end, self._begun, self._negative, self._arity > 0, whole)

    def _advance(self, token: Token) -> str | None:
        if not self._box.finished:
            self._box.accept(token)
            return "stop" if self._box.finish_reason == "stop" else None
        if token.id == self._end:
            return "stop"
        if token.id in self._ids.minus:
            self._negative = True
        elif (letter := self._ids.commands.get(token.id)) is not None:
            self._begun, self._arity, self._integers = True, ARITY[letter.upper()], 0
        else:
            self._integers, self._negative = self._integers + 1, False
        return None


# Asked for at every token of an outline, with few different arguments.
@functools.lru_cache(maxsize=64)
def _path_choices(ids: PathIds, end: int, begun: bool, negative: bool, takes_integers: bool, whole: bool) -> Allowed:
    chosen: list[int] = []
    if not begun:
        chosen += [token_id for token_id, letter in ids.commands.items() if letter in "Mm"]
    else:
        if takes_integers:
            chosen += ids.integers
            chosen += [] if negative else sorted(ids.minus)
        if whole and not negative:
            chosen += [*ids.commands, end]
    return Allowed(tuple(chosen))
