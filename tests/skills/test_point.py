import pytest

from photonlite.errors import PromptError
from photonlite.request import SamplingSettings
from photonlite.skills import point
from tests.skills.fake import METRICS, FakePrompts, completion, coordinate


def test_the_object_and_its_references_are_asked_for() -> None:
    prompts = FakePrompts()
    request = point.build(prompts, " mug ", refs=[(0.1, 0.2)], settings=SamplingSettings())
    point.build(prompts, "mug", settings=SamplingSettings())

    assert prompts.asked == [("point", "mug", [(0.1, 0.2)]), ("point", "mug", [])]
    assert (request.skill, request.subject) == ("point", "mug")


def test_an_empty_object_is_refused() -> None:
    with pytest.raises(PromptError, match="the object is empty"):
        point.build(FakePrompts(), "  ", settings=SamplingSettings())


def test_points_come_in_the_order_of_the_model() -> None:
    request = point.build(FakePrompts(), "mug", settings=SamplingSettings())
    tokens = [coordinate(0.75, 0.25, 0.5), coordinate(0.5), coordinate(1.5), coordinate(-0.5), coordinate(0.9)]

    result = point.finish(request, completion(*tokens))

    assert result == {
        "points": [
            {"x": 0.75, "y": 0.5, "label": "mug", "score": 0.25},
            {"x": 1.0, "y": 0.0, "label": "mug", "score": 1.0},
        ]
    }
    assert result.metrics == METRICS
