from typing import Any

import pytest

from photonlite.errors import ConfigError
from photonlite.models.sections import Section, object_in, shown

SECTION = Section(
    "vision", {"side": 3, "zero": 0, "true": True, "text": "7", "list": [1, 2], "share": 0.5, "none": None}
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
    ("read", "words"),
    [
        (lambda: SECTION.whole("missing"), "vision.missing is missing: it must be a whole number of at least 1"),
        (lambda: SECTION.whole("zero"), "vision.zero is 0: it must be a whole number of at least 1"),
        (lambda: SECTION.whole("true"), "vision.true is True"),
        (lambda: SECTION.whole("text"), "vision.text is '7'"),
        (lambda: SECTION.positive("zero", 1.0), "vision.zero is 0: it must be a number above 0"),
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
