import gzip
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.observe.trace import Span, Tracer, busy_share, idle_intervals, idle_per_period, step_starts


def test_spans_come_back_in_the_order_in_which_they_were_recorded():
    tracer = Tracer()
    tracer.span("compute", "forward", 2.0, 3.0, step=1)
    tracer.span("host", "plan", 1.0, 1.5)
    assert tracer.spans() == [
        Span("compute", "forward", 2.0, 3.0, {"step": 1}),
        Span("host", "plan", 1.0, 1.5, {}),
    ]


def test_a_full_ring_drops_and_counts_the_oldest_spans():
    tracer = Tracer(capacity=3)
    for step in range(5):
        tracer.span("host", "plan", float(step), step + 0.5, step=step)
    assert [span.args["step"] for span in tracer.spans()] == [2, 3, 4]
    assert tracer.dropped == 2
    tracer.clear()
    assert (tracer.spans(), tracer.dropped) == ([], 0)


def test_a_ring_without_room_is_refused():
    with pytest.raises(ValueError, match="capacity of 0"):
        Tracer(capacity=0)


def test_a_host_phase_is_recorded_from_entry_to_exit_also_when_it_raises():
    tracer = Tracer()
    with pytest.raises(KeyError), tracer.host("commit", step=12), tracer.host("wait"):
        raise KeyError
    wait, commit = tracer.spans()
    assert (commit.track, commit.name, commit.args) == ("host", "commit", {"step": 12})
    assert commit.start_s <= wait.start_s <= wait.end_s <= commit.end_s


def test_a_tracer_that_is_off_records_nothing_until_it_is_on():
    tracer = Tracer(enabled=False)
    tracer.span("host", "plan", 0.0, 1.0)
    with tracer.host("commit"):
        pass
    assert tracer.spans() == []
    assert tracer.host("commit") is tracer.host("plan")  # nothing is made
    tracer.enabled = True
    with tracer.host("commit"):
        pass
    assert len(tracer.spans()) == 1


def test_an_end_before_the_start_counts_as_the_start():
    tracer = Tracer()
    tracer.span("download", "results", 2.0, 1.9999)
    assert tracer.spans()[0].end_s == 2.0


def test_a_saved_trace_has_named_ordered_tracks_and_complete_events_in_microseconds(tmp_path):
    tracer = Tracer(capacity=4)
    tracer.span("host", "dropped", 0.0, 0.1)
    tracer.span("compute", "forward", 100.001, 100.0035, step=np.int64(7))
    tracer.span("host", "wait", 100.0, 100.001)
    tracer.span("host", "commit", 100.0, 100.002, step=6)
    tracer.span("upload", "masks", 100.0005, 100.0005)
    tracer.save(tmp_path / "trace.json")

    trace = json.loads((tmp_path / "trace.json").read_text())

    metadata = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    names = {event["tid"]: event["args"]["name"] for event in metadata if event["name"] == "thread_name"}
    order = {event["tid"]: event["args"]["sort_index"] for event in metadata if event["name"] == "thread_sort_index"}
    assert [names[tid] for tid in sorted(order, key=order.__getitem__)] == ["host", "compute", "upload", "download"]
    assert [event["args"]["name"] for event in metadata if event["name"] == "process_name"] == ["photonlite"]

    events = trace["traceEvents"][len(metadata) :]
    assert {event["ph"] for event in events} == {"X"}
    assert {event["pid"] for event in trace["traceEvents"]} == {1}
    # By time, and of two that start together the one that holds the other first.
    assert [(names[event["tid"]], event["name"], event["ts"], event["dur"]) for event in events] == [
        ("host", "commit", 0.0, 2000.0),
        ("host", "wait", 0.0, 1000.0),
        ("upload", "masks", 500.0, 0.0),
        ("compute", "forward", 1000.0, 2500.0),
    ]
    assert events[0]["args"] == {"step": 6}
    assert events[3]["args"] == {"step": "7"}
    assert trace["otherData"] == {"dropped_spans": 1}


def test_images_that_are_encoded_beside_the_steps_have_a_track_of_their_own(tmp_path):
    tracer = Tracer()
    tracer.span("encode", "encode", 1.0, 2.0, step=3)
    tracer.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    [number] = [event["tid"] for event in events if event["args"].get("name") == "encode"]
    assert [event["tid"] for event in events if event["ph"] == "X"] == [number]
    assert busy_share(tracer.spans()) == 0  # of the compute stream


def test_a_path_that_ends_in_gz_is_compressed(tmp_path):
    tracer = Tracer()
    tracer.span("host", "plan", 1.0, 2.0)
    tracer.save(str(tmp_path / "trace.json.gz"))
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        assert json.load(file)["traceEvents"][-1]["name"] == "plan"


def test_an_empty_trace_can_be_saved(tmp_path):
    Tracer().save(tmp_path / "trace.json")
    assert all(event["ph"] == "M" for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"])


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
