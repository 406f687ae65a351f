"""Checked values of the objects in a config.json; every error is a ConfigError that names the entry."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from photonlite.errors import ConfigError

_MOST, _FEW = 2**24, 1000  # sizes of a model are below these: others would take all memory before a tensor is read


@dataclass(frozen=True)
class Section:
    """Reads checked values of one object of config.json."""

    name: str
    values: Mapping[str, Any]

    def whole(self, key: str, default: int | None = None, *, least: int = 1, most: int = _MOST) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(f"{self.path(key)} is {shown(value)}: it must be a whole number from {least} to {most}")
        return value

    def few(self, key: str, default: int | None = None) -> int:
        """Read a number of layers or heads, or the side of a patch."""
        return self.whole(key, default, most=_FEW)

    def positive(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e38:
            raise ConfigError(f"{self.path(key)} is {shown(value)}: it must be a number above 0 and below 1e38")
        return float(value)

    def layers(self, key: str) -> tuple[int, ...]:
        value = self.values.get(key)
        if not isinstance(value, list | tuple) or any(isinstance(n, bool) or not isinstance(n, int) for n in value):
            raise ConfigError(f"{self.path(key)} is {shown(value)}: it must be a list of layers")
        return tuple(value)

    def must_be(self, key: str, *known: object) -> None:
        value = self.values.get(key)
        if value not in known:
            supported = " or ".join(repr(one) for one in known if one is not None)
            raise ConfigError(f"{self.path(key)} is {shown(value)}: photonlite supports {supported} only")

    def inner(self, key: str) -> "Section":
        """Return the object of a key, empty where there is none."""
        values = self.values.get(key) or {}
        if not isinstance(values, Mapping):
            raise ConfigError(f"{self.path(key)} is {shown(values)}: it must be an object")
        return Section(self.path(key), values)

    def path(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key


def rotary_of(section: Section, default: float) -> tuple[Section, float]:
    """Return the rotary settings of a decoder's section, and their base (theta).

    As in transformers, `rope_scaling`, which guides tell users to add for longer contexts, replaces `rope_parameters`
    with all that it says. The base may also be an entry of the section itself.
    """
    older = section.inner("rope_scaling")
    rotary = older if older.values else section.inner("rope_parameters")
    return rotary, rotary.positive("rope_theta", section.positive("rope_theta", default))


def object_in(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = raw.get(name)
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name} in config.json is {shown(section)}: it must be an object")
    return section


def shown(value: object) -> str:
    return "missing" if value is None else f"{value!r:.60}"
