"""The options that every method takes beside its own arguments, and how they are checked."""

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, TypedDict

from photonlite.errors import SettingsError, UnknownArgumentError
from photonlite.hints import did_you_mean
from photonlite.request import SETTINGS


class Options(TypedDict, total=False):
    """Options of a call, by name; :class:`photonlite.VisionModel` says what they mean."""

    caller: str | None
    deadline_s: float | None
    cache_salt: str | None
    realtime: bool
    strict: bool


OPTIONS: Final = tuple(Options.__annotations__)
"""Names of the options."""

_MEANT: Final = {
    "timeout": "deadline_s",
    "timeout_s": "deadline_s",
    "deadline": "deadline_s",
    "deadline_ms": "deadline_s",
    "priority": "realtime",
    "salt": "cache_salt",
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "response_format": "schema",
    "json_schema": "schema",
    "output_type": "schema",
    "pattern": "regex",
    "label": "object",
    "text": "object",
    "prompt": "question",
    "refs": "spatial_refs",
}
"""Names in other libraries, and what they are called here."""

_THRESHOLDS: Final = frozenset(("threshold", "conf", "confidence", "box_threshold", "min_score", "score_threshold"))


@dataclass(frozen=True)
class CallOptions:
    """Options of a call that have been checked; see `Options`."""

    deadline_s: float | None = None
    cache_salt: str = ""
    realtime: bool = False
    strict: bool = False
    caller: str | None = None


def read_options(options: Mapping[str, Any], method: Callable[..., object]) -> CallOptions:
    """Check the options of a call of a public method.

    Raises:
        UnknownArgumentError: A name is neither an option nor an argument of the method.
        SettingsError: A value has the wrong type or is out of its range.
    """
    check_names((name for name in options if name not in OPTIONS), method)
    realtime, strict = options.get("realtime", False), options.get("strict", False)
    for name, value in (("realtime", realtime), ("strict", strict)):
        if not isinstance(value, bool):
            raise SettingsError(f"{name} is {value!r:.60}: give True or False")
    cache_salt, caller = (_text(name, options.get(name)) for name in ("cache_salt", "caller"))
    return CallOptions(_seconds(options.get("deadline_s")), cache_salt or "", realtime, strict, caller or cache_salt)


def check_names(names: Iterable[str], method: Callable[..., object]) -> None:
    """Raise `UnknownArgumentError` for the first name that a public method does not take."""
    for name in names:
        takes = (
            *(known for known in inspect.signature(method).parameters if known not in ("self", "options")),
            *OPTIONS,
        )
        if name not in takes:
            raise UnknownArgumentError(f"{method.__name__}() takes no argument {name!r:.60}{_advice(name, takes)}")


def _advice(name: str, takes: Collection[str]) -> str:
    if name in _THRESHOLDS and "object" in takes:
        return ": everything that is found has a score, so filter the result by that"
    meant = _MEANT.get(name, name)
    if meant in SETTINGS and "settings" in takes:
        return f": it is a setting, give it as settings={{{meant!r}: ...}}"
    return f"{did_you_mean(meant, takes)}: it takes {', '.join(takes)}"


def _text(name: str, text: object) -> str | None:
    """Check a cache salt or a caller here: the engine's thread hashes what it is given."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise SettingsError(f"{name} is of type {type(text).__name__}: give text, or None for none")
    try:
        return str.encode(text).decode()  # plain text, also where it was a subclass of str
    except UnicodeEncodeError as cause:
        half = f"U+{ord(cause.object[cause.start]):04X}, at {cause.start}"
        raise SettingsError(f"{name} holds half a character ({half}): give text that UTF-8 can write") from cause


def _seconds(deadline_s: object) -> float | None:
    if deadline_s is None:
        return None
    try:
        seconds = float(deadline_s) if isinstance(deadline_s, Real) and not isinstance(deadline_s, bool) else math.nan
    except OverflowError:  # a whole number larger than any float
        seconds = math.inf
    if not (math.isfinite(seconds) and seconds > 0):
        raise SettingsError(
            f"deadline_s is {deadline_s!r:.60}: give seconds from now, more than 0, such as 0.5, or None for none"
        )
    return seconds
