"""Ranges of numbers as patterns over their digits.

An integer has at most 18 digits and so fits 64 bits. A number has at most 15 digits before the point and 15 behind it,
and no exponent. Near bounds it has at most 15 significant digits, which a binary64 tells apart: none is rounded onto a
bound that it must not reach. A bounded zero has no sign.
"""

import math
from dataclasses import dataclass
from decimal import Decimal

from photonlite.grammar.regex.fragment import EMPTY, Fragment, either, literal, optional, repeated, sequence

INTEGER_DIGITS = 18
NUMBER_DIGITS = 15

_DIGIT = Fragment("[0-9]", 1)
_POINT, _MINUS = literal("."), literal("-")


@dataclass(frozen=True, slots=True)
class Edge:
    value: Decimal
    exclusive: bool = False


def integers(low: int | None, high: int | None) -> Fragment | None:
    """Match the integers from `low` to `high`, both included; None where there are none with so few digits."""
    limit = 10**INTEGER_DIGITS - 1
    low, high = max(-limit, -limit if low is None else low), min(limit, limit if high is None else high)
    parts = []
    if low < 0 and low <= high:
        parts.append(sequence(_MINUS, natural(max(1, -high), -low)))
    if max(0, low) <= high:
        parts.append(natural(max(0, low), high))
    return either(parts) if parts else None


def whole_bounds(low: Edge | None, high: Edge | None) -> tuple[int | None, int | None]:
    """Return the least and the largest whole number between two bounds."""
    return (
        None if low is None else math.floor(low.value) + 1 if low.exclusive else math.ceil(low.value),
        None if high is None else math.ceil(high.value) - 1 if high.exclusive else math.floor(high.value),
    )


def numbers(low: Edge | None, high: Edge | None, places: int = NUMBER_DIGITS) -> Fragment | None:
    """Match the decimal numbers between two bounds, with at most so many digits behind the point; None for none."""
    if low is None and high is None and places >= NUMBER_DIGITS:
        return UNBOUNDED
    zero = Edge(Decimal(0))
    edges = [edge for edge in (low, high) if edge is not None]
    whole = max((len(str(abs(int(_clipped(edge.value))))) for edge in edges if abs(edge.value) >= 1), default=0)
    digits = max(0, min(places, NUMBER_DIGITS - whole))
    parts = []
    if low is None or low.value < 0:
        # The range behind the sign: negated, and without zero.
        nearest = Edge(Decimal(0), exclusive=True) if high is None or high.value >= 0 else _turned(high)
        parts.append((_MINUS, _magnitude(nearest, None if low is None else _turned(low), digits)))
    if high is None or high.value >= 0:
        parts.append((EMPTY, _magnitude(low if low is not None and low.value >= 0 else zero, high, digits)))
    spelled = [sequence(sign, part) for sign, part in parts if part is not None]
    return either(spelled) if spelled else None


_FRACTION = sequence(_POINT, repeated(_DIGIT, 1, NUMBER_DIGITS))
_ABOVE_ZERO = sequence(Fragment("[1-9]", 1), repeated(_DIGIT, 0, NUMBER_DIGITS - 1))
UNBOUNDED = either(
    [
        sequence(optional(_MINUS), either([_ABOVE_ZERO, literal("0")]), _FRACTION),
        sequence(optional(_MINUS), _ABOVE_ZERO),
        literal("0"),
    ]
)


def _turned(edge: Edge) -> Edge:
    return Edge(-edge.value, edge.exclusive)


def _clipped(value: Decimal) -> Decimal:
    limit = Decimal(10) ** NUMBER_DIGITS
    return max(-limit, min(limit, value))


def natural(low: int, high: int) -> Fragment:
    """Match the integers from `low` to `high`, 0 <= low <= high."""
    shortest, longest = len(str(low)), len(str(high))
    # Lengths whose numbers all match share one part, 0 aside.
    first = shortest if low == 10 ** (shortest - 1) else shortest + 1
    last = longest if high == 10**longest - 1 else longest - 1
    whole = [sequence(_one_of(1, 9), repeated(_DIGIT, first - 1, last - 1))] if first <= last else []
    lengths = [length for length in (shortest, longest) if not first <= length <= last]
    parts = [
        _same_length(str(max(low, 10 ** (length - 1) if length > 1 else 0)), str(min(high, 10**length - 1)))
        for length in dict.fromkeys(lengths)
    ]
    return either([*parts, *whole])


def _same_length(low: str, high: str) -> Fragment:
    if low == high:
        return literal(low)
    if low[0] == high[0]:
        return sequence(literal(low[0]), _same_length(low[1:], high[1:]))
    rest = len(low) - 1
    first, last, parts = int(low[0]), int(high[0]), []
    if low[1:].strip("0"):
        parts.append(sequence(literal(low[0]), _same_length(low[1:], "9" * rest)))
        first += 1
    behind = []
    if high[1:].strip("9"):
        behind.append(sequence(literal(high[0]), _same_length("0" * rest, high[1:])))
        last -= 1
    if first <= last:
        parts.append(sequence(_one_of(first, last), repeated(_DIGIT, rest, rest)))
    return either([*parts, *behind])


def _one_of(first: int, last: int) -> Fragment:
    return literal(str(first)) if first == last else Fragment(f"[{first}-{last}]", 1)


def _magnitude(low: Edge, high: Edge | None, digits: int) -> Fragment | None:
    """Match numbers from 0 up without a sign, with at most so many digits behind the point."""
    limit = Edge(Decimal(10) ** NUMBER_DIGITS, exclusive=True)
    high = limit if high is None or high.value >= limit.value else high
    if low.value > high.value:
        return None
    first, last = int(low.value), int(high.value)
    above, below = (_digits_of(low), low.exclusive), (_digits_of(high), high.exclusive)
    if first == last:
        return _with_fraction(literal(str(first)), _fraction(above, below, digits))
    parts = [
        _with_fraction(literal(str(first)), _fraction(above, None, digits)),
        _with_fraction(literal(str(last)), _fraction(None, below, digits)),
    ]
    if first + 1 < last:
        parts.append(_with_fraction(natural(first + 1, last - 1), _fraction(None, None, digits)))
    kept = [part for part in parts if part is not None]
    return either(kept) if kept else None


def _digits_of(edge: Edge) -> str:
    """Return the digits behind the point."""
    _, _, digits = f"{edge.value:f}".partition(".")
    return digits.rstrip("0")


@dataclass(frozen=True, slots=True)
class _Digits:
    """Digits behind the point: whether there may be none, and what matches one or more, if anything does."""

    none: bool
    some: Fragment | None


_Bound = tuple[str, bool] | None  # digits behind the point, and whether exactly these are excluded


def _with_fraction(whole: Fragment, digits: _Digits) -> Fragment | None:
    if digits.some is None:
        return whole if digits.none else None
    part = sequence(_POINT, digits.some)
    return sequence(whole, optional(part) if digits.none else part)


def _fraction(low: _Bound, high: _Bound, left: int) -> _Digits:
    """Match at most `left` digits that are between `low` and `high` when read behind a point."""
    if low is None and high is None:
        return _Digits(True, repeated(_DIGIT, 1, left) if left else None)
    none = (low is None or low == ("", False)) and (high is None or high != ("", True))
    if not left:
        return _Digits(none, None)
    following: dict[tuple[_Bound, _Bound], list[int]] = {}
    for digit in range(10):
        if (low is None or digit >= _first(low)) and (high is None or digit <= _first(high)):
            following.setdefault((_next(low, digit), _next(high, digit)), []).append(digit)
    parts = []
    for (below, above), digits in following.items():
        rest = _fraction(None if below == ("", False) else below, above, left - 1)
        some = [optional(rest.some) if rest.none else rest.some] if rest.some is not None else []
        if some or rest.none:
            parts.append(sequence(_one_of(digits[0], digits[-1]), *some))
    return _Digits(none, either(parts) if parts else None)


def _first(bound: tuple[str, bool]) -> int:
    return int(bound[0][:1] or 0)


def _next(bound: _Bound, digit: int) -> _Bound:
    """Return the bound behind a digit: none, if it is not the bound's own digit."""
    return None if bound is None or digit != _first(bound) else (bound[0][1:], bound[1])
