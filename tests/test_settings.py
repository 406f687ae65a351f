"""Fields of dataclasses as text: flags, environment variables and tables of TOML."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

import pytest

from photonlite.config import EngineConfig, ImageLimits
from photonlite.errors import SettingsError
from photonlite.server.config import ServerConfig
from photonlite.settings import (
    build,
    flag_of,
    from_assignments,
    from_environment,
    from_table,
    settings_of,
    unknown_name,
)


@dataclass(frozen=True)
class Kinds:
    """One field of each kind.

    Attributes:
        whole: A number of things,
            on two lines.
        share_s: Seconds.
        room_bytes: Bytes.
        name: Text.
        exact: Whether.
        most: A number, or none.
        sizes: Numbers.
        names: Texts.
        mode: One of two.
        secret: Never read.
    """

    whole: int = 1
    share_s: float = 0.5
    room_bytes: int = 1
    name: str = "x"
    exact: bool = True
    most: int | None = None
    sizes: tuple[int, ...] = (1,)
    names: tuple[str, ...] = field(default=(), metadata={"flag": "--called"})
    mode: Literal["fast", "slow"] = "fast"
    secret: tuple[str, ...] = field(default=(), metadata={"flag": None})

    def __post_init__(self) -> None:
        if self.whole < 0:
            raise SettingsError(f"setting 'whole' is {self.whole}: it must be at least 0")


def test_flag_variable_and_help_follow_from_the_dataclass() -> None:
    known = settings_of(Kinds)

    assert {name: one.flag for name, one in known.items()} == {
        "whole": "--whole",
        "share_s": "--share-seconds",
        "room_bytes": "--room-mb",
        "name": "--name",
        "exact": "--exact",
        "most": "--most",
        "sizes": "--size",
        "names": "--called",
        "mode": "--mode",
    }
    assert known["room_bytes"].variable == "PHOTONLITE_ROOM_BYTES"
    assert known["whole"].help == "A number of things, on two lines."


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("whole", " 1_000 ", 1000),
        ("share_s", "2", 2.0),
        ("exact", "Off", False),
        ("exact", "1", True),
        ("most", "None", None),
        ("most", "7", 7),
        ("sizes", "1, 2,4", (1, 2, 4)),
        ("names", "a,b", ("a", "b")),
        ("mode", "slow", "slow"),
    ],
)
def test_text_is_read_by_type(name: str, text: str, value: Any) -> None:
    given = from_environment(Kinds, {f"PHOTONLITE_{name.upper()}": text})

    assert given[name].value == value
    assert type(given[name].value) is type(value)
    assert from_assignments(Kinds, [f"{name}={text}"], "--set")[name].value == value


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("whole", "1.5", "a whole number"),
        ("whole", "none", "a whole number"),
        ("share_s", "soon", "a number"),
        ("exact", "maybe", "true or false"),
        ("sizes", "1,x", "values with commas between them, each a whole number"),
        ("mode", "slower", "'fast' or 'slow'"),
    ],
)
def test_unreadable_text_is_refused_with_its_source(name: str, text: str, wanted: str) -> None:
    variable = f"PHOTONLITE_{name.upper()}"
    with pytest.raises(SettingsError, match=f"^the environment variable {variable} is '{text}': give {wanted}"):
        from_environment(Kinds, {variable: text})
    with pytest.raises(SettingsError, match=f"^--set {name} is '{text}': give {wanted}"):
        from_assignments(Kinds, [f"{name}={text}"], "--set")


def test_a_variable_that_is_empty_counts_as_unset() -> None:
    assert from_environment(Kinds, {"PHOTONLITE_WHOLE": " ", "OTHER": "1"}) == {}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("whole", 3, 3), ("share_s", 2, 2.0), ("exact", False, False), ("sizes", [1, 2], (1, 2)), ("mode", "slow", None)],
)
def test_a_table_gives_values_of_the_right_type(name: str, value: Any, expected: Any) -> None:
    assert from_table(Kinds, {name: value}, "a.toml")[name].value == (value if expected is None else expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [("whole", True), ("whole", 1.0), ("exact", 1), ("name", 3), ("sizes", 1), ("sizes", [1.5]), ("mode", "x")],
)
def test_a_table_with_a_value_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"'{name}' in a.toml is"):
        from_table(Kinds, {name: value}, "a.toml")


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match=r"'hole' in a\.toml is not a setting: did you mean 'whole'"):
        from_table(Kinds, {"hole": 1}, "a.toml")
    with pytest.raises(SettingsError, match="--set 'Moode' is not a setting: did you mean 'mode'"):
        from_assignments(Kinds, ["Moode=fast"], "--set")
    with pytest.raises(SettingsError, match=r"'secret' in a\.toml is not a setting"):
        from_table(Kinds, {"secret": ["x"]}, "a.toml")
    assert "the settings are a, b" in str(unknown_name("zzz", "zzz", ["a", "b"]))


def test_text_without_an_equals_sign_is_refused() -> None:
    with pytest.raises(SettingsError, match="--set 'whole' is not an assignment: write --set NAME=VALUE"):
        from_assignments(Kinds, ["whole"], "--set")


def test_a_value_out_of_range_is_refused_with_its_source() -> None:
    given = from_environment(Kinds, {"PHOTONLITE_WHOLE": "-1", "PHOTONLITE_NAME": "y"})

    with pytest.raises(SettingsError, match=r"at least 0 \(it was set by the environment variable PHOTONLITE_WHOLE\)$"):
        build(Kinds, given)


def test_a_flag_in_megabytes_sets_bytes() -> None:
    room = settings_of(Kinds)["room_bytes"]

    assert room.read_flag("0.5") == 512 * 1024
    for text in ("0", "nan", "much", "-1"):
        with pytest.raises(SettingsError, match="--room-mb is"):
            room.read_flag(text)


@pytest.mark.parametrize("cls", [EngineConfig, ImageLimits, ServerConfig])
def test_every_field_of_the_settings_can_be_given_and_is_described(cls: type) -> None:
    known = settings_of(cls)

    assert {entry.name for entry in fields(cls)} - set(known) <= {
        "api_keys",
        "key_weights",
        "metrics_keys",
        "admin_keys",
        "on_white",
    }
    assert all(setting.help for setting in known.values())


def test_no_two_settings_share_a_variable() -> None:
    names = [name for cls in (EngineConfig, ImageLimits, ServerConfig) for name in settings_of(cls)]

    assert len(names) == len(set(names))


def test_names_of_flags() -> None:
    assert (flag_of("max_open"), flag_of("hosts", many=True)) == ("--max-open", "--host")
