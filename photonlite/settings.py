"""Settings as text: fields of dataclasses, read from flags, environment variables and TOML files.

A setting is described once, by its dataclass field: the type says how a value is read, `setting` its range, and the
docstring its meaning. Flag and environment variable follow from the name:

| field | flag | environment variable |
|---|---|---|
| `max_open` | `--max-open N` | `PHOTONLITE_MAX_OPEN` |
| `drain_s` | `--drain-seconds S` | `PHOTONLITE_DRAIN_S` |
| `max_body_bytes` | `--max-body-mb MB` | `PHOTONLITE_MAX_BODY_BYTES` |
| `allow_hosts` | `--allow-host NAME ...` | `PHOTONLITE_ALLOW_HOSTS`, separated by commas |
"""

import dataclasses
import functools
import math
import os
import re
import stat
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from photonlite.errors import SettingsError
from photonlite.hints import nearest

PREFIX: Final = "PHOTONLITE_"
"""Prefix of environment variables."""

MIB: Final = 1024 * 1024

_T = TypeVar("_T")
_BOOLS: Final = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
_KINDS: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def setting(
    default: Any,
    *,
    flag: str | None = "",
    least: float | None = None,
    above: float | None = None,
    most: float = math.inf,
) -> Any:
    """Declare a dataclass field with a range: from `least` or above `above`, up to `most`, never NaN or infinite.

    `flag` replaces the one that follows from the name; None is for a field that users cannot set.
    """
    return dataclasses.field(default=default, metadata={"flag": flag, "range": (least, above, most)})


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: type  # of the value, or of each of its values: bool, int, float or str
    many: bool  # a tuple of values
    optional: bool  # may be None
    choices: tuple[str, ...]  # the allowed values; empty for any
    default: Any
    flag: str
    help: str  # from the dataclass's docstring
    least: float | None  # these three as for `setting`
    above: float | None
    most: float

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def in_megabytes(self) -> bool:
        """Whether the flag is in MiB while the field is in bytes."""
        return self.flag.endswith("-mb")

    @property
    def expected(self) -> str:
        """What one value must be, for error messages."""
        if self.choices:
            return " or ".join(map(repr, self.choices))
        limited, limits = self.most < math.inf, ""
        if self.least is not None:
            limits = f" from {self.least} to {self.most}" if limited else f" of at least {self.least}"
        elif self.above is not None:
            limits = f" above {self.above} and at most {self.most}" if limited else f" above {self.above}"
        return _KINDS[self.kind] + limits

    def read(self, text: str, source: str) -> Any:
        """Read a value from text: "none" for None, commas between several values; errors name the source."""
        text = text.strip()
        if self.optional and text.lower() == "none":
            return None
        try:
            if self.many:
                return tuple(self._read_one(part.strip()) for part in text.split(",") if part.strip())
            return self._read_one(text)
        except ValueError:
            raise self._wrong_type(text, source) from None

    def read_flag(self, text: str) -> Any:
        """Read the flag's value, which may be in MiB."""
        if not self.in_megabytes:
            return self.read(text, self.flag)
        try:
            megabytes = float(text)
        except ValueError:
            megabytes = math.nan
        if not 0 < megabytes < 1e9:
            raise SettingsError(f"{self.flag} is {text:.40}: give a number above 0, such as 32")
        return max(1, int(megabytes * MIB))

    def check(self, value: object, source: str) -> Any:
        """Check a value from TOML, where lists stand for tuples and whole numbers for any number."""
        result = tuple(map(self._widened, value)) if self.many and isinstance(value, list) else self._widened(value)
        if not self.accepts(result):
            raise self._wrong_type(value, source)
        return result

    def accepts(self, value: Any) -> bool:
        if value is None or (self.many and not isinstance(value, tuple | list)):
            return value is None and self.optional
        return all(map(self._accepts_one, value)) if self.many else self._accepts_one(value)

    def _accepts_one(self, value: Any) -> bool:
        if self.kind not in (int, float):
            return isinstance(value, self.kind) and (not self.choices or value in self.choices)
        if not isinstance(value, int | self.kind) or isinstance(value, bool):
            return False
        if self.kind is float and not abs(value) <= sys.float_info.max:  # NaN, infinite, or a larger whole number
            return False
        above_low = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        return above_low and value <= self.most

    def _widened(self, value: Any) -> Any:
        return float(value) if self.kind is float and type(value) is int else value

    def _read_one(self, text: str) -> Any:
        value = _BOOLS.get(text.lower()) if self.kind is bool else self.kind(text)
        if not text or value is None or (self.choices and value not in self.choices):
            raise ValueError(text)
        return value

    def _wrong_type(self, value: object, source: str) -> SettingsError:
        wanted = f"values with commas between them, each {self.expected}" if self.many else self.expected
        return SettingsError(f"{source} is {value!r:.60}: give {wanted}, or leave it out")


def user_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return photonlite's folder in the user's cache."""
    cache = environ.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    return (Path(cache) if os.path.isabs(cache) else with_home("~/.cache")) / "photonlite"


def with_home(path: str | Path) -> Path:
    """Return a path with the home folder for "~"; raises a SettingsError for a user without one, as in containers."""
    try:
        return Path(path).expanduser()
    except RuntimeError as cause:
        raise SettingsError(f"the home folder in {str(path)!r} is not known: set HOME, or name a folder") from cause


def written_by_others(status: os.stat_result) -> str | None:
    """Return how it shows that other users can change a file or a folder; None if they cannot."""
    mode = stat.S_IMODE(status.st_mode)
    shared = os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH)  # on Windows the mode does not tell
    return f"can be written by other users (mode {mode:o})" if shared else None


class Given(NamedTuple):
    """A value and its source: a flag, an environment variable, or a file and its key."""

    value: Any
    source: str


@functools.cache
def settings_of(cls: type) -> dict[str, Setting]:
    """Return a dataclass's settings by name: the fields whose type `_parts` can read and whose flag is not None."""
    hints, texts = typing.get_type_hints(cls), _descriptions(cls)
    found = {}
    for field in dataclasses.fields(cls):
        parts = _parts(hints[field.name])
        flag = field.metadata.get("flag", "")
        if parts is not None and flag is not None:
            flag = flag or flag_of(field.name, many=parts[1])
            help, limits = texts.get(field.name, ""), field.metadata.get("range", (None, None, math.inf))
            found[field.name] = Setting(field.name, *parts, field.default, flag, help, *limits)
    return found


def flag_of(name: str, *, many: bool = False) -> str:
    for end, unit in (("_s", "_seconds"), ("_bytes", "_mb")):
        if name.endswith(end):
            name = name.removesuffix(end) + unit
    return "--" + (name.removesuffix("s") if many else name).replace("_", "-")


def check_settings(settings: Any, subject: str) -> None:
    """Convert numbers to plain Python numbers and check types and ranges; `subject` begins the message of an error."""
    make_plain(settings)
    cls: type = type(settings)
    for name, one in settings_of(cls).items():
        value = getattr(settings, name)
        if one.kind is not bool and not one.accepts(value):
            wanted = f"a tuple, each value {one.expected}" if one.many else one.expected
            raise SettingsError(f"{subject} {name!r} is {value!r:.60}: it must be {'None or ' * one.optional}{wanted}")


def from_environment(cls: type, environ: Mapping[str, str]) -> dict[str, Given]:
    """Read the settings of a dataclass from environment variables; an empty one counts as unset."""
    found = {}
    for name, one in settings_of(cls).items():
        if text := environ.get(one.variable, "").strip():
            source = f"the environment variable {one.variable}"
            found[name] = Given(one.read(text, source), source)
    return found


def from_table(cls: type, table: Mapping[str, Any], where: str) -> dict[str, Given]:
    """Read the settings of a dataclass from a TOML table; `where` names the file and the table in errors."""
    found = {}
    for name, value in table.items():
        source = f"{name!r} in {where}"
        found[name] = Given(_known(cls, name, source).check(value, source), source)
    return found


def from_assignments(cls: type, texts: Iterable[str], flag: str) -> dict[str, Given]:
    """Read the settings of a dataclass from texts such as "max_batch=16", which were given by a flag."""
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign:
            raise SettingsError(f"{flag} {text!r:.60} is not an assignment: write {flag} NAME=VALUE")
        source = f"{flag} {name}"
        found[name] = Given(_known(cls, name, f"{flag} {name!r:.60}").read(value, source), source)
    return found


def _known(cls: type, name: str, source: str) -> Setting:
    known = settings_of(cls)
    if name not in known:
        raise unknown_name(source, name, known)
    return known[name]


def build(cls: type[_T], given: Mapping[str, Given], **more: Any) -> _T:
    """Make a dataclass; a `SettingsError` about a value names the value's source."""
    try:
        return cls(**{name: one.value for name, one in given.items()}, **more)
    except SettingsError as error:
        sources = [one.source for name, one in given.items() if repr(name) in str(error)]
        if not sources:
            raise
        raise SettingsError(f"{error} (it was set by {' and '.join(sources)})") from error


def unknown_name(what: str, name: str, known: Iterable[str]) -> SettingsError:
    known = list(known)
    near = nearest(name, known)
    hint = f"the settings are {', '.join(known)}" if near is None else f"did you mean {near!r}?"
    return SettingsError(f"{what} is not a setting: {hint}")


def plain(value: Any) -> Any:
    """Convert numbers, also in a tuple, to `int` or `float`; return anything else, bools included, unchanged.

    NumPy numbers pass type checks for numbers, but overflow in later arithmetic.
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
    """Convert every number of a dataclass, also a frozen one, with `plain`: the first step of its `__post_init__`."""
    for field in dataclasses.fields(settings):
        object.__setattr__(settings, field.name, plain(getattr(settings, field.name)))


def _parts(hint: Any) -> tuple[type, bool, bool, tuple[str, ...]] | None:
    """Return kind, many, optional and choices of a field's type; None where it is no setting."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return str, False, False, arguments
    optional = isinstance(hint, types.UnionType) and arguments[1:] == (types.NoneType,)
    many = typing.get_origin(hint) is tuple and arguments[1:] == (Ellipsis,)
    if not (optional or many):
        return (hint, False, False, ()) if hint in _KINDS else None
    inner = _parts(arguments[0])
    return None if inner is None else (inner[0], inner[1] or many, inner[2] or optional, inner[3])


def _descriptions(cls: type) -> dict[str, str]:
    """Return the "Attributes:" of a dataclass's docstring by name."""
    text = (cls.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {8}(\w+): (.*(?:\n {9,}.*)*)", text, re.M)
    return {name: " ".join(said.split()) for name, said in entries}
