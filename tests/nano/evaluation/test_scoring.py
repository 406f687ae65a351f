import math

import numpy as np
import pytest

from bench.nano.evaluation.scoring import (
    Counts,
    Match,
    auc,
    average_precision,
    average_precisions,
    calibration_error,
    inside,
    iou,
    match_boxes,
    mean,
    pairs_in_order,
    reliability,
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
    assert len(match_boxes([UNIT, UNIT, UNIT], [UNIT])) == 1


def test_overlap_below_the_threshold_is_no_match():
    half = (0.0, 0.0, 0.5, 1.0)
    assert len(match_boxes([half], [UNIT], threshold=0.5)) == 1
    assert match_boxes([half], [UNIT], threshold=0.51) == []


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


def test_a_weight_stands_for_so_many_equal_answers():
    scores, right = [0.9, 0.8, 0.5], [True, False, True]
    weights = np.array([[1.0, 1.0, 1.0], [2.0, 0.0, 1.0], [0.0, 3.0, 1.0]])
    found = average_precisions(scores, right, weights, np.array([2.0, 4.0, 1.0]))
    again = [
        average_precision(scores, right, 2),
        average_precision([0.9, 0.9, 0.5], [True, True, True], 4),
        average_precision([0.8, 0.8, 0.8, 0.5], [False, False, False, True], 1),
    ]
    assert found == pytest.approx(again)


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


def test_short_answers_are_compared_loosely():
    assert same_answer(" yes.", "Yes")
    assert same_answer("10", "10")
    assert not same_answer("1", "10")
    assert not same_answer("", "0")


def test_calibration_compares_scores_with_shares_bin_by_bin():
    pairs = [(0.95, True)] * 19 + [(0.95, False)] + [(0.3, False)] * 5
    low, high = reliability(pairs)
    assert (low.count, low.score, low.right) == (5, pytest.approx(0.3), 0)
    assert (high.count, high.score, high.right) == (20, pytest.approx(0.95), 0.95)
    assert low.low <= 0.3 < low.high < high.low <= 0.95 < high.high == 1
    assert calibration_error([low, high]) == pytest.approx(0.3 * 5 / 25)
    assert calibration_error(reliability([(1.0, True)])) == 0
    assert math.isnan(calibration_error([]))
