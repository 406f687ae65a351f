"""Names of objects: one as text, or a list whose order numbers the classes of the result."""

import re
import warnings
from collections.abc import Sequence
from typing import Final

from photonlite.errors import PromptError
from photonlite.skills.base import MAX_OBJECT_CHARACTERS, clean_object, clean_text

MAX_NAMES: Final = 64
_JOINED: Final = re.compile(r"\S\s*,\s*\S|\S\s+and\s+\S", re.IGNORECASE)


class SeveralNamesWarning(UserWarning):
    """One name holds a comma or "and": it is looked for as one thing."""


def clean_names(names: object) -> tuple[str, ...]:
    """Return the names of one text or of a list, stripped.

    Raises:
        PromptError: A name is no text, empty, too long or given twice, or there are none or over 64 of them.
    """
    if isinstance(names, str):
        return (clean_object(names),)
    if not isinstance(names, Sequence) or isinstance(names, bytes | bytearray | memoryview):
        given = "missing" if names is None else f"of type {type(names).__name__}"
        raise PromptError(f"the object is {given}: give text, or a list of texts such as ['banana', 'cup']")
    if not names:
        raise PromptError("the list of objects is empty: give at least one name")
    if len(names) > MAX_NAMES:
        raise PromptError(f"the list has {len(names)} objects, over the limit of {MAX_NAMES}: split it into two calls")
    cleaned: dict[str, None] = {}
    for index, given in enumerate(names):
        name = clean_text(given, f"object at {index} of the list", MAX_OBJECT_CHARACTERS)
        if name in cleaned:
            raise PromptError(f"the list of objects holds {name!r:.60} twice: give each name once")
        cleaned[name] = None
    return tuple(cleaned)


def joins_names(name: str) -> bool:
    """Whether a name reads like several: "banana, cup" or "banana and cup"."""
    return _JOINED.search(name) is not None


def warn_of_joined(names: object, stacklevel: int) -> None:
    """Warn where one text reads like several names.

    The text is always the same, so that Python shows it once for each line of the caller, whatever the names are.
    """
    if isinstance(names, str) and joins_names(names):
        warnings.warn(
            "the object holds a comma or 'and', and is looked for as one thing: to look for several things give a "
            "list, such as ['banana', 'cup']; a list of one name keeps it as it is",
            SeveralNamesWarning,
            stacklevel=stacklevel + 1,
        )
