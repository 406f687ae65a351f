"""What a misspelled name may have meant, for error messages."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return "did you mean 'max_tokens'? " for a name that is close to a known one, else an empty text."""
    close = difflib.get_close_matches(str(name)[:100], list(known), n=1)
    return f"did you mean {close[0]!r}? " if close else ""
