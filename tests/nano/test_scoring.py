import math
from collections import Counter

import pytest

from bench.nano.objects import index_of, load_objects
from bench.nano.scoring import (
    UNKNOWN_KIND,
    Counts,
    Match,
    auc,
    average_precision,
    compare_counts,
    count_matches,
    inside,
    iou,
    match_boxes,
    mean,
    pairs_in_order,
    parse_caption,
    same_answer,
)

UNIT = (0.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (UNIT, 1.0),
        ((0.0, 0.0, 0.5, 1.0), 0.5),
        ((0.5, 0.5, 1.5, 1.5), 0.25 / 1.75),
        ((1.0, 0.0, 2.0, 1.0), 0.0),
        ((3.0, 3.0, 4.0, 4.0), 0.0),
        ((0.5, 0.5, 0.5, 0.5), 0.0),
    ],
)
def test_iou(other, expected):
    assert iou(UNIT, other) == pytest.approx(expected)
    assert iou(other, UNIT) == pytest.approx(expected)


def test_iou_of_empty_boxes_is_zero():
    assert iou((1, 1, 1, 1), (1, 1, 1, 1)) == 0.0


def test_best_overlaps_are_paired_first():
    truths = [(0.0, 0.0, 1.0, 1.0), (0.25, 0.0, 1.25, 1.0)]
    # The first answer would do for both truths (0.67, 0.90) and takes the better; the second is left with the other.
    answers = [(0.2, 0.0, 1.2, 1.0), (0.05, 0.0, 1.05, 1.0)]
    assert [(match.answer, match.truth) for match in match_boxes(answers, truths)] == [(0, 1), (1, 0)]


def test_a_true_box_is_matched_once():
    assert count_matches([UNIT, UNIT, UNIT], [UNIT]) == Counts(right=1, wrong=2, missed=0)


def test_overlap_below_the_threshold_is_no_match():
    half = (0.0, 0.0, 0.5, 1.0)
    assert count_matches([half], [UNIT], threshold=0.5) == Counts(right=1)
    assert count_matches([half], [UNIT], threshold=0.51) == Counts(wrong=1, missed=1)


def test_counts_give_rates():
    counts = Counts(right=2, wrong=1, missed=0) + Counts(right=1, wrong=0, missed=2)
    assert counts == Counts(3, 1, 2)
    assert counts.precision == pytest.approx(3 / 4)
    assert counts.recall == pytest.approx(3 / 5)
    assert counts.f1 == pytest.approx(2 * 0.75 * 0.6 / 1.35)


def test_nothing_asked_is_not_a_number():
    assert math.isnan(Counts().f1)
    assert math.isnan(Counts(missed=1).precision)
    assert math.isnan(mean([]))


def test_average_precision_of_a_worked_example():
    # Ranked right, wrong, right, wrong of 3: precision 1 up to recall 1/3, then 2/3 up to recall 2/3, nothing after.
    scores, right = [0.2, 0.9, 0.8, 0.5], [False, True, False, True]
    assert average_precision(scores, right, 3) == pytest.approx(1 / 3 + (1 / 3) * (2 / 3))


def test_average_precision_makes_precision_monotone():
    # Precision at the hits is 1/2, then 2/3: the later and higher one counts for both.
    assert average_precision([0.9, 0.8, 0.7], [False, True, True], 2) == pytest.approx(2 / 3)


def test_average_precision_does_not_depend_on_the_order_of_equal_scores():
    assert average_precision([0.5, 0.5], [True, False], 1) == pytest.approx(0.5)
    assert average_precision([0.5, 0.5], [False, True], 1) == pytest.approx(0.5)


def test_average_precision_at_the_limits():
    assert average_precision([0.3, 0.2], [True, True], 2) == pytest.approx(1.0)
    assert average_precision([], [], 2) == 0.0
    assert math.isnan(average_precision([0.5], [False], 0))


def test_auc_is_the_chance_that_right_outscores_wrong():
    # Pairs: 0.9 beats both, 0.4 ties with 0.4 and beats 0.1.
    assert auc([0.9, 0.4], [0.4, 0.1]) == pytest.approx(3.5 / 4)
    assert auc([0.1], [0.9]) == 0.0
    assert auc([0.5, 0.5], [0.5]) == pytest.approx(0.5)
    assert math.isnan(auc([0.5], []))


def test_inside_counts_the_edge():
    assert inside((0.0, 1.0), UNIT)
    assert inside((0.4, 0.4), UNIT)
    assert not inside((0.4, 1.01), UNIT)
    assert not inside((-0.01, 0.4), UNIT)


def test_reading_order_counts_consecutive_pairs():
    top_right, top_left, bottom = (0.8, 0.0, 0.9, 0.1), (0.1, 0.0, 0.2, 0.1), (0.0, 0.8, 0.1, 0.9)
    truths = [top_right, top_left, bottom]
    in_order = [Match(0, 1, 1.0), Match(1, 0, 1.0), Match(2, 2, 1.0)]
    assert pairs_in_order(in_order, truths) == (2, 2)
    assert pairs_in_order([Match(0, 2, 1.0), Match(1, 1, 1.0), Match(2, 0, 1.0)], truths) == (1, 2)
    assert pairs_in_order([Match(0, 2, 1.0)], truths) == (0, 0)
    assert pairs_in_order([], truths) == (0, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3 bananas, 1 dog and 2 keys.", {"banana": 3, "dog": 1, "key": 2}),
        ("1 fork and knife and 2 forks and knives.", {"fork and knife": 3}),
        ("10 Red Apples", {"red apple": 10}),
        ("Nothing.", {}),
        ("", {}),
    ],
)
def test_captions_are_read_as_counts(text, expected):
    assert parse_caption(text) == {index_of(name): count for name, count in expected.items()}


def test_what_no_object_is_called_is_counted_as_unknown():
    assert parse_caption("2 bananas and 4 glorps.") == {index_of("banana"): 2, UNKNOWN_KIND: 1}
    assert parse_caption("a banana") == {UNKNOWN_KIND: 1}


def test_every_caption_that_can_be_made_is_read_back():
    objects = load_objects()
    for index, item in enumerate(objects):
        text = f"2 {item.plural}, 1 {objects[index - 1].name} and 3 {objects[index - 2].plural}."
        assert parse_caption(text) == Counter({index: 2, (index - 1) % len(objects): 1, (index - 2) % len(objects): 3})


def test_counts_of_kinds_are_compared_with_and_without_numbers():
    answer, truth = {1: 2, 2: 1, 9: 1}, {1: 3, 2: 1, 5: 4}
    assert compare_counts(answer, truth, exact=False) == Counts(right=2, wrong=1, missed=1)
    assert compare_counts(answer, truth, exact=True) == Counts(right=1, wrong=2, missed=2)


def test_short_answers_are_compared_loosely():
    assert same_answer(" yes.", "Yes")
    assert same_answer("10", "10")
    assert not same_answer("1", "10")
    assert not same_answer("", "0")
