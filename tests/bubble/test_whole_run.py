import dataclasses

import pytest

from bench.bubble.whole_run import WholeRun, divide, load_runs, run_whole, save_runs, whole_run_table
from photonlite.observe.trace import Span
from tests.bubble.small import round_of, spans_of, tiny_subject


def made_up(idle, steps=20):
    """A prefill, then decode steps of one second of work and some idle time."""
    prefill = Span("compute", "prefill", 8.0, 10.0, {"step": 99})
    spans = [prefill, *spans_of(steps, forward=0.75, finalize=0.25, idle=idle)]
    one = round_of(1.0 + idle, steps, streams=2, spans=spans)
    return dataclasses.replace(one, submitted=7.5)


def test_stretches_hold_equally_many_steps_and_begin_behind_the_prompts():
    found = divide(made_up(idle=0.25), stretches=4)

    assert [stretch.step for stretch in found] == [0, 4, 8, 12]
    assert [stretch.steps for stretch in found] == [4] * 4
    assert [stretch.period for stretch in found] == pytest.approx([1.25] * 4)
    assert [stretch.busy for stretch in found] == pytest.approx([0.8] * 4)
    assert [stretch.host for stretch in found] == pytest.approx([0.25] * 4)


def test_a_stretch_in_which_the_device_waited_longer_is_seen():
    spans = spans_of(10, forward=0.75, finalize=0.25, idle=0.0)
    spans += spans_of(11, forward=0.75, finalize=0.25, idle=1.0, start=20.0)
    numbered = [span._replace(args={"step": round(100 * span.start_s)}) for span in spans if span.name == "forward"]
    rest = [span for span in spans if span.name == "finalize"]
    found = divide(round_of(1.0, 20, spans=numbered + rest), stretches=2)

    assert [stretch.busy for stretch in found] == pytest.approx([1.0, 0.5])
    assert [stretch.period for stretch in found] == pytest.approx([1.0, 2.0])


def test_a_whole_run_counts_from_the_prompts_to_the_engine_that_is_free():
    one = WholeRun.of(1, made_up(idle=0.25), stretches=4)

    assert (one.depth, one.streams, one.tokens) == (1, 2, 42)
    assert one.seconds == pytest.approx(10.0 + 25.0 - 7.5)
    # Two seconds of prompts and twenty of steps, with nineteen gaps between them.
    assert one.busy == pytest.approx(22 / (22 + 19 * 0.25))


def test_answers_are_as_long_as_they_are_meant_to_be_or_as_the_context_allows():
    subject = tiny_subject()
    short, pipelined = run_whole(subject, streams=2, length=12)
    assert (short.depth, pipelined.depth, short.streams) == (1, 2, 2)
    assert short.tokens == pipelined.tokens == 2 * 12
    (long,) = run_whole(subject, streams=2, length=8000, depths=(2,))
    # Prompts of 15 tokens, and a context of 120 positions.
    assert long.tokens == 2 * (118 - 15 + 1)
    assert 0 < long.busy <= 1
    assert len(long.stretches) > 10


def test_runs_are_read_back_as_they_were_written(tmp_path):
    found = [WholeRun.of(depth, made_up(idle), stretches=4) for depth, idle in ((1, 0.25), (2, 0.0))]
    save_runs(found, "here, today", tmp_path / "deep" / "runs.json")
    assert load_runs(tmp_path / "deep" / "runs.json") == (found, "here, today")


def test_the_table_sets_the_depths_side_by_side():
    found = [WholeRun.of(depth, made_up(idle), stretches=4) for depth, idle in ((1, 0.25), (2, 0.0))]
    pipelined = [line.strip("|").split("|") for line in whole_run_table(found, absolute=True).splitlines()][-1]
    expected = ["2", "2", "42", "22.50", "100.00%", "100.00%", "1000.00, 1000.00", "+22.2%"]
    assert [cell.strip() for cell in pipelined] == expected
    shares = [line.strip("|").split("|") for line in whole_run_table(found, absolute=False).splitlines()][-1]
    assert [shares[3].strip(), shares[6].strip()] == ["0.82", "0.80, 0.80"]
