"""Numbers that callers give, of whatever type, as plain Python numbers."""

from dataclasses import fields
from numbers import Integral, Real
from typing import Any


def plain(value: Any) -> Any:
    """Return a number, or a tuple of numbers, as `int` or `float`; anything else as it is, True and False included.

    Numbers of NumPy pass as numbers where they are checked, and overflow where they are added up later.
    """
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    try:
        return int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:  # a fraction larger than any float
        return value


def make_plain(settings: Any) -> None:
    """Make every number in a dataclass plain, a frozen one too: the first thing that its `__post_init__` does."""
    for field in fields(settings):
        object.__setattr__(settings, field.name, plain(getattr(settings, field.name)))
