import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gpu.samples import Sample, median_of, window_rates


def test_a_sample_tells_its_middle_its_ends_and_its_slowest_hundredth():
    sample = Sample.of(float(value) for value in range(101))
    assert (sample.median, sample.low, sample.high, sample.p99) == (50.0, 0.0, 100.0, 99.0)
    assert Sample.of([3.0]).p99 == 3.0


def test_a_sample_without_values_is_refused():
    with pytest.raises(AssertionError, match="0 values"):
        Sample.of([])


def test_one_number_that_is_not_known_makes_the_median_unknown():
    assert median_of([1.0, 2.0, 9.0]) == 2.0
    assert math.isnan(median_of([1.0, math.nan, 3.0]))
    assert math.isnan(median_of([]))


@given(st.integers(1, 6), st.integers(0, 5), st.floats(0.01, 10), st.randoms())
def test_evenly_spaced_events_have_one_rate_in_every_window(windows, skip, period, random):
    ends = [period * index for index in range(2 * skip + 3 * windows + 1)]
    random.shuffle(ends)
    assert window_rates(ends, windows, skip=skip).values == pytest.approx([1 / period] * windows)


def test_what_happens_at_the_ends_does_not_count():
    # A slow beginning, ten events a second, and a slow end.
    ends = [0.0, 5.0, *(5.1 + 0.1 * index for index in range(20)), 20.0, 40.0]
    assert window_rates(ends, 2, skip=2).values == pytest.approx([10.0, 10.0])


def test_windows_need_an_event_each():
    with pytest.raises(AssertionError, match="cannot be split into 5 windows"):
        window_rates([1.0, 2.0, 3.0], 5)
