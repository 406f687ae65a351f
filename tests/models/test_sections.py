from typing import Any

import pytest

from photonlite.errors import ConfigError
from photonlite.models.sections import Section, object_in, rotary_of, shown

SECTION = Section(
    "vision",
    {"side": 3, "zero": 0, "true": True, "text": "7", "list": [1, 2], "share": 0.5, "none": None}
    | {"huge": 10**400, "many": 1001},
)


def test_values_are_read_and_defaults_stand_in_for_what_is_missing() -> None:
    assert SECTION.whole("side") == 3
    assert SECTION.whole("missing", 4) == SECTION.whole("none", 4) == 4
    assert SECTION.whole("zero", least=0) == 0
    assert SECTION.positive("share", 1.0) == 0.5
    assert SECTION.positive("missing", 1) == 1.0
    assert SECTION.layers("list") == (1, 2)
    assert object_in({"vision": {"side": 3}}, "vision") == {"side": 3}
    SECTION.must_be("missing", None, "gelu")


@pytest.mark.parametrize(
    ("values", "sections", "theta"),
    [
        ({}, None, 7.0),
        ({"rope_theta": 3}, None, 3.0),
        ({"rope_parameters": {"s": 1}}, 1, 7.0),
        ({"rope_parameters": {"s": 1, "rope_theta": 5}, "rope_theta": 3}, 1, 5.0),
        ({"rope_scaling": {"s": 2}, "rope_parameters": {"s": 1, "rope_theta": 5}}, 2, 7.0),
        ({"rope_scaling": {"s": 2}, "rope_parameters": {"rope_theta": 5}, "rope_theta": 3}, 2, 3.0),
        ({"rope_scaling": {"s": 2, "rope_theta": 9}, "rope_parameters": {"rope_theta": 5}}, 2, 9.0),
        ({"rope_scaling": None, "rope_parameters": {"s": 1, "rope_theta": 5}}, 1, 5.0),
        ({"rope_scaling": {}, "rope_parameters": {"s": 1, "rope_theta": 5}}, 1, 5.0),
    ],
)
def test_rope_scaling_replaces_rope_parameters(values: Any, sections: int | None, theta: float) -> None:
    rotary, base = rotary_of(Section("text", values), 7.0)
    assert (rotary.values.get("s"), base) == (sections, theta)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda: SECTION.whole("missing"), "vision.missing is missing: it must be a whole number from 1 to 16777216"),
        (lambda: SECTION.whole("zero"), "vision.zero is 0: it must be a whole number from 1 to 16777216"),
        (lambda: SECTION.whole("true"), "vision.true is True"),
        (lambda: SECTION.whole("text"), "vision.text is '7'"),
        (lambda: SECTION.positive("zero", 1.0), "vision.zero is 0: it must be a number above 0 and below 1e38"),
        (lambda: SECTION.positive("huge", 1.0), "must be a number above 0 and below 1e38"),
        (lambda: SECTION.whole("huge"), "vision.huge is 1000"),
        (lambda: SECTION.few("many"), "vision.many is 1001: it must be a whole number from 1 to 1000"),
        (lambda: SECTION.layers("side"), "vision.side is 3: it must be a list of layers"),
        (lambda: SECTION.must_be("side", None, 4, 5), "vision.side is 3: photonlite supports 4 or 5 only"),
        (lambda: Section("", {"side": 3}).must_be("side", 4), "^side is 3"),
        (lambda: object_in({"vision": 3}, "vision"), "vision in config.json is 3: it must be an object"),
    ],
)
def test_every_other_value_is_refused_by_its_name(read: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read()


def test_long_values_are_shortened() -> None:
    assert len(shown("x" * 1000)) == 60
