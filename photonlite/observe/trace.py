"""Spans of every phase of every tick, traces for https://ui.perfetto.dev, and idle times of the compute stream."""

import gzip
import json
import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from os import PathLike, fspath
from typing import Any, Literal, NamedTuple, get_args

Track = Literal["host", "compute", "upload", "download", "encode"]
TRACKS: tuple[Track, ...] = get_args(Track)

_NOTHING = nullcontext()


class Span(NamedTuple):
    """One phase of one tick; times in seconds of `time.perf_counter`."""

    track: Track  # the engine thread, or one of the device's streams; "encode" for images beside the steps
    name: str
    start_s: float
    end_s: float
    args: dict[str, Any]  # "step" is the number of the step


class Tracer:
    """Collects spans in a ring: one thread writes, any thread reads. `dropped` counts spans that were overwritten."""

    def __init__(self, capacity: int = 100_000, *, enabled: bool = True) -> None:
        if capacity < 1:
            raise ValueError(f"a tracer keeps at least one span, got a capacity of {capacity}")
        self.enabled = enabled
        self.dropped = 0
        self._ring: deque[Span] = deque(maxlen=capacity)
        self._lock = threading.Lock()
        self._begun = 0
        self._was_on = enabled

    def span(self, track: Track, name: str, start_s: float, end_s: float, **args: Any) -> None:
        """Record a phase that has ended; a device's coarse clock may tell an end before the start."""
        if not self.enabled:
            return
        if len(self._ring) == self._ring.maxlen:
            self.dropped += 1
        self._ring.append(Span(track, name, start_s, max(start_s, end_s), args))

    def host(self, name: str, **args: Any) -> AbstractContextManager[None]:
        """Record what the engine thread does in a ``with`` block, also if it raises."""
        return _HostSpan(self, name, args) if self.enabled else _NOTHING

    def spans(self) -> list[Span]:
        return list(self._ring)

    def begin(self) -> None:
        """Record until the matching `end`; pairs may overlap, from any thread."""
        with self._lock:
            if not self._begun:
                self._was_on = self.enabled
            self._begun += 1
            self.enabled = True

    def end(self) -> None:
        """Restore `enabled` after the last pair has ended."""
        with self._lock:
            self._begun -= 1
            if not self._begun:
                self.enabled = self._was_on

    def clear(self) -> None:
        self._ring.clear()
        self.dropped = 0

    def save(self, path: str | PathLike[str]) -> None:
        save_trace(path, self.spans(), self.dropped)


class _HostSpan(AbstractContextManager[None]):
    """Records the time of a block; a generator would take 1.5 times as long."""

    __slots__ = ("_args", "_name", "_start", "_tracer")

    def __init__(self, tracer: Tracer, name: str, args: dict[str, Any]) -> None:
        self._tracer = tracer
        self._name = name
        self._args = args
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        self._tracer.span("host", self._name, self._start, time.perf_counter(), **self._args)


def save_trace(path: str | PathLike[str], spans: list[Span], dropped: int = 0) -> None:
    """Write spans as Chromium trace events, in microseconds from the earliest; gzipped if the path ends in ".gz"."""
    trace = {
        "traceEvents": _trace_events(spans),
        "displayTimeUnit": "ms",
        "otherData": {"dropped_spans": dropped},
    }
    opened = gzip.open if fspath(path).endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8") as file:
        json.dump(trace, file, default=str, separators=(",", ":"))  # args may hold NumPy numbers


def _trace_events(spans: list[Span]) -> list[dict[str, Any]]:
    process = {"ph": "M", "pid": 1}
    events: list[dict[str, Any]] = [{**process, "tid": 0, "name": "process_name", "args": {"name": "photonlite"}}]
    for index, track in enumerate(tracks_of(spans)):
        events.append({**process, "tid": index, "name": "thread_name", "args": {"name": track}})
        events.append({**process, "tid": index, "name": "thread_sort_index", "args": {"sort_index": index}})
    origin = min((span.start_s for span in spans), default=0.0)
    # The longest of spans that start together comes first: viewers nest later ones into it.
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        start, duration = span.start_s - origin, span.end_s - span.start_s
        times = {"ts": round(start * 1e6, 3), "dur": round(duration * 1e6, 3)}
        where = {"pid": 1, "tid": TRACKS.index(span.track), "cat": span.track}
        events.append({"ph": "X", **where, "name": span.name, **times, "args": span.args})
    return events


def tracks_of(spans: Iterable[Span]) -> tuple[Track, ...]:
    """Return the tracks to show: the last one only where images were encoded beside the steps."""
    return TRACKS if any(span.track == "encode" for span in spans) else TRACKS[:-1]


Interval = tuple[float, float]
"""Start and end, in seconds."""


def busy_intervals(spans: Iterable[Span]) -> list[Interval]:
    """Return when the compute stream worked, in order; spans that overlap or touch are one interval."""
    merged: list[Interval] = []
    for start, end in sorted((span.start_s, span.end_s) for span in spans if span.track == "compute"):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def idle_intervals(spans: Iterable[Span]) -> list[Interval]:
    """Return when the compute stream was idle between its first and its last span, in order."""
    return [(earlier[1], later[0]) for earlier, later in pairwise(busy_intervals(spans))]


def busy_share(spans: Iterable[Span]) -> float:
    """Return the busy share of the time from the first to the last compute span; 0 without spans."""
    busy = busy_intervals(spans)
    extent = busy[-1][1] - busy[0][0] if busy else 0.0
    return sum(end - start for start, end in busy) / extent if extent > 0 else 0.0


def step_starts(spans: Iterable[Span]) -> list[float]:
    """Return when each step began on the compute stream, in order; a finalize does not begin a step."""
    starts: list[float] = []
    seen = set()
    for span in sorted((span for span in spans if span.track == "compute"), key=lambda span: span.start_s):
        step = span.args.get("step")
        if span.name == "finalize" or step in seen:
            continue
        starts.append(span.start_s)
        if step is not None:
            seen.add(step)
    return starts


def idle_per_period(spans: Iterable[Span]) -> float:
    """Return the mean idle seconds between the starts of successive steps; NaN with fewer than two steps."""
    kept = list(spans)
    starts = step_starts(kept)
    if len(starts) < 2:
        return math.nan
    idle = sum(end - start for start, end in idle_intervals(kept) if starts[0] <= start and end <= starts[-1])
    return idle / (len(starts) - 1)
