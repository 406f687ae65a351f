"""Settings as text: fields of dataclasses, read from flags, environment variables and TOML files.

The dataclass is the only place that names a setting. Its type says how a value is read, its docstring what it means;
flag and environment variable follow from its name:

| field | flag | environment variable |
|---|---|---|
| `max_open` | `--max-open N` | `PHOTONLITE_MAX_OPEN` |
| `drain_s` | `--drain-seconds S` | `PHOTONLITE_DRAIN_S` |
| `max_body_bytes` | `--max-body-mb MB` | `PHOTONLITE_MAX_BODY_BYTES` |
| `allow_hosts` | `--allow-host NAME ...` | `PHOTONLITE_ALLOW_HOSTS`, with commas |
"""

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from photonlite.errors import SettingsError
from photonlite.hints import nearest

PREFIX: Final = "PHOTONLITE_"
"""Of environment variables."""

MIB: Final = 1024 * 1024

_T = TypeVar("_T")
_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")
_KINDS: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a dataclass.

    Attributes:
        name: Of the field.
        kind: Type of its value, or of each of its values: bool, int, float or str.
        many: Whether it holds a tuple of values.
        optional: Whether it may be None.
        choices: The only values that it may have; empty for any.
        default: Its value unless given.
        flag: Of the command line.
        help: What the dataclass's docstring says about it.
    """

    name: str
    kind: type
    many: bool
    optional: bool
    choices: tuple[str, ...]
    default: Any
    flag: str
    help: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper()

    @property
    def in_megabytes(self) -> bool:
        """Whether the flag counts in MiB what the field counts in bytes."""
        return self.flag.endswith("-mb")

    def read(self, text: str, source: str) -> Any:
        """Read a value from text.

        Args:
            text: The value; "none" for None, and commas between several values.
            source: Where the text is from, for the error: a flag or a variable.

        Raises:
            SettingsError: The text is no such value.
        """
        text = text.strip()
        if self.optional and text.lower() == "none":
            return None
        try:
            if self.many:
                return tuple(self._read_one(part.strip()) for part in text.split(",") if part.strip())
            return self._read_one(text)
        except ValueError:
            raise self._unusable(text, source) from None

    def read_flag(self, text: str) -> Any:
        """Read the flag's value, which may be in another unit.

        Raises:
            SettingsError: The text is no such value.
        """
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
        """Check the type of a value from TOML.

        Raises:
            SettingsError: It has another type.
        """
        if self.many and isinstance(value, list):
            return tuple(self._check_one(one, source) for one in value)
        if self.many:
            raise self._unusable(value, source)
        return self._check_one(value, source)

    def _read_one(self, text: str) -> Any:
        if self.kind is bool:
            if text.lower() not in (*_TRUE, *_FALSE):
                raise ValueError(text)
            return text.lower() in _TRUE
        value = self.kind(text)
        if not text or (self.choices and value not in self.choices):
            raise ValueError(text)
        return value

    def _check_one(self, value: object, source: str) -> Any:
        if self.kind is float and type(value) is int:
            return float(value)
        if type(value) is not self.kind or (self.choices and value not in self.choices):
            raise self._unusable(value, source)
        return value

    def _unusable(self, value: object, source: str) -> SettingsError:
        one = " or ".join(map(repr, self.choices)) if self.choices else _KINDS[self.kind]
        wanted = f"values with commas between them, each {one}" if self.many else one
        return SettingsError(f"{source} is {value!r:.60}: give {wanted}, or leave it out")


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave.

    Attributes:
        value: The value.
        source: Where: a flag, a variable, or a file and its key.
    """

    value: Any
    source: str


@functools.cache
def settings_of(cls: type) -> dict[str, Setting]:
    """Return the settings of a dataclass by name.

    A field's metadata may name its "flag". Its types are bool, int, float, str, a Literal of texts, a tuple of one of
    these, or one of these and None. Fields of other types are no settings, nor is one whose "flag" is None.
    """
    hints, texts = typing.get_type_hints(cls), _described(cls)
    found = {}
    for field in dataclasses.fields(cls):
        parts = _parts(hints[field.name])
        flag = field.metadata.get("flag", "")
        if parts is not None and flag is not None:
            flag = flag or flag_of(field.name, many=parts[1])
            found[field.name] = Setting(field.name, *parts, field.default, flag, texts.get(field.name, ""))
    return found


def flag_of(name: str, *, many: bool = False) -> str:
    """Return the flag that a field has unless its metadata names another one."""
    for end, unit in (("_s", "_seconds"), ("_bytes", "_mb")):
        if name.endswith(end):
            name = name.removesuffix(end) + unit
    return "--" + (name.removesuffix("s") if many else name).replace("_", "-")


def from_environment(cls: type, environ: Mapping[str, str]) -> dict[str, Given]:
    """Read the settings of a dataclass that environment variables set. One that is empty counts as unset.

    Raises:
        SettingsError: A variable holds no such value.
    """
    found = {}
    for name, setting in settings_of(cls).items():
        text = environ.get(setting.variable, "").strip()
        if text:
            source = f"the environment variable {setting.variable}"
            found[name] = Given(setting.read(text, source), source)
    return found


def from_table(cls: type, table: Mapping[str, Any], where: str) -> dict[str, Given]:
    """Read the settings of a dataclass from a table of TOML.

    Args:
        cls: The dataclass.
        table: Names and values.
        where: The file, and the table in it, for errors.

    Raises:
        SettingsError: A name is unknown, or a value has the wrong type.
    """
    known = settings_of(cls)
    found = {}
    for name, value in table.items():
        if name not in known:
            raise unknown_name(f"{name!r} in {where}", name, known)
        source = f"{name!r} in {where}"
        found[name] = Given(known[name].check(value, source), source)
    return found


def from_assignments(cls: type, texts: Iterable[str], flag: str) -> dict[str, Given]:
    """Read settings of a dataclass from texts such as "max_batch=16".

    Raises:
        SettingsError: A text is no assignment, names no setting or holds no such value.
    """
    known = settings_of(cls)
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign:
            raise SettingsError(f"{flag} {text!r:.60} is not an assignment: write {flag} NAME=VALUE")
        if name not in known:
            raise unknown_name(f"{flag} {name!r:.60}", name, known)
        source = f"{flag} {name}"
        found[name] = Given(known[name].read(value, source), source)
    return found


def build(cls: type[_T], given: Mapping[str, Given], **more: Any) -> _T:
    """Make a dataclass; an error about a value says where that value is from.

    Raises:
        SettingsError: A value is out of its range.
    """
    try:
        return cls(**{name: one.value for name, one in given.items()}, **more)
    except SettingsError as error:
        sources = [one.source for name, one in given.items() if repr(name) in str(error)]
        if not sources:
            raise
        raise SettingsError(f"{error} (it was set by {' and '.join(sources)})") from error


def unknown_name(what: str, name: str, known: Iterable[str]) -> SettingsError:
    """Return the error for a name that is no setting, with the nearest one that is."""
    known = list(known)
    near = nearest(name, known)
    hint = f"the settings are {', '.join(known)}" if near is None else f"did you mean {near!r}?"
    return SettingsError(f"{what} is not a setting: {hint}")


def _parts(hint: Any) -> tuple[type, bool, bool, tuple[str, ...]] | None:
    """Return kind, many, optional and choices of a field's type; None where it is no setting."""
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType) and len(arguments) == 2 and arguments[1] is types.NoneType:
        inner = _parts(arguments[0])
        return None if inner is None else (inner[0], inner[1], True, inner[3])
    if typing.get_origin(hint) is typing.Literal:
        return str, False, False, arguments
    if typing.get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        inner = _parts(arguments[0])
        return None if inner is None else (inner[0], True, False, inner[3])
    return (hint, False, False, ()) if hint in _KINDS else None


def _described(cls: type) -> dict[str, str]:
    """Return what the "Attributes:" of a docstring says about each name."""
    text = (cls.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {8}(\w+): (.*(?:\n {9,}.*)*)", text, re.M)
    return {name: " ".join(said.split()) for name, said in entries}
