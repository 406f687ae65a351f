import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.bubble.cost_model import (
    PUBLISHED,
    batch_zombie_share,
    predicted_gain,
    published_share,
    row_cost,
    step_zombie_chance,
    zombie_share,
)

# A step of 4 ms, and 0.1 ms for each row.
AFFINE = {rows: 4 + 0.1 * rows for rows in (1, 8, 32)}


def test_one_stream_pays_a_whole_step_for_each_answer():
    assert row_cost(1, AFFINE) == pytest.approx(4.1)
    assert zombie_share(1, 110, AFFINE) == pytest.approx(1 / 110)


@pytest.mark.parametrize(("streams", "share"), [(8, 8 / 100 * 0.1 / 4.8), (32, 32 / 100 * 0.1 / 7.2)])
def test_many_streams_pay_for_a_row_more(streams, share):
    assert row_cost(streams, AFFINE) == pytest.approx(0.1)
    assert zombie_share(streams, 100, AFFINE) == pytest.approx(share)
    assert zombie_share(streams, 50, AFFINE) == pytest.approx(2 * share)


def test_where_steps_cost_by_the_row_alone_every_batch_pays_as_one_stream_does():
    linear = {rows: 0.5 * rows for rows in (1, 8, 32)}
    assert [zombie_share(rows, 110, linear) for rows in linear] == pytest.approx([1 / 110] * 3)


def test_without_a_smaller_batch_the_average_row_stands_for_the_last_one():
    assert row_cost(32, {32: 7.2}) == pytest.approx(7.2 / 32)


def test_a_batch_that_is_quicker_than_a_smaller_one_pays_nothing():
    assert zombie_share(8, 110, {1: 2.0, 8: 1.9}) == 0


def test_a_step_carries_a_zombie_if_any_of_its_rows_has_just_ended():
    outcomes = [ended for ended in itertools.product((True, False), repeat=2) if any(ended)]
    by_hand = sum(0.25 ** sum(ended) * 0.75 ** (2 - sum(ended)) for ended in outcomes)
    assert step_zombie_chance(2, 4) == pytest.approx(by_hand)


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=8), st.integers(2, 300), st.floats(0, 1))
def test_a_batch_that_runs_to_its_end_pays_one_full_step_however_it_shrinks(costs, length, base):
    """Zombies of a batch that shrinks row by row, added up one by one; a step of b rows costs base and the first b."""
    cost = [0.0, *(base + total for total in itertools.accumulate(costs))]
    rows = len(costs)
    useful = length * cost[rows] + sum(cost[1:rows])
    zombies = sum(cost[left] - cost[left - 1] for left in range(rows, 0, -1))
    assert batch_zombie_share(cost[rows], useful + zombies) == pytest.approx(zombies / (useful + zombies))


def test_the_prediction_is_the_gain_of_a_step_less_the_zombies():
    assert predicted_gain(1.2, 0.01) == pytest.approx(1.188)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row.hardware}-{row.streams}")
def test_the_formula_for_streams_gives_the_published_predictions(row):
    ours = predicted_gain(row.t_block / row.t_pipe, published_share(row))
    assert 100 * ours == pytest.approx(100 * row.predicted, abs=0.1)


def test_one_answer_in_a_hundred_and_ten_does_not_give_the_published_predictions_of_batches():
    off = [
        100 * abs(predicted_gain(row.t_block / row.t_pipe, 1 / row.length) - row.predicted)
        for row in PUBLISHED
        if row.streams > 1
    ]
    assert min(off) > 0.4
