import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.observe.trace import Span, busy_share, idle_intervals, idle_per_period, step_starts


def idle_gaps(spans):
    return [end - start for start, end in idle_intervals(spans)]


def compute(start, end, name="forward", **args):
    return Span("compute", name, start, end, args)


def test_gaps_lie_between_the_end_of_one_compute_span_and_the_start_of_the_next():
    spans = [compute(5.0, 6.0), compute(0.0, 2.0), compute(2.25, 4.0)]
    assert idle_gaps(spans) == [0.25, 1.0]
    assert busy_share(spans) == pytest.approx(4.75 / 6)


def test_overlapping_nested_and_touching_spans_are_one_and_leave_no_gap():
    spans = [compute(0.0, 4.0), compute(1.0, 2.0), compute(3.0, 5.0), compute(5.0, 6.0), compute(8.0, 9.0)]
    assert idle_gaps(spans) == [2.0]
    assert busy_share(spans) == pytest.approx(7 / 9)


def test_only_the_compute_track_counts():
    spans = [compute(0.0, 1.0), Span("host", "wait", 1.0, 2.0, {}), Span("upload", "masks", 1.0, 3.0, {})]
    assert idle_gaps([*spans, compute(3.0, 4.0)]) == [2.0]
    assert (idle_gaps(spans[1:]), busy_share(spans[1:])) == ([], 0.0)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=12))
def test_gaps_and_busy_time_add_up_to_the_whole(drawn):
    spans = [compute(float(start), float(start + length)) for start, length in drawn]
    covered = {second for start, length in drawn for second in range(start, start + length)}
    whole = max(covered) + 1 - min(covered)

    assert sum(idle_gaps(spans)) == whole - len(covered)
    assert all(gap > 0 for gap in idle_gaps(spans))
    assert busy_share(spans) == pytest.approx(len(covered) / whole)


def test_a_step_begins_with_its_first_span_and_not_with_its_finalize():
    spans = [
        compute(0.0, 0.5, "finalize", step=0),  # its forward has left the ring
        compute(1.0, 2.0, "copy pages", step=1),
        compute(2.0, 3.0, "forward", step=1),
        compute(3.0, 4.0, "finalize", step=1),
        compute(5.0, 6.0, "encode", step=2),
        compute(7.0, 8.0, "forward"),
        compute(8.0, 9.0, "forward"),
    ]
    assert step_starts(spans) == [1.0, 5.0, 7.0, 8.0]


def test_idle_per_period_counts_all_gaps_of_whole_periods_only():
    spans = []
    for step in range(4):
        start = 10.0 * step
        spans.append(compute(start, start + 6.0, step=step))
        spans.append(compute(start + 6.5, start + 8.0, "finalize", step=step))
    # Of each period of 10 seconds 0.5 and 2 are idle; the gap within the last step belongs to no whole period.
    assert idle_per_period(spans) == pytest.approx(2.5)
    assert math.isnan(idle_per_period(spans[:2]))
