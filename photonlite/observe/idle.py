"""Busy and idle times of the compute stream, from the spans of a trace."""

import math
from collections.abc import Iterable
from itertools import pairwise

from photonlite.observe.trace import Span

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


def idle_gaps(spans: Iterable[Span]) -> list[float]:
    """Return the lengths of `idle_intervals`, in seconds."""
    return [end - start for start, end in idle_intervals(spans)]


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
