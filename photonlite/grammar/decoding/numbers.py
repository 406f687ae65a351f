"""Typed answers whose places are whole numbers in text: `[341, 258, 397, 360]`.

An automaton has one letter for a number. `NumberAutomaton` puts digits in its place, up to those of a bound, which is
an argument of each answer: images of different sizes share one compiled automaton. Its states add to those of the
automaton how far a number has come:

```
base ── digit ──> base', 1 digit ── digit ──> base', 2 digits ── "," or "]" ──> ...        base': behind the number
```

Numbers are horizontal and vertical by turns. A number has at least one digit: only further ones cost more tokens than
the automaton knows of, and may stand while the budget has room for them.
"""

import functools
from typing import NamedTuple

from photonlite.grammar.automata.tables import AutomatonTables
from photonlite.grammar.decoding.automaton import DEAD_END, Automaton, TokenBytes
from photonlite.request import Allowed


class _Number(NamedTuple):
    """How far a number has come: 0 digits outside of one."""

    digits: int = 0
    is_zero: bool = False  # nothing may follow a leading 0
    vertical: bool = False  # which bound it has, or the next one will have


class NumberAutomaton:
    """An automaton with digits in place of its coordinates; see `Automaton` for the methods.

    `bounds` are the largest horizontal and vertical number.
    """

    def __init__(self, automaton: Automaton, bounds: tuple[int, int]) -> None:
        self._base = automaton
        self.tables: AutomatonTables = automaton.tables
        self.pieces: TokenBytes = automaton.pieces
        self.start, self.shortest = automaton.start, automaton.shortest
        self.bounds = bounds
        self._lengths = tuple(len(str(bound)) for bound in bounds)
        self._states = len(self.tables.delta)
        self._values = {index: digit for digit, index in enumerate(self.tables.ids.digits)}
        numbers = [
            _Number(digits, zero, vertical)
            for vertical in (False, True)
            for digits in range(max(self._lengths) + 1)
            for zero in (False, True)
        ]
        self._numbers = numbers
        self._places = {number: place for place, number in enumerate(numbers)}

    def letters(self, token_id: int) -> bytes:
        return self._base.letters(token_id)

    def is_complete(self, state: int) -> bool:
        return self._base.is_complete(self._split(state)[0])

    def distance(self, state: int) -> int:
        return self._base.distance(self._split(state)[0])

    def expects_number(self, state: int) -> bool:
        return self._base.expects_number(self._split(state)[0])

    def in_number(self, state: int) -> bool:
        return self._split(state)[1].digits > 0

    def after(self, state: int, token_id: int) -> int:
        base, number = self._split(state)
        digit = self._values.get(token_id)
        if digit is not None and self._takes_digit(number):
            return self._join(base, number._replace(digits=number.digits + 1))
        if digit is not None and self.expects_number(state):
            behind = self._base.after(base, self.tables.ids.coordinate or 0)
            return self._join(behind, number._replace(digits=1, is_zero=digit == 0))
        behind = self._base.after(base, token_id)
        vertical = number.vertical != (number.digits > 0)
        return DEAD_END if behind < 0 else self._join(behind, _Number(vertical=vertical))

    def allowed(self, state: int, left: int, before: bytes | None = None) -> Allowed:
        base, number = self._split(state)
        if self.expects_number(state):
            return _digits(self.tables.ids.digits)
        fits = self._takes_digit(number) and left > self._base.distance(base)
        return self._base.allowed(base, left, before, digits=fits)

    def limits(self, state: int, left: int, before: bytes | None = None) -> bool:
        base, number = self._split(state)
        if self.expects_number(state):
            return False
        excluded = self._takes_digit(number) and left <= self._base.distance(base)
        return excluded or self._base.limits(base, left, before)

    def _takes_digit(self, number: _Number) -> bool:
        return 0 < number.digits < self._lengths[number.vertical] and not number.is_zero

    def _split(self, state: int) -> tuple[int, _Number]:
        place, base = divmod(state, self._states)
        return base, self._numbers[place]

    def _join(self, base: int, number: _Number) -> int:
        return self._places[number] * self._states + base


@functools.lru_cache(maxsize=16)  # masks are cached by the object
def _digits(ids: tuple[int, ...]) -> Allowed:
    return Allowed(ids, scored=ids)
