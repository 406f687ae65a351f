"""Multiples of a number as patterns over their decimal digits.

A step is `unit / 10**places` with whole numbers. Where the unit divides a power of ten, the last digits of a number
tell whether it is a multiple, and the digits before them are free:

```
step 0.25:  unit 25, places 2   ...(00|25|50|75)  spelled  7  7.25  7.5  7.75
step 50:    unit 50, places 0   ...(00|50)        spelled  700  750
```

Other multiples, such as those of 7, are listed, and need bounds.
"""

from decimal import Decimal

from photonlite.errors import GrammarError
from photonlite.grammar.json_schema.numbers import (
    INTEGER_DIGITS,
    NUMBER_DIGITS,
    Edge,
    integers,
    natural,
    numbers,
    whole_bounds,
)
from photonlite.grammar.regex.fragment import EMPTY, Fragment, either, literal, optional, sequence

MAX_LISTED = 5000  # endings, or multiples, that are written out


def multiples(step: Decimal, low: Edge | None, high: Edge | None, *, whole: bool) -> Fragment | None:
    """Match the multiples of a step above 0 between two bounds; None where there are none with so few digits.

    Raises a `GrammarError` where they can be written in no short way.
    """
    numerator, denominator = step.as_integer_ratio()
    if whole:  # a whole number is a multiple of 5/2 where it is one of 5
        step, denominator = Decimal(numerator), 1
    places = max(0, -step.normalize().as_tuple().exponent)  # type: ignore[operator]
    unit = numerator * 10**places // denominator
    if unit == 1:
        return integers(*whole_bounds(low, high)) if whole else numbers(low, high, places)
    scale = Decimal(10) ** places
    least, most = whole_bounds(_scaled(low, scale), _scaled(high, scale))
    limit = 10 ** (INTEGER_DIGITS if whole else NUMBER_DIGITS) - 1  # also of the digits behind the point
    bounded = least is not None and most is not None
    least, most = max(-limit, -limit if least is None else least), min(limit, limit if most is None else most)
    last = _last_digits(unit, places)
    if last is None:
        if not bounded or (most - least) // unit >= MAX_LISTED:
            raise GrammarError(
                f"multiples of {step:f} are listed, at most {MAX_LISTED}: give minimum and maximum, with fewer between"
            )
        listed = [_spelled(number, places) for number in range(-(-least // unit) * unit, most + 1, unit)]
        return either(listed) if listed else None
    parts = []
    if least < 0:
        behind = _magnitude(unit, places, last, max(unit, -most), -least)
        parts += [] if behind is None else [sequence(literal("-"), behind)]
    if most >= 0 and (found := _magnitude(unit, places, last, max(0, least), most)) is not None:
        parts.append(found)
    return either(parts) if parts else None


def _scaled(edge: Edge | None, scale: Decimal) -> Edge | None:
    return None if edge is None else Edge(edge.value * scale, edge.exclusive)


def _last_digits(unit: int, places: int) -> int | None:
    """Return how many digits decide about a multiple and its point; None where too many do."""
    digits = next((count for count in range(INTEGER_DIGITS) if not 10**count % unit), None)
    if digits is None or 10 ** max(digits, places) // unit > MAX_LISTED:
        return None
    return max(digits, places)


def _magnitude(unit: int, places: int, last: int, low: int, high: int) -> Fragment | None:
    """Match the multiples from `low` to `high`, 0 <= low, in units of the last place."""
    size = 10**last
    small = range(-(-low // unit) * unit, min(high, size - 1) + 1, unit)
    parts = [_spelled(number, places) for number in small]
    endings: dict[tuple[int, int], list[Fragment]] = {}
    for ending in range(0, size, unit):
        first, final = max(1, -(-(low - ending) // size)), (high - ending) // size
        if first <= final:
            endings.setdefault((first, final), []).append(_spelled(ending, places, last))
    parts += [sequence(natural(*ends), either(behind)) for ends, behind in endings.items()]
    return either(parts) if parts else None


def _spelled(number: int, places: int, digits: int | None = None) -> Fragment:
    """Spell a number of units of the last place, or its last `digits`, without zeros at the end of a fraction."""
    text = str(abs(number)).zfill(places + 1 if digits is None else digits)
    cut = len(text) - places
    fraction = text[cut:].rstrip("0")
    sign = "-" if number < 0 else ""
    point = literal(f".{fraction}") if fraction else optional(literal(".0")) if places else EMPTY
    return sequence(literal(sign + text[:cut]), point)
