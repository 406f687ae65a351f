"""Lists of items whose places are whole numbers in text, such as the boxes and points of chat models.

```
[{"bbox_2d": [ number, number, number, number ], "label": "mug"}, {"bbox_2d": [ number ...
first ───────┘       separator                └─ more ────────────────────────┘
                                              └─ last: the end of the list, and the end id        none: an empty list
```

What stands around the numbers is spelled in advance, so that a step compares a handful of ids. A number above its bound
counts as the bound: to leave out the digit that exceeds it would turn 1203 of 1000 into 120. Models overshoot by
little, so no number exceeds `OVERSHOOT` times its bound, and most end behind as many digits as one within the bound
has: what follows is forced. Bounds are arguments of each grammar, so that images of different sizes need no
preparation.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from photonlite.grammar.decoding.grammars import BudgetedGrammar
from photonlite.request import Allowed, Token

Ids = tuple[int, ...]

OVERSHOOT = 2  # times its bound, the most that a number may be
NEAR_SHARE = 0.02  # digits that change a number by at most this share of its bound count towards its mass
_TINY = 1e-9  # a probability may round to 0 in float32


@dataclass(frozen=True, eq=False)
class ItemFormat:
    """How a list of items is spelled; compared by identity. No part begins with a digit."""

    numbers: int  # of an item
    digits: Ids  # of 0 to 9
    separator: Ids  # between two numbers
    first: Ids  # from the start to the first number
    more: Ids  # from the last number of an item to the first one of the next
    last: Ids  # from the last number to the end, the end id included
    none: Ids  # an empty list, the end id included

    def grammar(self, bounds: Sequence[int], budget: int, max_items: int) -> "ItemsGrammar":
        return ItemsGrammar(self, bounds, budget, max_items)

    def budget(self, items: int, bounds: Sequence[int]) -> int:
        """Return the tokens of the longest list of so many items."""
        numbers = sum(len(str(bound)) for bound in bounds) + (self.numbers - 1) * len(self.separator)
        return max(len(self.none), len(self.first) + items * (numbers + len(self.more)) + len(self.last))


@dataclass(frozen=True, slots=True)
class Item:
    """The numbers of an item, each at most its bound, and how sure the model was of them, in (0, 1]."""

    numbers: tuple[int, ...]
    score: float


class _Place:
    """A place in a list: what may stand there, and the number that is being written."""

    def __init__(self, form: ItemFormat, bounds: Sequence[int]) -> None:
        self.form, self.bounds = form, bounds
        self.ways: tuple[Ids, ...] = (form.first, form.none)  # what is left of the texts that may stand here
        self.digits: str | None = None  # of the number so far; None in a text
        self.numbers: list[int] = []  # whole ones of this item
        self.items = 0  # whole ones
        self.ended = False

    @property
    def ids(self) -> Ids:
        ways = dict.fromkeys(way[0] for way in self.ways)
        if self.digits is None:
            return tuple(ways)
        return (*self.next_digits, *(ways if self.digits else ()))

    @property
    def next_digits(self) -> Ids:
        """The digits that a number may go on with: it neither gets longer than its bound nor exceeds it twice over."""
        if self.digits is None or self.digits == "0":
            return ()
        bound = self.bounds[len(self.numbers)]
        if len(self.digits) == len(str(bound)):
            return ()
        return self.form.digits[: max(0, OVERSHOOT * bound - 10 * int(self.digits or "0") + 1)]

    @property
    def is_full(self) -> bool:
        """Whether a number ends here."""
        return self.digits is not None and not self.next_digits

    @property
    def common(self) -> Ids:
        """What all texts that may stand here begin with; nothing where a number may go on."""
        return _common(self.ways) if self.digits is None or self.is_full else ()

    @property
    def expected(self) -> Ids:
        """What probably follows the next token; nothing where it may be the digit of a number that goes on.

        Of several texts the first one is expected. A number is expected to end before it exceeds its bound, and else
        to go on.
        """
        text = _common([way for way in self.ways if way[0] == self.ways[0][0]])
        if self.digits is None or self.is_full:
            return text[1:]
        bound, value = self.bounds[len(self.numbers)], int(self.digits or "0")
        if 10 * value > bound:
            return text[1:]
        completes = len(self.digits) + 1 == len(str(bound)) or 100 * value > OVERSHOOT * bound
        return text if completes else ()

    def follow(self, token_id: int) -> None:
        """Take a token that may stand here."""
        form = self.form
        if self.digits is not None:
            if token_id in form.digits:
                self.digits += str(form.digits.index(token_id))
                return
            self.numbers.append(min(int(self.digits), self.bounds[len(self.numbers)]))
            self.digits = None
            self.items += len(self.numbers) == form.numbers
        self.ways = tuple(way[1:] for way in self.ways if way[0] == token_id)
        if self.ways[0]:
            return
        if token_id == form.none[-1]:
            self.ended = True
            return
        if len(self.numbers) == form.numbers:
            self.numbers = []
        self.digits = ""
        self.ways = (form.more, form.last) if len(self.numbers) == form.numbers - 1 else (form.separator,)


def _common(ways: Iterable[Ids]) -> Ids:
    """Return what all texts begin with."""
    return tuple(one[0] for one in itertools.takewhile(lambda one: len({*one}) == 1, zip(*ways, strict=False)))


class ItemsGrammar(BudgetedGrammar):
    """A list of at most `max_items` items; `bounds` are those of an item's numbers, in their order."""

    def __init__(self, form: ItemFormat, bounds: Sequence[int], budget: int, max_items: int) -> None:
        super().__init__(budget)
        self.form, self.bounds = form, tuple(bounds)
        self._place = _Place(form, self.bounds)
        self._max_items = max_items

    @property
    def allowed(self) -> Allowed:
        return allow_ids(self._place.ids)

    @property
    def run(self) -> Ids:
        return self._place.common[: self._left]

    @property
    def expected_run(self) -> Ids:
        return self._place.expected[: self._left - 1]

    def _advance(self, token: Token) -> str | None:
        self._place.follow(token.id)
        if self._place.ended:
            return "stop"
        return "max_objects" if self._place.items == self._max_items else None

    def read(self, tokens: Iterable[Token]) -> list[Item]:
        """Read the whole items of an answer, in its order.

        The score of an item is the probability that there is one more, times the geometric mean over its numbers of
        the probability mass around them: see `number_mass`, times the probability that the number ends where it does.
        All are the model's probabilities at temperature 1, among what the grammar allows.
        """
        place = _Place(self.form, self.bounds)
        found: list[Item] = []
        digits: list[Token] = []
        masses: list[float] = []
        more = 1.0
        for token in tokens:
            in_number, choice = place.digits is not None, place.ids
            bound = self.bounds[len(place.numbers) % self.form.numbers]
            place.follow(token.id)
            if in_number and token.id in self.form.digits:
                digits.append(token._replace(scores=token.scores[: sum(one in self.form.digits for one in choice)]))
                continue
            chosen = token.scores[choice.index(token.id)] if token.scores else 1.0
            if in_number:
                scores = dict(zip(choice, token.scores, strict=False))
                ends = sum(score for one, score in scores.items() if one not in self.form.digits) if scores else 1.0
                masses.append(number_mass(digits, self.form.digits, bound) * ends)
                digits = []
                chosen /= max(ends, _TINY)
            if len(found) < place.items:
                found.append(Item(tuple(place.numbers), _score(more, masses)))
                more, masses = 1.0, []
            more *= chosen
        return found


def number_mass(chosen: Sequence[Token], digits: Ids, bound: int) -> float:
    """Return the product over the digits of a number of the probability of those near the chosen one.

    Near are digits that change the number by at most `NEAR_SHARE` of its bound. Scores are those of the digits that may
    stand there, from 0 on.
    """
    mass = 1.0
    for place, token in enumerate(chosen):
        reach = NEAR_SHARE * bound / 10 ** (len(chosen) - 1 - place)
        digit = digits.index(token.id)
        near = [score for one, score in enumerate(token.scores) if abs(one - digit) <= reach]
        mass *= sum(near) if near else 1.0
    return mass


def _score(more: float, masses: Sequence[float]) -> float:
    logarithm = sum(math.log(max(mass, _TINY)) for mass in masses) / len(masses)
    return min(1.0, max(_TINY, more * math.exp(logarithm)))


@functools.lru_cache(maxsize=512)
def allow_ids(ids: Ids) -> Allowed:
    """Return what allows these ids; equal ones are the same object, which masks are cached by."""
    return Allowed(ids, scored=ids if len(ids) > 1 else ())
