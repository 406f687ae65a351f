import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.bubble.figures import (
    PHASES,
    Quartiles,
    Spread,
    host_ticks,
    idle_by_period,
    median_interval,
    steady,
    together,
    typical,
)
from photonlite.observe.trace import Span
from tests.bubble.small import spans_of


def test_a_blocking_step_is_forward_finalize_and_the_bubble():
    figures = steady(spans_of(6, forward=2.0, finalize=0.5, idle=1.0))

    assert figures.forward_s == pytest.approx([2.0] * 6)
    assert figures.finalize_s == pytest.approx([0.5] * 6)
    assert figures.period_s == pytest.approx([3.5] * 5)
    assert figures.idle_s == pytest.approx([1.0] * 5)
    assert figures.busy == pytest.approx(6 * 2.5 / (6 * 2.5 + 5 * 1.0))


def test_a_host_tick_is_all_that_is_not_waiting_and_reading_the_results_is_no_waiting():
    figures = steady(spans_of(6, forward=2.0, finalize=0.5, idle=1.0))

    assert figures.tick_s == pytest.approx([1.0] * 5)
    # Six steps' phases over five ticks.
    assert figures.phase_s == pytest.approx({"plan": 0.24, "launch": 0.6, "commit": 0.24, "finalize": 0.0})


def test_a_host_that_comes_late_does_not_wait_at_all():
    spans = [
        Span("host", "wait", 0.0, 1.0, {"step": 1}),
        Span("download", "results", 2.0, 2.1, {"step": 2}),
        Span("host", "wait", 5.0, 5.2, {"step": 2}),
    ]
    assert host_ticks(spans) == pytest.approx([4.2])


def test_idle_time_belongs_to_the_period_in_which_it_begins():
    spans = [
        Span("compute", "forward", 0.0, 1.0, {"step": 1}),
        Span("compute", "finalize", 1.5, 2.0, {"step": 1}),
        Span("compute", "forward", 2.25, 3.0, {"step": 2}),
        Span("compute", "finalize", 3.0, 3.5, {"step": 2}),
        Span("compute", "forward", 3.5, 4.0, {"step": 3}),
    ]
    assert idle_by_period(spans) == pytest.approx([0.75, 0.0])


def test_rounds_put_together_keep_every_period_and_average_shares():
    whole = together([steady(spans_of(4, forward=2.0, finalize=0.5, idle=idle)) for idle in (0.0, 1.0)])

    assert whole.period_s == pytest.approx([2.5] * 3 + [3.5] * 3)
    assert whole.busy == pytest.approx((1 + 10 / 13) / 2)
    assert whole.phase_s["launch"] == pytest.approx((0 + 4 * 0.5 / 3) / 2)
    assert set(whole.phase_s) == set(PHASES)


def test_a_cycle_of_three_different_steps_has_one_typical_period():
    cycle = [1.0, 1.0, 4.0] * 10
    assert typical(cycle) == pytest.approx(2.0)
    assert typical([*cycle, 100.0, *cycle]) == pytest.approx(2.0)


@given(st.floats(0.001, 10), st.integers(1, 40))
def test_equal_periods_are_typical(period, count):
    assert typical([period] * count) == pytest.approx(period)


def test_nothing_measured_is_not_a_number():
    assert math.isnan(typical([]))
    assert math.isnan(Spread.of([]).median)
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)


def test_spread_gives_median_and_outer_percentiles():
    assert Spread.of([float(value) for value in range(101)]) == Spread(50.0, 5.0, 95.0)


def test_quartiles_of_some_values():
    assert Quartiles.of([4.0, 0.0, 2.0, 1.0, 3.0]) == Quartiles(2.0, 1.0, 3.0)
    assert Quartiles.of([5.0]) == Quartiles(5.0, 5.0, 5.0)
    assert math.isnan(Quartiles.of([]).median)


# Published tables of the sign test's interval: 1-based ranks of its ends, the least confidence 95 %.
@pytest.mark.parametrize(
    ("count", "low", "high"), [(5, 1, 5), (6, 1, 6), (8, 1, 8), (9, 2, 8), (20, 6, 15), (25, 8, 18)]
)
def test_the_interval_of_the_median_is_that_of_the_sign_test(count, low, high):
    values = [float(value) for value in range(count, 0, -1)]
    assert median_interval(values) == (low, high)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=60))
def test_the_interval_holds_the_median_of_the_values(values):
    low, high = median_interval(values)
    assert low <= sorted(values)[len(values) // 2] <= high
