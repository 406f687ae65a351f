from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.results.export import box_of
from photonlite.skills.merging import best_of_overlapping, boxes_of, ious, merge_tiles
from photonlite.skills.tiles import Region, cut_tiles


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
        better = [other for other in rivals if found[other]["score"] >= found[index]["score"]]
        assert bool(rivals) == bool(better) == (index not in stays)  # worse ones may stay beside one that goes


def test_iou_is_that_of_the_pixels_and_empty_boxes_have_none() -> None:
    one = np.array([0.0, 0.0, 4.0, 2.0])
    others = np.array([[2.0, 0.0, 6.0, 2.0], [0.0, 0.0, 4.0, 2.0], [5.0, 5.0, 6.0, 6.0], [1.0, 1.0, 1.0, 1.0]])

    assert ious(one, others) == pytest.approx([4 / 12, 1, 0, 0])
    assert ious(others[3], others[3:]) == pytest.approx([0])


# ---- tiles

SIZE = (1200, 900)
Truth = tuple[float, float, float, float]


def seen(truths: list[Truth], tile: Any, *, points: bool = False) -> list[tuple[dict[str, Any], Region | None]]:
    """What a perfect detector finds in the image and in each tile: the part of every object that a tile shows."""
    found: list[tuple[dict[str, Any], Region | None]] = []
    for region in [None, *cut_tiles(SIZE, tile, 400)]:
        x0, y0, x1, y1 = (0, 0, *SIZE) if region is None else region.box
        left, top, right, bottom = x0 / SIZE[0], y0 / SIZE[1], x1 / SIZE[0], y1 / SIZE[1]
        for truth in truths:
            a, b, c, d = max(truth[0], left), max(truth[1], top), min(truth[2], right), min(truth[3], bottom)
            if a < c and b < d:
                shown = {"x_min": a, "y_min": b, "x_max": c, "y_max": d, "label": "mug", "score": 0.5}
                point = {"x": (a + c) / 2, "y": (b + d) / 2, "label": "mug", "score": 0.5}
                found.append((point if points else shown, region))
    return found


@st.composite
def truths(draw: st.DrawFn) -> list[Truth]:
    """Objects in the cells of a grid, apart from each other, and shorter than an overlap of 3 x 3 tiles."""
    cells = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), unique=True, max_size=12))
    found = []
    for column, row in cells:
        width, height = draw(st.floats(0.03, 0.09)), draw(st.floats(0.03, 0.09))
        x = (column + draw(st.floats(0.05, 0.4))) / 6
        y = (row + draw(st.floats(0.05, 0.4))) / 6
        found.append((x, y, x + width, y + height))
    return found


@given(truths(), st.sampled_from([(3, 3), (2, 2), (1, 3), 500]))
def test_each_object_is_there_once_and_whole(objects: list[Truth], tile: Any) -> None:
    merged = merge_tiles(seen(objects, tile), SIZE)

    assert sorted(box_of(item) for item in merged) == sorted(objects)


@given(truths(), st.sampled_from([(3, 3), (2, 2), (1, 3), 500]))
def test_each_object_has_one_point_in_it(objects: list[Truth], tile: Any) -> None:
    merged = merge_tiles(seen(objects, tile, points=True), SIZE)

    assert len(merged) == len(objects)
    for x0, y0, x1, y1 in objects:
        assert sum(x0 < item["x"] < x1 and y0 < item["y"] < y1 for item in merged) == 1


def tiles_only(found: list[tuple[dict[str, Any], Region | None]]) -> list[tuple[dict[str, Any], Region | None]]:
    return [one for one in found if one[1] is not None]


def test_a_part_of_an_object_is_pointed_at_in_no_other_tile() -> None:
    for x in np.linspace(0.2, 0.8, 61):
        found = tiles_only(seen([(x - 0.04, 0.1, x + 0.04, 0.18)], (1, 3), points=True))
        assert len(merge_tiles(found, SIZE)) == 1


def test_a_part_goes_even_where_its_box_is_wide_of_the_object() -> None:
    left, right, *_ = cut_tiles(SIZE, (1, 2), 400)
    edge = left.box[2] / SIZE[0]
    whole = {"x_min": edge - 0.03, "y_min": 0.2, "x_max": edge + 0.05, "y_max": 0.3, "label": "mug", "score": 0.9}
    part = {**whole, "x_max": edge - 0.01, "y_min": 0.27, "y_max": 0.35}

    assert merge_tiles([(part, left), (whole, right)], SIZE) == [whole]


def test_tiles_find_what_the_image_as_a_whole_does_not() -> None:
    objects = [(0.1, 0.1, 0.15, 0.15), (0.33, 0.33, 0.39, 0.39), (0.7, 0.5, 0.76, 0.55)]
    found = tiles_only(seen(objects, (3, 3)))

    assert sorted(box_of(item) for item in merge_tiles(found, SIZE)) == objects


def test_parts_of_an_object_longer_than_an_overlap_give_way_to_the_whole_one() -> None:
    found = seen([(0.1, 0.2, 0.9, 0.6)], (3, 3))

    assert len(found) > 5
    assert merge_tiles(found, SIZE) == [found[0][0]]


def test_a_larger_part_stays_where_no_tile_shows_the_object_whole() -> None:
    found = tiles_only(seen([(0.2, 0.1, 0.45, 0.2)], (1, 3)))

    [kept] = merge_tiles(found, SIZE)
    assert kept["x_max"] - kept["x_min"] == max(item["x_max"] - item["x_min"] for item, _ in found)


def test_neighbours_that_one_tile_shows_both_stay() -> None:
    two = [({**box(x, 0.1, "mug", 0.5), "x_max": x + 0.1, "y_max": 0.2}, None) for x in (0.1, 0.12)]

    assert merge_tiles(two, SIZE) == [item for item, _ in two]
    assert merge_tiles([], SIZE) == []


def test_of_the_same_object_in_image_and_tile_the_better_score_stays() -> None:
    [whole, tiled] = seen([(0.1, 0.1, 0.15, 0.15)], (3, 3))
    tiled[0]["score"], tiled[0]["x_max"] = 0.9, 0.16

    assert merge_tiles([whole, tiled], SIZE) == [tiled[0]]
    assert merge_tiles([tiled, whole], SIZE) == [tiled[0]]
