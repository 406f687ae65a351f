from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from photonlite.errors import CapacityError, PromptError, SpatialRefError
from photonlite.grammar.prompts import RequestLimits
from photonlite.request import Token
from photonlite.results import Box, Caption, Detections, Point, Points, Segments
from photonlite.skills.base import TextReader, box, clean_refs, clean_text, groups, room_after, score
from tests.skills.fake import FakePrompts, coordinate, size


def test_text_is_stripped() -> None:
    assert clean_text("  red ball\n", "object", 8) == "red ball"


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u3000"])
def test_empty_text_is_refused(text: str) -> None:
    with pytest.raises(PromptError, match="the object is empty"):
        clean_text(text, "object", 10)


@pytest.mark.parametrize("text", [None, 5, b"mug", ["mug"]])
def test_values_other_than_text_are_refused(text: Any) -> None:
    with pytest.raises(PromptError, match=r"the question is .*: give text"):
        clean_text(text, "question", 10)


def test_the_limit_counts_what_is_left_after_stripping() -> None:
    assert clean_text(" " * 50 + "x" * 10, "object", 10) == "x" * 10
    with pytest.raises(PromptError, match="has 11 characters, over the limit of 10"):
        clean_text("x" * 11, "object", 10)


def test_room_is_what_the_context_leaves() -> None:
    prompts = FakePrompts(max_context=100, prefix_length=26)

    assert room_after([Token(1)] * 4, prompts, images=1) == 71
    assert room_after([Token(1)] * 4, prompts, images=0) == 96
    assert room_after([Token(1)] * 74, prompts, images=1) == 1


def test_a_prompt_over_the_context_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(
        CapacityError,
        match=r"needs 101 positions \(26 for BOS and the image \+ 75 for the prompt\).*has 100.*by 1 tokens",
    ):
        room_after([Token(1)] * 75, FakePrompts(), images=1)
    with pytest.raises(CapacityError, match=r"needs 101 positions \(1 for BOS \+ 100"):
        room_after([Token(1)] * 100, FakePrompts(), images=0)


def test_limits_of_the_engine_are_below_the_context() -> None:
    prompts = FakePrompts(max_context=100, prefix_length=26)
    prompts.limits = RequestLimits(max_input_tokens=40, max_output_tokens=7, max_input_images=1)

    assert room_after([Token(1)] * 14, prompts, images=1) == 7
    with pytest.raises(
        CapacityError, match="takes 41 positions, over the limit max_input_tokens, which is 40: shorten"
    ):
        room_after([Token(1)] * 15, prompts, images=1)
    with pytest.raises(CapacityError, match="2 images, over the limit max_input_images, which is 1"):
        room_after([Token(1)], prompts, images=2)
    prompts.limits = RequestLimits(max_output_tokens=90)
    assert room_after([Token(1)] * 4, prompts, images=1) == 71


def test_references_may_be_missing_lists_or_arrays() -> None:
    assert clean_refs(None) == []
    assert clean_refs(((0.1, 0.2),)) == [(0.1, 0.2)]
    assert len(clean_refs(np.zeros((3, 2)))) == 3  # type: ignore[arg-type]
    with pytest.raises(SpatialRefError, match="spatial_refs is of type float"):
        clean_refs(0.5)  # type: ignore[arg-type]


FRAME = {"x_min": 0.1, "y_min": 0.2, "x_max": 0.6, "y_max": 0.8}
OBJECTS = [{**FRAME, "label": "mug", "score": 0.5}]
POINTS = [{"x": 0.5, "y": 0.25, "label": "mug", "score": 0.5}]
CORNERS = (0.1, 0.2, 0.6, 0.8)


@pytest.mark.parametrize(
    ("refs", "wanted"),
    [
        (Detections(OBJECTS), [CORNERS]),
        (Points(POINTS), [(0.5, 0.25)]),
        (Segments([{"path": "", "bbox": FRAME, "label": "mug"}]), [CORNERS]),
        (dict(Detections(OBJECTS)), [CORNERS]),
        (OBJECTS[0], [CORNERS]),
        ([OBJECTS[0], POINTS[0], (0.3, 0.4)], [CORNERS, (0.5, 0.25), (0.3, 0.4)]),
        (Point(0.5, 0.25, 0.9), [(0.5, 0.25)]),
        ([Box(*CORNERS), Point(0.5, 0.25)], [CORNERS, (0.5, 0.25)]),
        (Detections([]), []),
    ],
    ids=str,
)
def test_references_may_be_what_results_hold(refs: Any, wanted: list[tuple[float, ...]]) -> None:
    assert clean_refs(refs) == wanted


def test_references_in_pixels_become_shares_again() -> None:
    [corners] = clean_refs(Detections(OBJECTS).to_pixels(200, 100))

    assert corners == pytest.approx(CORNERS)


@pytest.mark.parametrize("entry", [{"x": 0.5}, {"x_min": 0.1, "y_min": 0.1}, {"label": "mug"}, {}])
def test_an_entry_without_its_numbers_is_refused(entry: Any) -> None:
    with pytest.raises(SpatialRefError, match=r"has no '(y|x_max|x_min)': give a point with x and y, or a box"):
        clean_refs([entry])


def test_text_comes_in_pieces_without_the_end_and_with_the_rest() -> None:
    tokens = [Token(21), Token(22), Token(2), Token(0)]

    assert list(Caption(iter(tokens), reader=TextReader(FakePrompts()))["caption"]) == ["<21>", "<22>"]


def test_an_unfinished_object_is_dropped() -> None:
    tokens = [coordinate(0.1), coordinate(0.2), size(0.1, 0.1), coordinate(0.3), coordinate(0.4), Token(0)]

    assert [len(group) for group in groups(tokens, 3)] == [3]
    assert [group[0].values for group in groups(tokens[:2], 2)] == [(0.1,)]
    assert groups([Token(0)], 3) == []


def test_a_score_is_the_probability_of_presence_times_the_mean_mass() -> None:
    found = (coordinate(0.1, 0.5, probability=0.9), coordinate(0.2, 0.8), size(0.1, 0.1, (0.4, 0.1)))

    assert score(found) == pytest.approx(0.9 * (0.5 * 0.8 * 0.4 * 0.1) ** 0.25)
    assert score((coordinate(0, 0.25, 0.5), coordinate(0, 0.25))) == pytest.approx(0.125)


def test_a_score_stays_above_zero_and_at_most_one() -> None:
    assert score((coordinate(0.1), coordinate(0.2))) == 1.0
    assert 0 < score((coordinate(0.1, 0.0, probability=0.0), coordinate(0.2, 0.0))) < 1e-6


def test_a_box_is_clamped_to_the_image() -> None:
    assert box((coordinate(0.1), coordinate(0.9), size(0.4, 0.1))) == pytest.approx(
        {"x_min": 0.0, "y_min": 0.85, "x_max": 0.3, "y_max": 0.95}
    )
    whole = {"x_min": 0.0, "y_min": 0.0, "x_max": 1.0, "y_max": 1.0}
    assert box((coordinate(0.5), coordinate(0.5), size(2, 2))) == whole


def test_closing_pieces_closes_the_tokens_while_a_thread_waits_for_one() -> None:
    class Tokens(Iterator[Token]):
        closed = False

        def __next__(self) -> Token:
            pieces.close()  # as another thread does while this one waits
            raise StopIteration

        def close(self) -> None:
            self.closed = True

    tokens = Tokens()
    pieces = Caption(tokens, reader=TextReader(FakePrompts()))["caption"]

    assert list(pieces) == []
    assert tokens.closed
