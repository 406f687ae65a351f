"""Lists of boxes by their corners, each with its label, and before that perhaps the codes of an outline.

```
coordinate coordinate coordinate coordinate  code ... code  label " ; " coordinate ...
y_min      x_min      y_max      x_max                      label end                       or the end at once: no items
```

Whether there is a first item is decided against the end id; whether there is another one, by what follows a label.
Labels and separators are spelled in advance. Where several labels were asked for, the model chooses among them.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from photonlite.grammar.decoding.grammars import BudgetedGrammar
from photonlite.grammar.decoding.items import allow_ids
from photonlite.request import Allowed, Token

Ids = tuple[int, ...]

CORNERS = 4  # coordinates of a box: y_min, x_min, y_max, x_max


@dataclass(frozen=True, eq=False)
class CornerIds:
    """The ids of a checkpoint that stand for places; compared by identity, as masks are cached by what they allow."""

    coordinates: Ids  # of all bins; the first one stands for all of them in answers
    codes: Ids  # of an outline's codes
    end: int

    @functools.cached_property
    def first(self) -> Allowed:
        coordinate = self.coordinates[0]
        return Allowed((*self.coordinates, self.end), coordinate=coordinate, end=self.end)

    @functools.cached_property
    def coordinate(self) -> Allowed:
        return Allowed(self.coordinates[:1], coordinate=self.coordinates[0])

    @functools.cached_property
    def code(self) -> Allowed:
        return Allowed(self.codes)


@dataclass(frozen=True, eq=False)
class CornersFormat:
    """How a list of items is spelled."""

    ids: CornerIds
    labels: tuple[str, ...]
    more: tuple[Ids, ...]  # each label in front of another item, separator included
    last: tuple[Ids, ...]  # each label at the end, the end id included
    codes: int = 0  # of an item

    def budget(self, items: int, bounds: Sequence[int]) -> int:
        """Return the tokens of the longest list of so many items."""
        return 1 + items * (CORNERS + self.codes + max(map(len, (*self.more, *self.last))))

    def grammar(self, bounds: Sequence[int], budget: int, max_items: int) -> "CornersGrammar":
        return CornersGrammar(self, budget, max_items)


@dataclass(frozen=True, slots=True)
class CornerItem:
    """An item of an answer.

    The probability of the first corner is that there is this item, and that it has this label.
    """

    corners: tuple[Token, ...]
    codes: Ids
    label: str


class _Walk:
    """A place in a list."""

    def __init__(self, form: CornersFormat) -> None:
        self.form = form
        self.place = 0  # coordinates and codes of this item so far
        self.ways: list[tuple[int, Ids]] = []  # labels that may stand here, and what is left of how they are spelled
        self.label: int | None = None  # of the newest item, by its number; None while that is open
        self.items = 0  # whose coordinates and codes are whole
        self.ended = False

    @property
    def allowed(self) -> Allowed:
        ids = self.form.ids
        if self.ways:
            return allow_ids(tuple(dict.fromkeys(left[0] for _, left in self.ways)))
        if self.place >= CORNERS:
            return ids.code
        return ids.coordinate if self.place or self.items else ids.first

    def follow(self, token_id: int) -> None:
        """Take a token that may stand here."""
        form = self.form
        if self.ways:
            self._narrow([(label, left[1:]) for label, left in self.ways if left[0] == token_id])
            if not self.ways[0][1]:
                self.place, self.ways, self.ended = 0, [], token_id == form.ids.end
        elif token_id == form.ids.end:
            self.ended = True
        else:
            self.place, self.label = self.place + 1, None
            if self.place == CORNERS + form.codes:
                self.items += 1
                self._narrow([pair for ways in (form.more, form.last) for pair in enumerate(ways)])

    def _narrow(self, ways: list[tuple[int, Ids]]) -> None:
        labels = {label for label, _ in ways}
        self.ways, self.label = ways, labels.pop() if len(labels) == 1 else None


class CornersGrammar(BudgetedGrammar):
    """A list of at most `max_items` items."""

    def __init__(self, form: CornersFormat, budget: int, max_items: int) -> None:
        super().__init__(budget)
        self.form = form
        self._place = _Walk(form)
        self._max_items = max_items

    @property
    def allowed(self) -> Allowed:
        return self._place.allowed

    def _advance(self, token: Token) -> str | None:
        walk = self._place
        walk.follow(token.id)
        if walk.ended:
            return "stop"
        return "max_objects" if walk.items == self._max_items and walk.label is not None else None

    def read(self, tokens: Iterable[Token]) -> list[CornerItem]:
        """Read the whole items of an answer, in its order; an item whose label was cut short is left out."""
        walk = _Walk(self.form)
        found: list[CornerItem] = []
        parts: list[Token] = []
        sure = 1.0  # that there is the item that is being read, and that it has its label
        for token in tokens:
            spelling, scored = bool(walk.ways), walk.allowed.scored
            walk.follow(token.id)
            sure *= token.scores[scored.index(token.id)] if token.scores else token.probability
            if not spelling and not walk.ended:
                parts.append(token)
            if parts and walk.label is not None:
                corners = parts[0]._replace(probability=sure), *parts[1:CORNERS]
                codes = tuple(one.id for one in parts[CORNERS:])
                found.append(CornerItem(corners, codes, self.form.labels[walk.label]))
                parts, sure = [], 1.0
        return found
