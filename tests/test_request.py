import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from photonlite.errors import SettingsError
from photonlite.request import Allowed, SamplingSettings


def test_the_defaults_are_greedy() -> None:
    settings = SamplingSettings.from_dict(None)

    assert settings == SamplingSettings.from_dict({}) == SamplingSettings()
    assert dataclasses.astuple(settings) == (0.0, 1.0, None, 1.0, 768, 50, None, ())
    assert settings.greedy


def test_a_dict_overrides_the_settings_it_names() -> None:
    settings = SamplingSettings.from_dict({"temperature": 0.5, "top_p": 0.3, "max_objects": 7})

    assert dataclasses.astuple(settings) == (0.5, 0.3, None, 1.0, 768, 7, None, ())
    assert not settings.greedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("temperature", 10**400),
        ("temperature", "0.5"),
        ("temperature", True),
        ("temperature", None),
        ("top_p", -0.01),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("max_tokens", 0),
        ("max_tokens", 1.0),
        ("max_tokens", True),
        ("max_objects", 0),
        ("max_objects", "all"),
        ("top_k", 0),
        ("top_k", 2.5),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1.3),
        ("repetition_penalty", 100.1),
        ("repetition_penalty", math.nan),
        ("repetition_penalty", None),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 0.5),
    ],
)
def test_a_value_out_of_range_is_named_with_its_limit(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=rf"'{name}' is .*must be (None or )?(a number|a whole number)"):
        SamplingSettings.from_dict({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 1e-9),
        ("temperature", np.float32(0.5)),
        ("top_p", 0),
        ("top_p", 1),
        ("top_k", 1),
        ("top_k", None),
        ("repetition_penalty", 0.01),
        ("repetition_penalty", 100),
        ("max_tokens", 1),
        ("max_objects", np.int64(3)),
        ("seed", 2**63 - 1),
        ("seed", None),
    ],
)
def test_values_at_the_limits_pass(name: str, value: Any) -> None:
    assert getattr(SamplingSettings.from_dict({name: value}), name) == value


def test_an_unknown_setting_is_named_with_the_known_ones() -> None:
    names = "temperature, top_p, top_k, repetition_penalty, max_tokens, max_objects, seed, stop"
    with pytest.raises(SettingsError, match=rf"'temprature' is unknown .*{names}"):
        SamplingSettings.from_dict({"temprature": 1})


def test_a_long_name_is_shortened() -> None:
    with pytest.raises(SettingsError, match=r"x\.\.\. is unknown"):
        SamplingSettings.from_dict({"x" * 10_000: 1})


def test_a_variant_is_refused_with_the_reason() -> None:
    with pytest.raises(SettingsError, match="adapter"):
        SamplingSettings.from_dict({"variant": "abc"})


@pytest.mark.parametrize("settings", [[("temperature", 1)], "temperature", 0.5])
def test_settings_must_be_a_mapping(settings: Any) -> None:
    with pytest.raises(SettingsError, match="give a dict"):
        SamplingSettings.from_dict(settings)


def test_only_a_single_id_is_forced() -> None:
    assert Allowed((5,)).forced == 5
    assert Allowed((0,)).forced == 0
    assert Allowed((5, 0)).forced is None
    assert Allowed(None).forced is None


def test_permits_checks_ids_or_suppressed_ids() -> None:
    assert Allowed((5, 0)).permits(0)
    assert not Allowed((5, 0)).permits(3)
    assert Allowed(suppressed=(3,)).permits(0)
    assert not Allowed(suppressed=(3,)).permits(3)
