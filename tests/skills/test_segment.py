import pytest

from photonlite.grammar.decoding.grammars import PathIds
from photonlite.request import Request, SamplingSettings
from photonlite.skills import segment
from tests.skills.fake import METRICS, FakePrompts, completion, coordinate, size

M, L, Z, MINUS, ZERO, HALF, ONE, HUNDRED = 30, 31, 32, 33, 40, 41, 42, 43
BOX = (coordinate(0.5, 0.5), coordinate(0.5), size(0.5, 0.5))
TRIANGLE = (M, ZERO, ZERO, L, ONE, ZERO, ONE, ONE, Z)


def request() -> Request:
    return segment.build(FakePrompts(), " mug ", settings=SamplingSettings())


def test_the_object_and_its_references_are_asked_for() -> None:
    prompts = FakePrompts()
    segment.build(prompts, " mug ", refs=[(0.1, 0.2)], settings=SamplingSettings())

    assert prompts.asked == [("segment", "mug", [(0.1, 0.2)])]


def test_a_segment_has_path_box_and_polygon() -> None:
    result = segment.finish(FakePrompts(), request(), completion(*BOX, *TRIANGLE, 0))

    assert result == {
        "segments": [
            {
                "path": "M 0 0 L 1 0 1 1 Z",
                "bbox": {"x_min": 0.25, "y_min": 0.25, "x_max": 0.75, "y_max": 0.75},
                "polygon": [[0.25, 0.25], [0.75, 0.25], [0.75, 0.75]],
                "label": "mug",
                "score": 0.5**0.25,
            }
        ]
    }
    assert result.metrics == METRICS


def test_a_path_that_was_cut_short_is_dropped() -> None:
    tokens = (*BOX, *TRIANGLE)
    for cut in (2, 3, 5, len(tokens)):
        assert segment.finish(FakePrompts(), request(), completion(*tokens[:cut], reason="length")) == {"segments": []}


def test_nothing_found_is_an_empty_list() -> None:
    assert segment.finish(FakePrompts(), request(), completion(0)) == {"segments": []}


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ((M, ZERO, ZERO, L, ONE, HALF, MINUS, 44, 45, Z), "M 0 0 L 1 0.5 -0.1 0.25 Z"),
        ((M, MINUS, ZERO, HUNDRED, Z), "M 0 0.104 Z"),
        ((M, MINUS, ONE, MINUS, HALF), "M -1 -0.5"),
    ],
)
def test_integers_become_decimals_of_the_box(ids: tuple[int, ...], text: str) -> None:
    known = FakePrompts.path_ids
    wider = PathIds(known.commands, {**known.integers, 44: 96, 45: 240}, known.minus)

    assert segment.path_text(ids, wider) == text
