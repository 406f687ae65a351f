"""The adapter that comes with the package: it finds what the checkpoint does not know, and in one batch alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import photonlite
from bench.nano.evaluation.scoring import iou

ASSETS = Path(__file__).parents[1] / "assets"
SHELF = ASSETS / "shelf.jpg"
TRUTH = {
    "dumpling": [(0.022, 0.127, 0.198, 0.31), (0.338, 0.004, 0.545, 0.215), (0.73, 0.015, 0.958, 0.252)],
    "tin can": [(0.377, 0.273, 0.492, 0.496), (0.68, 0.402, 0.873, 0.704)],
    "burrito": [(0.216, 0.24, 0.383, 0.483)],
    "waffle": [(0.045, 0.79, 0.248, 1.0)],
}


@pytest.fixture(scope="module")
def model() -> Iterator[photonlite.VisionModel]:
    with photonlite.load(device="cpu") as loaded:
        loaded.load_adapter(ASSETS / "nano-shelf", name="shelf")
        yield loaded


def found(result: Any) -> list[tuple[float, ...]]:
    return [(one.x_min, one.y_min, one.x_max, one.y_max) for one in result.objects]


def is_right(boxes: list[tuple[float, ...]], truth: list[tuple[float, ...]]) -> bool:
    return len(boxes) == len(truth) and all(max(iou(box, one) for box in boxes) > 0.6 for one in truth)


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in (ASSETS / "nano-shelf").iterdir()) < 10**6


@pytest.mark.parametrize("name", ["dumpling", *(pytest.param(one, marks=pytest.mark.long) for one in list(TRUTH)[1:])])
def test_the_adapter_finds_what_the_checkpoint_does_not_know(model: photonlite.VisionModel, name: str) -> None:
    assert is_right(found(model.detect(SHELF, name, adapter="shelf")), TRUTH[name])
    assert not is_right(found(model.detect(SHELF, name)), TRUTH[name])


@pytest.mark.long
def test_rows_with_and_without_it_do_not_mix_in_a_batch(model: photonlite.VisionModel) -> None:
    before = model.metrics()["counters"]["steps"]["decode"]
    asked = [
        ({"skill": "detect", "image": image, "object": name, "adapter": adapter}, adapter, name)
        for image, name in ((SHELF, "dumpling"), (ASSETS / "desk.png", "banana"), (SHELF, "tin can"))
        for adapter in ("shelf", None)
    ]
    results = model.batch([task for task, _, _ in asked], errors="raise")
    steps = model.metrics()["counters"]["steps"]["decode"] - before
    tokens = sum(one.metrics.output_tokens for one in results)
    assert steps < tokens / 2  # they were decoded together
    for result, (task, adapter, name) in zip(results, asked, strict=True):
        alone = model.detect(task["image"], name, adapter=adapter)
        assert [round(value, 2) for box in found(result) for value in box] == [
            round(value, 2) for box in found(alone) for value in box
        ]
        if name in TRUTH:
            assert is_right(found(result), TRUTH[name]) == (adapter == "shelf")


@pytest.mark.long
def test_weights_in_8_bits_take_it_too() -> None:
    with photonlite.load(device="cpu", weights="int8", vision_weights="int8") as model:
        model.load_adapter(ASSETS / "nano-shelf", name="shelf")
        assert is_right(found(model.detect(SHELF, "dumpling", adapter="shelf")), TRUTH["dumpling"])
