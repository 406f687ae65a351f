"""Errors that may be kept: their tracebacks are text, and no frame holds a picture, a model or an engine any more."""

import traceback
from typing import TypeVar

_E = TypeVar("_E", bound=BaseException)


def without_frames(error: _E) -> _E:
    """Turn the tracebacks of an error and its causes into notes, which are printed with it.

    A frame refers to everything its function had in hand, and to the frames that called it: one error in a list of
    results would keep a decoded picture, or all weights.

    Args:
        error: Changed in place.

    Returns:
        The error.
    """
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if one.__traceback__ is not None:
            lines = "".join(traceback.format_tb(one.__traceback__))
            one.add_note(f"Traceback (most recent call last):\n{lines}".rstrip())
            one.__traceback__ = None
        one.__context__ = None
        one = one.__cause__
    return error
