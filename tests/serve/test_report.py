import math

import pytest

from bench.serve.load import Level, Visit
from bench.serve.overhead import Wait
from bench.serve.report import LOAD_HEAD, OVERHEAD_HEAD, aims_table, load_aims, load_row, overhead_row, percentile


def level(rate, answered, refused=0, *, refused_after=0.01, broken=0):
    """One second at a rate, of which so many are answered after 10 ms, 20 ms, ..."""
    visits = [Visit(0.0, 0.0, 0.005, 0.01 * (number + 1) / answered, 200) for number in range(answered)]
    visits += [Visit(0.5, 0.001, refused_after, refused_after, 429) for _ in range(refused)]
    visits += [Visit(0.5, 0.0, 0.0, 0.0, 0) for _ in range(broken)]
    return Level(rate, 0.0, 1.0, visits, busy=0.5)


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (1.0, 4.0), (0.01, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(share, value):
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == value
    assert math.isnan(percentile([], share))


def test_a_row_of_load_stands_beside_the_capacity():
    row = dict(zip(LOAD_HEAD, load_row(level(50.0, 20, 30, broken=1), capacity=25.0), strict=True))
    assert row["offered"] == "2.00 x"
    assert row["per second"] == "50.0"
    assert row["answered per second"] == "20.0"
    assert row["of in-process"] == "80%"
    assert row["answer p50 / p95 / p99"] == "5 / 9.5 / 10"
    assert row["429"] == "30"
    assert row["429 after p50 / p99 / most"] == "10 / 10 / 10"
    assert row["other"] == "1"
    assert row["sent late p99"] == "1"


def test_a_level_without_an_answer_has_no_times():
    row = load_row(level(1.0, 0), capacity=1.0)
    assert row[4:8] == ["-", "-", "0", "-"]


def verdicts(*levels):
    return [aim.reached for aim in load_aims(levels)]


def test_overload_is_judged_by_goodput_refusals_and_other_ends():
    assert verdicts(level(10.0, 10)) == []
    assert verdicts(level(10.0, 10), level(100.0, 9, 90)) == [True, True, True]
    assert verdicts(level(10.0, 10), level(100.0, 8, 90)) == [False, True, True]
    assert verdicts(level(10.0, 10), level(100.0, 9, 90, refused_after=0.2)) == [True, False, True]
    assert verdicts(level(10.0, 10, broken=1), level(100.0, 9, 90)) == [True, True, False]


def test_what_http_adds_is_the_median_over_requests():
    waits = [Wait(0.012, 0.010), Wait(0.0215, 0.020), Wait(0.0305, 0.030)]
    row, aim = overhead_row("small", 22_000, waits)
    assert dict(zip(OVERHEAD_HEAD, row, strict=True))["HTTP p10 / p50 / p90"] == "0.5 / 1.5 / 2"
    assert row[:4] == ["small", "22 kB", "21.50", "20.00"]
    assert aim.reached
    assert not overhead_row("small", 1, [Wait(0.003, 0.001)])[1].reached
    assert "| 1.50 ms  | reached |" in aims_table([aim])
