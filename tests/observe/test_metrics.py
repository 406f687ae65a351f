import json
import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.observe.metrics import TIME_BOUNDS, EngineMetrics, Histogram, format_seconds

GAUGES = (
    *("pages_free", "pages_cached", "pages_usable", "pages_budget", "pages_predicted", "pages_forecast", "pages_peak"),
    "swapped",
    *("page_bytes", "running", "waiting", "in_flight"),
    *("open_realtime", "open_bulk", "oldest_realtime_s", "oldest_bulk_s", "preparing", "prepared_bytes"),
)
HISTOGRAMS = {
    "queue_s",
    "preprocess_s",
    "encode_s",
    "prefill_s",
    "decode_s",
    "time_to_first_token_s",
    "token_s",
    "batch_size",
}


def test_a_value_on_a_bound_belongs_below_it_and_larger_ones_go_into_the_last_bucket():
    histogram = Histogram((1.0, 2.0, 4.0))
    for value in (0.0, 1.0, 1.5, 2.0, 4.0, 4.5, 100.0):
        histogram.observe(value)
    assert histogram.buckets == [2, 2, 1, 2]
    assert (histogram.count, histogram.sum, histogram.largest) == (7, 113.0, 100.0)


def test_quantiles_are_interpolated_inside_their_bucket():
    histogram = Histogram((1.0, 2.0, 4.0))
    for value in (0.5, 0.5, 1.5, 1.5, 3.0, 3.0, 3.0, 4.0):
        histogram.observe(value)
    assert histogram.quantile(0.0) == 0.0
    assert histogram.quantile(0.125) == 0.5
    assert histogram.quantile(0.25) == 1.0
    assert histogram.quantile(0.375) == 1.5
    assert histogram.quantile(0.75) == 3.0
    assert histogram.quantile(1.0) == 4.0


def test_quantiles_beyond_the_last_bound_reach_the_largest_value_and_no_further():
    histogram = Histogram((1.0, 2.0))
    for value in (3.0, 10.0):
        histogram.observe(value)
    assert histogram.quantile(0.5) == 6.0  # half the way from 2 to 10
    assert histogram.quantile(1.0) == 10.0
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.25)
    assert histogram.quantile(1.0) == 1.25


@given(st.lists(st.floats(0, 200), min_size=1, max_size=60), st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_the_value_it_estimates(values, q):
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    true = sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
    bucket = bisect_left(TIME_BOUNDS, true)
    low = TIME_BOUNDS[bucket - 1] if bucket else 0.0
    high = TIME_BOUNDS[bucket] if bucket < len(TIME_BOUNDS) else math.inf
    assert low <= histogram.quantile(q) <= min(high, histogram.largest)


def test_an_empty_histogram_has_no_quantiles_and_a_share_must_be_one():
    assert math.isnan(Histogram().quantile(0.5))
    assert math.isnan(Histogram().mean)
    with pytest.raises(ValueError, match=r"1\.5"):
        Histogram().quantile(1.5)


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0)])
def test_bounds_that_do_not_grow_are_refused(bounds):
    with pytest.raises(AssertionError, match="bounds grow"):
        Histogram(bounds)


def test_a_snapshot_is_plain_json_and_holds_everything_that_was_counted():
    metrics = EngineMetrics()
    metrics.tokens += 3
    metrics.steps["decode"] += 2
    metrics.pages_free = 7
    metrics.token_s.observe(0.0025)
    metrics.token_s.observe(500.0)

    snapshot = json.loads(json.dumps(metrics.snapshot(), allow_nan=False))

    assert snapshot["counters"]["tokens"] == 3
    assert snapshot["counters"].keys().isdisjoint(snapshot["gauges"])
    assert snapshot["counters"]["steps"] == {"encode": 0, "prefill": 0, "decode": 2, "run": 0, "mixed": 0}
    assert snapshot["gauges"] == {**dict.fromkeys(GAUGES, 0), "pages_free": 7, "tensor_parallel": 1}
    assert set(snapshot["histograms"]) == HISTOGRAMS
    token_s = snapshot["histograms"]["token_s"]
    assert (token_s["count"], token_s["sum"], token_s["largest"]) == (2, 500.0025, 500.0)
    assert {bound: token_s["buckets"][bound] for bound in ("0.002", "0.003", "100.0", "+Inf")} == {
        "0.002": 0,
        "0.003": 1,
        "100.0": 1,
        "+Inf": 2,
    }


def test_a_snapshot_does_not_change_with_what_comes_later():
    metrics = EngineMetrics()
    before = metrics.snapshot()
    metrics.steps["encode"] += 1
    metrics.queue_s.observe(1.0)
    assert before["counters"]["steps"]["encode"] == 0
    assert before["histograms"]["queue_s"]["count"] == 0


def test_two_engines_share_no_counts():
    first, second = EngineMetrics(), EngineMetrics()
    first.batch_size.observe(8)
    first.steps["decode"] += 1
    assert (second.batch_size.count, second.steps["decode"]) == (0, 0)


def test_the_summary_is_a_narrow_table_of_what_was_observed():
    metrics = EngineMetrics(requests_submitted=1234, prefix_hits=3, prefix_misses=1, pages_usable=10, pages_free=4)
    metrics.token_s.observe(0.0029)
    metrics.batch_size.observe(8)

    text = str(metrics)

    assert text == metrics.summary()
    assert "1,234 submitted" in text
    assert "prefix hits (75%)" in text
    assert "6 used" in text
    assert "queue" not in text
    rows = {line[:22].strip(): line.split()[-2:] for line in text.splitlines()[-2:]}
    assert rows == {"token": ["2.90", "ms"], "batch size": ["8.0", "8.0"]}
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.0, "0 us"),
        (8.3e-6, "8.30 us"),
        (512.4e-6, "512 us"),
        (999.7e-6, "1.00 ms"),
        (9.996e-3, "10.0 ms"),
        (2.934e-3, "2.93 ms"),
        (0.9996, "1.00 s"),
        (75.0, "75.0 s"),
        (4321.0, "4321 s"),
        (math.nan, "-"),
    ],
)
def test_times_are_written_with_three_digits_in_the_unit_that_fits(seconds, written):
    assert format_seconds(seconds) == written
