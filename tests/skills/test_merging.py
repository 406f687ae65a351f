from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.skills.merging import best_of_overlapping, boxes_of, ious


def box(x: float, y: float, label: str, score: float, side: float = 0.2) -> dict[str, Any]:
    return {"x_min": x, "y_min": y, "x_max": x + side, "y_max": y + side, "label": label, "score": score}


def test_the_best_score_of_overlapping_boxes_of_different_names_stays() -> None:
    items = [box(0.1, 0.1, "fruit", 0.7), box(0.11, 0.1, "banana", 0.9), box(0.6, 0.1, "fruit", 0.2)]

    assert best_of_overlapping(items) == [items[1], items[2]]
    assert best_of_overlapping([]) == []


def test_boxes_of_one_name_stay_however_they_overlap() -> None:
    items = [box(0.1, 0.1, "mug", 0.7), box(0.1, 0.1, "mug", 0.9)]

    assert best_of_overlapping(items) == items


def test_what_was_removed_removes_nothing() -> None:
    items = [box(0.10, 0, "a", 0.9), box(0.14, 0, "b", 0.8), box(0.18, 0, "c", 0.7)]

    assert best_of_overlapping(items) == [items[0], items[2]]


def test_of_equal_scores_the_first_stays() -> None:
    items = [box(0.1, 0.1, "a", 0.5), box(0.1, 0.1, "b", 0.5)]

    assert best_of_overlapping(items) == items[:1]


def test_points_close_to_each_other_and_segments_by_their_boxes_overlap() -> None:
    points = [{"x": 0.5, "y": y, "label": label, "score": s} for y, label, s in ((0.5, "a", 0.6), (0.51, "b", 0.7))]
    far = {"x": 0.5, "y": 0.56, "label": "c", "score": 0.1}
    assert best_of_overlapping([*points, far]) == [points[1], far]

    segments = [{"bbox": box(0, 0, "", 0), "label": label, "score": score} for label, score in (("a", 0.6), ("b", 0.7))]
    assert best_of_overlapping(segments) == segments[1:]


sides = st.floats(0, 1, width=32)
items = st.builds(box, sides, sides, st.sampled_from("abc"), sides, st.floats(0, 0.5, width=32))


@given(st.lists(items, max_size=12))
def test_no_two_that_stay_conflict_and_each_that_goes_had_a_better_one(found: list[dict[str, Any]]) -> None:
    kept = best_of_overlapping(found)
    boxes = boxes_of(found)

    def conflict(a: int, b: int) -> bool:
        return bool(ious(boxes[a], boxes[[b]])[0] >= 0.5) and found[a]["label"] != found[b]["label"]

    stays = [index for index, item in enumerate(found) if any(item is one for one in kept)]
    assert [found[index] for index in stays] == kept
    for index in range(len(found)):
        rivals = [other for other in stays if other != index and conflict(index, other)]
        assert bool(rivals) == (index not in stays)
        assert all(found[other]["score"] >= found[index]["score"] for other in rivals)


def test_iou_is_that_of_the_pixels_and_empty_boxes_have_none() -> None:
    one = np.array([0.0, 0.0, 4.0, 2.0])
    others = np.array([[2.0, 0.0, 6.0, 2.0], [0.0, 0.0, 4.0, 2.0], [5.0, 5.0, 6.0, 6.0], [1.0, 1.0, 1.0, 1.0]])

    assert ious(one, others) == pytest.approx([4 / 12, 1, 0, 0])
    assert ious(others[3], others[3:]) == pytest.approx([0])
