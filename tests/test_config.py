import math
from typing import Any

import pytest

from photonlite.config import EngineConfig, ImageLimits
from photonlite.errors import SettingsError


def test_defaults_are_64_megapixels_and_256_mebibytes() -> None:
    assert ImageLimits() == ImageLimits(max_pixels=64_000_000, max_side=65_535, max_bytes=268_435_456)


@pytest.mark.parametrize("value", [0, -1, 1.5, "12", None, True])
@pytest.mark.parametrize("name", ["max_pixels", "max_side", "max_bytes"])
def test_a_limit_is_a_positive_whole_number(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=rf"'{name}' is .*at least 1"):
        ImageLimits(**{name: value})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ImageLimits()),
        ({"PHOTONLITE_MAX_PIXELS": ""}, ImageLimits()),
        ({"PHOTONLITE_MAX_PIXELS": " 1_000 "}, ImageLimits(max_pixels=1000)),
        ({"PHOTONLITE_MAX_BYTES": "77"}, ImageLimits(max_bytes=77)),
    ],
)
def test_limits_come_from_the_environment(environ: dict[str, str], expected: ImageLimits) -> None:
    assert ImageLimits.from_env(environ) == expected


def test_the_process_environment_is_read_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHOTONLITE_MAX_PIXELS", "4242")
    assert ImageLimits.from_env().max_pixels == 4242


@pytest.mark.parametrize("text", ["64e6", "many", "0", "-5", "1.0"])
def test_an_unusable_variable_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match="PHOTONLITE_MAX_PIXELS"):
        ImageLimits.from_env({"PHOTONLITE_MAX_PIXELS": text})


@pytest.mark.parametrize("value", [1.0, 1e9, True, "8"])
@pytest.mark.parametrize(
    "name",
    [
        "depth",
        "max_batch",
        "page_size",
        "kv_cache_bytes",
        "max_crops",
        "cpu_threads",
        "image_threads",
        "max_prepared_bytes",
        "grammar_workers",
        "grammar_cache_bytes",
    ],
)
def test_engine_counts_must_be_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=rf"'{name}' is .*whole number"):
        EngineConfig(**{name: value})


@pytest.mark.parametrize(
    "settings",
    [
        {"launch_budget_s": math.inf},
        {"launch_budget_s": math.nan},
        {"max_pause_s": -0.001},
        {"max_pause_s": math.inf},
        {"graph_sizes": (1, 2.5)},
        {"cpu_threads": 0},
        {"max_prepared_bytes": 0},
        {"grammar_workers": 0},
        {"grammar_limit_s": 0},
        {"grammar_limit_s": math.inf},
        {"grammar_cache_bytes": -1},
        {"kv_dtype": "int8"},
        {"kv_dtype": None},
        {"batching": "both"},
        {"encoding": "both"},
        {"mixed_tokens": 0},
        {"encode_sms": -1},
    ],
)
def test_an_unusable_engine_setting_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"'{next(iter(settings))}' is"):
        EngineConfig(**settings)


def test_tokens_of_mixed_steps_are_refused_where_none_are_mixed() -> None:
    with pytest.raises(SettingsError, match="'mixed_tokens' is 64: it must be None where 'batching' is 'turns'"):
        EngineConfig(mixed_tokens=64)
    assert EngineConfig(batching="mixed", mixed_tokens=64).mixed_tokens == 64


@pytest.mark.parametrize("others", [{}, {"encoding": "beside", "cuda_graphs": False}])
def test_a_part_of_the_card_takes_images_beside_steps_and_graphs(others: Any) -> None:
    with pytest.raises(SettingsError, match="'encode_sms' is 68: it must be 0 where 'encoding' is 'turns' or"):
        EngineConfig(encode_sms=68, **others)
    assert EngineConfig(encoding="beside", encode_sms=68).encode_sms == 68


@pytest.mark.parametrize("others", [{}, {"cuda_graphs": False}, {"encode_sms": 0}])
def test_a_part_for_real_time_requests_takes_a_divided_card(others: Any) -> None:
    settings: Any = {"realtime_part": True} | ({"encoding": "beside", **others} if others else {})
    with pytest.raises(SettingsError, match="'realtime_part' is True: it must be False where 'encoding' is 'turns', "):
        EngineConfig(**settings)
    assert EngineConfig(encoding="beside", realtime_part=True).realtime_part


@pytest.mark.parametrize("others", [{}, {"encoding": "beside", "cuda_graphs": False}])
@pytest.mark.parametrize("sms", [None, 68])
def test_a_tuning_file_is_refused_where_nothing_is_divided_by_it(others: Any, sms: int | None) -> None:
    with pytest.raises(SettingsError, match=r"'tuning' is 'a\.json': it must be None where 'encoding' is 'turns', "):
        EngineConfig(tuning="a.json", **({"encoding": "beside", "encode_sms": sms} if sms else others))
    assert EngineConfig(encoding="beside", tuning="a.json").tuning == "a.json"


def test_images_beside_steps_are_refused_where_several_ranks_run_the_model() -> None:
    with pytest.raises(SettingsError, match="'encoding' is 'beside': it must be 'turns' where 'tensor_parallel' is"):
        EngineConfig(encoding="beside", tensor_parallel=2)
    assert EngineConfig(encoding="beside").encoding == "beside"
