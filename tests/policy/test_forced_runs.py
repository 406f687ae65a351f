"""Steps that lists of boxes take on a modelled device."""

import random

import pytest

from bench.forced_runs.modelled import answer_lists, draw_list


@pytest.mark.parametrize(
    ("least", "most", "bound", "decode", "runs"),
    [(101, 999, 999, 80, 51), (201, 999, 1000, 80, 51), (101, 199, 1000, 120, 51)],
)
def test_a_list_takes_few_steps_and_drops_no_more_than_its_end(
    least: int, most: int, bound: int, decode: int, runs: int
) -> None:
    lists = [draw_list(random.Random(0), (least, most))]

    # Of a number three digits are sampled, and where a fourth may follow a separator; the last one comes with a run.
    assert answer_lists(lists, bound, runs=True).launches == {"prefill": 1, "decode": decode, "run": runs}
    assert answer_lists(lists, bound, runs=False).launches == {"prefill": 1, "decode": len(lists[0])}


@pytest.mark.parametrize("streams", [4, 16])
def test_lists_of_any_numbers_are_the_same_and_take_less_time(streams: int) -> None:
    dice = random.Random(streams)
    lists = [draw_list(dice, (0, 1000)) for _ in range(streams)]

    assert answer_lists(lists, 1000, runs=True).now < answer_lists(lists, 1000, runs=False).now
