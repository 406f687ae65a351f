import pytest

from photonlite.errors import PromptError
from photonlite.request import SamplingSettings
from photonlite.skills import detect
from tests.skills.fake import METRICS, FakePrompts, completion, coordinate, size


def test_the_object_is_stripped_asked_for_and_kept_as_the_label() -> None:
    prompts = FakePrompts()
    request = detect.build(prompts, " red ball ", settings=SamplingSettings())

    assert prompts.asked == [("detect", "red ball")]
    assert (request.skill, request.subject) == ("detect", "red ball")


def test_the_number_of_objects_is_limited() -> None:
    grammar = detect.build(FakePrompts(), "mug", settings=SamplingSettings(max_objects=1)).grammar
    for token in (coordinate(0.5), coordinate(0.5), size(0.1, 0.1)):
        assert grammar.finish_reason is None
        grammar.accept(token)

    assert grammar.finish_reason == "max_objects"


def test_a_list_ends_with_its_objects_or_the_context_and_not_with_max_tokens() -> None:
    def budget(max_objects: int) -> int:
        settings = SamplingSettings(max_tokens=4, max_objects=max_objects)
        return detect.build(FakePrompts(), "mug", settings=settings).budget

    assert budget(7) == 21
    assert budget(1_000) == budget(2_000)


def test_a_long_object_is_refused_with_the_numbers() -> None:
    with pytest.raises(PromptError, match="the object has 10000 characters, over the limit of 1000"):
        detect.build(FakePrompts(), "x" * 10_000, settings=SamplingSettings())


def test_boxes_come_in_the_order_of_the_model() -> None:
    request = detect.build(FakePrompts(), "mug", settings=SamplingSettings())
    tokens = [coordinate(0.75, 0.5, 0.5), coordinate(0.5), size(0.5, 0.25)]
    tokens += [coordinate(0.125), coordinate(0.5), size(0.5, 0.25), coordinate(0.3)]

    result = detect.finish(request, completion(*tokens, reason="length"))

    assert result["objects"] == [
        {"x_min": 0.5, "y_min": 0.375, "x_max": 1.0, "y_max": 0.625, "label": "mug", "score": 0.5 * 0.5**0.25},
        {"x_min": 0.0, "y_min": 0.375, "x_max": 0.375, "y_max": 0.625, "label": "mug", "score": 1.0},
    ]
    assert (result.metrics, result.finish_reason) == (METRICS, "length")


def test_nothing_found_is_an_empty_list() -> None:
    request = detect.build(FakePrompts(), "mug", settings=SamplingSettings())

    assert detect.finish(request, completion(0)) == {"objects": []}
