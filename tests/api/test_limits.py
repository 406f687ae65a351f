"""Limits of one request, and the plan of memory that follows from them."""

from collections.abc import Iterator
from typing import Any

import pytest

import photonlite
from photonlite import VisionModel
from photonlite.cli import main
from photonlite.config import EngineConfig
from photonlite.errors import CapacityError, ConfigError
from tests.models.qwen.tiny import reference_model, save
from tests.serving import IMAGE, make_image

LIMITS: Any = {"max_input_tokens": 700, "max_output_tokens": 20}


@pytest.fixture(scope="module")
def model() -> Iterator[VisionModel]:
    with photonlite.load(device="cpu", engine=LIMITS) as loaded:
        yield loaded


def test_both_together_are_the_context_for_which_memory_is_planned(model: VisionModel) -> None:
    assert model._prompts.max_context == 720
    parts = {(part.what, part.place): part for part in model.memory_plan().parts}
    cache = parts["keys and values", "device"]
    assert "one longest request, 720 positions" in cache.note
    assert cache.bytes == model._session.engine.memory.kv_bytes
    assert parts["weights", "device"].bytes >= 16_000_000
    assert ("computed for images", "host") in parts
    assert ("computed for images", "disk") not in parts
    assert len(str(model.memory_plan()).splitlines()) == len(parts)


@pytest.mark.parametrize(
    ("given", "context"),
    [
        ({}, None),
        ({"max_context": 9}, 9),
        ({"max_input_tokens": 5}, None),
        ({"max_output_tokens": 5}, None),
        ({"max_input_tokens": 5, "max_output_tokens": 3}, 8),
        ({"max_input_tokens": 5, "max_output_tokens": 3, "max_context": 7}, 7),
    ],
)
def test_the_context_follows_where_both_are_given(given: dict[str, int], context: int | None) -> None:
    assert EngineConfig(**given).context == context


def test_answers_end_at_the_limit_and_say_so(model: VisionModel) -> None:
    answer = model.query(IMAGE, "What is on the shelf? " * 3, settings={"max_tokens": 500}, reasoning=False)
    assert answer.metrics.output_tokens <= 20


def test_a_longer_input_is_refused_with_the_limit(model: VisionModel) -> None:
    with pytest.raises(CapacityError, match=r"takes \d+ positions, over the limit max_input_tokens, which is 700"):
        model.query(IMAGE, "what " * 200)
    assert model.detect(IMAGE, "mug") is not None


def test_an_input_without_room_for_an_image_is_refused_at_start() -> None:
    with pytest.raises(CapacityError, match="max_input_tokens is 600, but BOS and an image take 677"):
        photonlite.load(device="cpu", engine={"max_input_tokens": 600})
    with pytest.raises(ConfigError, match="an image takes 677 positions"):
        photonlite.load(device="cpu", engine={"max_input_tokens": 600, "max_output_tokens": 20})


def test_a_cache_without_room_for_one_longest_request_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(CapacityError, match=r"720 positions need \d+"):
        photonlite.load(device="cpu", engine=LIMITS | {"kv_cache_bytes": 1_000_000})


@pytest.mark.long
def test_more_images_than_allowed_are_refused(tmp_path: Any) -> None:
    folder = save(reference_model("2.5"), tmp_path, "2.5")
    engine: Any = {"max_context": 500, "max_input_images": 2}
    images = [make_image(seed, (70, 50)) for seed in range(3)]
    with photonlite.load(folder, device="cpu", dtype="float32", engine=engine) as several:
        with pytest.raises(CapacityError, match="3 images, over the limit max_input_images, which is 2"):
            several.query(images, "What?")
        assert several.query(images[:2], "What?", settings={"max_tokens": 2}) is not None


def test_serve_prints_the_plan_and_serves_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    flags = ["--engine", "max_input_tokens=700", "--engine", "max_output_tokens=20", "--no-check", "--device", "cpu"]
    assert main(["serve", "--plan", *flags, "--store", str(tmp_path)]) == 0

    text = capsys.readouterr().out
    assert "one longest request, 720 positions" in text
    assert f"in {tmp_path}" in text
    assert main(["serve", "--plan", *flags, "--engine", "kv_cache_bytes=1000000"]) == 2
    assert "720 positions need" in capsys.readouterr().err
