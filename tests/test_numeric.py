"""NumPy numbers are accepted wherever Python numbers are, and never overflow."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from photonlite.api.tasks import seconds_of
from photonlite.config import EngineConfig, ImageLimits
from photonlite.errors import SettingsError, SpatialRefError
from photonlite.images.crops import CropSpec
from photonlite.models.moondream.prompts import check_reference
from photonlite.realtime.frames import Question
from photonlite.realtime.state import LoopState
from photonlite.request import SamplingSettings
from photonlite.server.config import ServerConfig
from photonlite.settings import plain


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (np.uint8(200), 200),
        (np.int64(2**62), 2**62),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (Fraction(1, 2), 0.5),
        ((np.int8(1), 2.0), (1, 2.0)),
    ],
)
def test_numbers_become_python_numbers(value: Any, wanted: Any) -> None:
    found = plain(value)

    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize("value", [True, None, "1", np.bool_(True), np.ones(1), [np.uint8(1)], 1j, Fraction(10**400)])
def test_other_values_stay_unchanged(value: Any) -> None:
    assert plain(value) is value


TAKEN: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda n: SamplingSettings(max_tokens=n).max_tokens, np.uint8(200)),
    (lambda n: SamplingSettings(max_tokens=n).max_tokens, np.int64(2**62)),
    (lambda n: SamplingSettings(max_objects=n).max_objects, np.uint8(200)),
    (lambda n: SamplingSettings(seed=n).seed, np.uint64(2**63 - 1)),
    (lambda n: SamplingSettings(temperature=n).temperature, np.float16(0.5)),
    (lambda n: SamplingSettings(top_p=n).top_p, np.float32(0.5)),
    (lambda n: ImageLimits(max_pixels=n).max_pixels, np.int32(2**31 - 1)),
    (lambda n: ImageLimits(max_bytes=n).max_bytes, np.uint8(200)),
    (lambda n: EngineConfig(max_batch=n).max_batch, np.uint8(200)),
    (lambda n: EngineConfig(kv_cache_bytes=n).kv_cache_bytes, np.int64(2**62)),
    (lambda n: EngineConfig(graph_sizes=(n,)).graph_sizes[0], np.uint8(200)),
    (lambda n: EngineConfig(launch_budget_s=n).launch_budget_s, np.float32(0.5)),
    (lambda n: ServerConfig(max_open_bytes=n).max_open_bytes, np.int64(2**62)),
    (lambda n: ServerConfig(deadline_s=n).deadline_s, np.float32(0.5)),
    (lambda n: ServerConfig(port=n).port, np.uint16(8000)),
    (lambda n: CropSpec(378, 14, 4, n).max_crops, np.uint8(200)),
    (seconds_of, np.float32(0.5)),
    (lambda n: check_reference((n, n))[0], np.float16(0.5)),
    (lambda n: check_reference((n, n))[0], np.uint8(1)),
    (lambda n: Question.of("caption", deadline_ms=n).deadline_s, np.uint8(200)),
    (lambda n: LoopState(Question.of("caption"), lambda: 0.0, window=n)._answers.maxlen, np.uint8(200)),
    (lambda n: LoopState(Question.of("caption"), lambda: 0.0, in_flight=n)._capacity, np.uint8(200)),
]


@pytest.mark.parametrize(("take", "value"), TAKEN)
def test_a_numpy_number_is_stored_as_a_python_number(take: Callable[[Any], Any], value: Any) -> None:
    kept = take(value)

    assert type(kept) in (int, float)
    assert kept == take(value.item())


@pytest.mark.parametrize("value", [True, np.bool_(True), "1", np.array([3]), Fraction(10**400), None])
@pytest.mark.parametrize("name", ["gpu_memory_fraction", "launch_budget_s", "max_pause_s", "grammar_limit_s"])
def test_a_value_that_is_no_number_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name):
        EngineConfig(**{name: value})


def test_a_number_larger_than_any_float_is_no_coordinate() -> None:
    with pytest.raises(SpatialRefError, match="leaves the image"):
        check_reference((10**400, 0))
