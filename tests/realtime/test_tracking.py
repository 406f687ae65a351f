import sys
from collections.abc import Iterator
from typing import Any

import pytest

from photonlite.errors import MissingDependencyError
from photonlite.realtime import FrameResult, RealtimeLoop
from photonlite.results import Detections
from tests.realtime.fake import GUARD, FakeModel

MUG = {"x_min": 0.4, "y_min": 0.4, "x_max": 0.6, "y_max": 0.6, "label": "mug", "score": 0.9}


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(lambda image: Detections([dict(MUG)]))


def answer(loop: RealtimeLoop, results: Iterator[FrameResult]) -> Any:
    loop.submit("frame")
    [item] = next(results).result["objects"]
    return item.get("track_id", "untracked")


def test_items_of_a_loop_have_ids_that_begin_anew_with_another_question(model: FakeModel) -> None:
    with RealtimeLoop(model, object="mug", track=True) as loop:  # type: ignore[arg-type]
        results = iter(loop)
        assert [answer(loop, results) for _ in range(3)] == [None, 1, 1]
        loop.change(deadline_ms=1000 * GUARD)
        assert answer(loop, results) == 1
        loop.change(object="cup")
        assert [answer(loop, results) for _ in range(2)] == [None, 1]
        loop.change(track=False)
        assert answer(loop, results) == "untracked"


def test_a_loop_does_not_track_unless_asked_to(model: FakeModel) -> None:
    with RealtimeLoop(model, object="mug") as loop:  # type: ignore[arg-type]
        assert answer(loop, iter(loop)) == "untracked"


def test_a_missing_package_is_reported_by_the_call(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackers", None)

    with pytest.raises(MissingDependencyError, match=r"photonlite\[track\]"):
        RealtimeLoop(model, object="mug", track=True)  # type: ignore[arg-type]
    with RealtimeLoop(model, object="mug") as loop:  # type: ignore[arg-type]
        with pytest.raises(MissingDependencyError):
            loop.change(track=True)
        assert not loop.question.track
