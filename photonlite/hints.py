"""What a misspelled name may have meant, for error messages."""

import difflib
from collections.abc import Iterable


def nearest(name: object, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(str(name)[:100].lower(), list(known), n=1)), None)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return " (did you mean 'max_tokens'?)" for a name that is like a known one, else an empty text."""
    near = nearest(name, known)
    return "" if near is None else f" (did you mean {near!r}?)"
