"""Families whose prompts ride with decode steps answer as they do one request at a time."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import photonlite
from photonlite import VisionModel
from photonlite.batch import BatchItem
from photonlite.runner import torch_model_runner
from photonlite.runner.prefill import PromptRow, make_rows
from tests.models.paligemma import tiny as paligemma
from tests.models.qwen import tiny as qwen
from tests.serving import GUARD, counters, make_image, on_thread

ENGINE: Any = {"max_context": 300, "page_size": 4, "max_batch": 4, "cpu_threads": 1}
ROUNDS = 20
IMAGES = [make_image(1, (280, 200)), make_image(2, (70, 50)), make_image(3, (140, 210))]


def saved(family: str, folder: Path) -> Path:
    if family == "paligemma":
        return paligemma.save(paligemma.reference_model("capped"), folder)
    return qwen.save(qwen.reference_model(family), folder, family)


def load(folder: Path, **engine: Any) -> VisionModel:
    return photonlite.load(folder, device="cpu", dtype="float32", engine=ENGINE | engine)


def ask(model: VisionModel, number: int) -> str:
    question = f"What is it, {'and why, ' * number}exactly?"
    settings: Any = {"max_tokens": 24}
    return str(model.query(IMAGES[number % 3], question, settings=settings)["answer"])


def cut_inside_images(rows: Iterable[BatchItem]) -> bool:
    return any(span.start < row.start + row.count < span.end for row in rows for span in row.sequence.images)


@pytest.mark.long
@pytest.mark.parametrize("family", ["2.5", "3", "paligemma"])
def test_prompts_that_ride_in_parts_change_no_answer(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(family, tmp_path)
    with load(folder) as model:
        expected = [ask(model, number) for number in range(6)]
    launched: list[BatchItem] = []

    def watched(items: Iterable[BatchItem]) -> list[PromptRow]:
        kept = list(items)
        launched.extend(kept)
        return make_rows(kept)

    monkeypatch.setattr(torch_model_runner, "make_rows", watched)
    with load(folder, batching="mixed", mixed_tokens=9, prefix_caching=False) as model:
        with model.trace() as trace:
            for _ in range(ROUNDS):  # on a busy machine requests may come one after the other, and none rides
                answers = [on_thread(partial(ask, model, number)) for number in range(6)]
                assert [answer.result(GUARD) for answer in answers] == expected
                rides = counters(model)["steps"]["mixed"]
                if rides > 1 and (family == "paligemma" or cut_inside_images(launched)):
                    break
        steps = counters(model)["steps"]

    assert steps["mixed"] > 1
    rode = [span.args["prompts"] for span in trace.spans if span.name == "mixed"]
    assert len(rode) == steps["mixed"]
    assert 0 < min(rode) <= sum(rode) <= sum(row.count for row in launched if not row.pending)
    assert cut_inside_images(launched) == (family != "paligemma")  # whose images are never cut
    assert any(row.cut for row in launched) == (family != "paligemma")
