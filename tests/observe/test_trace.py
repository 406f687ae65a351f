import gzip
import json

import numpy as np
import pytest

from photonlite.observe.trace import Span, Tracer


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


def test_a_path_that_ends_in_gz_is_compressed(tmp_path):
    tracer = Tracer()
    tracer.span("host", "plan", 1.0, 2.0)
    tracer.save(str(tmp_path / "trace.json.gz"))
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        assert json.load(file)["traceEvents"][-1]["name"] == "plan"


def test_an_empty_trace_can_be_saved(tmp_path):
    Tracer().save(tmp_path / "trace.json")
    assert all(event["ph"] == "M" for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"])
