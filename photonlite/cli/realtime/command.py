"""Plays a source of frames through a real-time loop, and reports on it."""

import argparse
import queue
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from photonlite.cli.inputs import report_skipped
from photonlite.cli.parser import given_search, given_settings
from photonlite.cli.realtime.recorder import FrameRecorder
from photonlite.cli.run import advise_of_joined, import_extra, load_model, to_json
from photonlite.errors import InputError
from photonlite.observe.metrics import format_seconds
from photonlite.pauses import short_collections
from photonlite.realtime.frames import FrameFailure, FrameOutcome, FrameResult, Question
from photonlite.realtime.loop import RealtimeLoop
from photonlite.realtime.sources import Feed, open_source
from photonlite.realtime.state import LoopStats
from photonlite.results.tracking import require_trackers


class Reporter:
    """Reports on a loop every `period_s` seconds."""

    period_s: float

    def add_outcome(self, outcome: FrameOutcome) -> None: ...
    def update(self, stats: LoopStats) -> None: ...
    def close(self, stats: LoopStats) -> None: ...


class Lines(Reporter):
    """A line of text each second, on stderr."""

    period_s = 1.0

    def update(self, stats: LoopStats) -> None:
        print(summary(stats, stats.rate), file=sys.stderr, flush=True)

    def close(self, stats: LoopStats) -> None:
        print(summary(stats, stats.mean_rate), file=sys.stderr, flush=True)


class JsonLines(Reporter):
    """A line of JSON for every result and failure, and the statistics at the end, on stdout."""

    period_s = 0.02

    def add_outcome(self, outcome: FrameOutcome) -> None:
        line: dict[str, Any] = {"frame": outcome.number}
        if isinstance(outcome, FrameFailure):
            line["error"] = {"type": type(outcome.error).__name__, "message": str(outcome.error)}
        else:
            times = {"latency_ms": round(1000 * outcome.latency_s, 3), "met_deadline": outcome.met_deadline}
            line |= {**times, **outcome.result}
        print(to_json(line), flush=True)

    def close(self, stats: LoopStats) -> None:
        print(to_json({"stats": stats.to_dict()}), flush=True)


def run_realtime(options: argparse.Namespace) -> int:
    """Play a source until it ends, its time is over, or Ctrl+C; returns the exit code, 2 if no frame was answered."""
    given = {name: getattr(options, name) for name in ("task", "question", "length", "deadline_ms", "track")}
    given |= {"settings": given_settings(options) or None, **given_search(options)}
    if options.object is not None:
        given["object"] = options.object if len(options.object) > 1 else options.object[0]
        advise_of_joined(given["object"])
    asked = {name: value for name, value in given.items() if value is not None}
    subject = {"caption": "length", "query": "question"}.get(options.task, "object")
    if subject != "length" and subject not in asked:
        raise InputError(f"the {subject} is missing: give --{subject}")
    if options.json and options.plain:
        raise InputError("--plain prints text and --json prints JSON: give one of them")
    if Question.of(**asked).track:  # what cannot work is reported before the model is loaded
        require_trackers()
    frames = open_source(options.source)
    report_skipped(options.source, frames.skipped)
    recorder = None if options.output is None else FrameRecorder(options.output)
    make_reporter = _reporter(options)
    model = load_model(options)
    outcomes: queue.SimpleQueue[FrameOutcome] = queue.SimpleQueue()
    loop = RealtimeLoop(
        model, on_result=outcomes.put, on_error=outcomes.put, in_flight=options.in_flight, window=10_000, **asked
    )
    try:
        repeat = bool(options.duration)
        with (
            short_collections(),
            Feed(loop, frames, rate=options.rate, duration_s=options.duration, repeat=repeat) as feed,
        ):
            reporter = make_reporter(loop.question, model, feed.rate)

            def report() -> None:
                while not outcomes.empty():
                    outcome = outcomes.get()
                    reporter.add_outcome(outcome)
                    if recorder is not None and isinstance(outcome, FrameResult):
                        recorder.add(outcome)

            _watch(loop, feed, reporter, report)
    finally:
        loop.close(drain=False)
        model.close(drain=False)
    if recorder is not None:
        recorder.save()
    stats = loop.stats
    if stats.answered:
        return 0
    reasons = ", ".join(stats.failures) or ", ".join(cause for cause, count in stats.dropped.items() if count)
    why = f"none of {stats.submitted} frames was answered ({reasons})" if stats.submitted else "the source had no frame"
    print(f"photonlite: error: {why}", file=sys.stderr)
    return 2


def summary(stats: LoopStats, rate: float) -> str:
    drops = ", ".join(f"{count} {cause}" for cause, count in stats.dropped.items() if count)
    parts = [
        f"{rate:.1f} results/s",
        f"latency p50 {format_seconds(stats.latency.p50)}, p99 {format_seconds(stats.latency.p99)}",
        f"{stats.answered} of {stats.submitted} frames answered",
        *([f"dropped: {drops}"] if drops else []),
        *([f"{stats.missed} missed their deadline"] if stats.missed else []),
        *([f"{stats.failed} failed"] if stats.failed else []),
    ]
    return "; ".join(parts)


def _watch(loop: RealtimeLoop, feed: Feed, reporter: Reporter, report: Callable[[], None]) -> None:
    """Report until the source ends; `report` hands over the outcomes that have arrived."""
    try:
        with suppress(KeyboardInterrupt):  # ends a camera
            while not feed.ended:
                feed.join(reporter.period_s)
                report()
                reporter.update(loop.stats)
            feed.join()
        feed.stop()
        loop.close()
        report()
    finally:
        reporter.close(loop.stats)


def _reporter(options: argparse.Namespace) -> Callable[..., Reporter]:
    if options.json:
        return lambda *_: JsonLines()
    if options.plain or not sys.stdout.isatty():
        return lambda *_: Lines()
    missing = "the live view needs rich: pip install 'photonlite[realtime]', or add --plain or --json"
    view: Callable[..., Reporter] = import_extra(f"{__package__}.view", missing).View
    return view
