"""What the device did in the longest intervals between two tokens, told from a trace."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from photonlite.observe.trace import Span

LONGEST = 20
"""Intervals that are told."""


class Interval(NamedTuple):
    """Seconds from one token of a stream to the next, on the host's clock."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


def intervals_of(times: Sequence[float]) -> list[Interval]:
    """Return the intervals between successive tokens."""
    return [Interval(*pair) for pair in pairwise(times)]


def explain(spans: Sequence[Span], intervals: Iterable[Interval], count: int = LONGEST) -> list[str]:
    """Write a line about each of the longest intervals: its steps on the device, idle time, and work beside them."""
    return [_line(spans, one) for one in sorted(intervals, key=lambda one: -one.seconds)[:count]]


def _line(spans: Sequence[Span], interval: Interval) -> str:
    inside = {
        track: [span for span in spans if span.track == track and _overlap(span, interval) > 0]
        for track in ("compute", "encode", "host")
    }
    busy = sum(_overlap(span, interval) for span in inside["compute"])
    work = " + ".join(_tell(span, interval) for span in inside["compute"] if span.name != "finalize")
    beside = " + ".join(_tell(span, interval) for span in inside["encode"] if span.name in ("encode", "prefill"))
    idle = f"idle {_ms(interval.seconds - busy)}; host: {_tell_host(inside['host'], interval)}"
    return f"{_ms(interval.seconds)}: {work or 'nothing'}; {idle}; beside: {beside or 'nothing'}"


def _tell_host(spans: Sequence[Span], interval: Interval) -> str:
    """Name what the engine's thread did, longest first, and the time between that; it waits for the device else."""
    times: dict[str, float] = {}
    for span in spans:
        times[span.name] = times.get(span.name, 0.0) + _overlap(span, interval)
    between = interval.seconds - sum(times.values())
    times.pop("wait", None)
    ordered = sorted(times.items(), key=lambda one: -one[1])
    return ", ".join([*(f"{name} {_ms(seconds)}" for name, seconds in ordered), f"between {_ms(between)}"])


def _tell(span: Span, interval: Interval) -> str:
    """Name a step by its kind, its part of the card, its time, and how much of that lies in the interval."""
    name = "decode" if span.name == "forward" else span.name
    place = " in part" if "part" in span.args else ""
    inside, whole = _overlap(span, interval), span.end_s - span.start_s
    share = "" if inside > 0.99 * whole else f" of {_ms(whole)}"
    return f"{name}{place} {_ms(inside)}{share}"


def _overlap(span: Span, interval: Interval) -> float:
    return max(0.0, min(span.end_s, interval.end_s) - max(span.start_s, interval.start_s))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def step_times(spans: Sequence[Span]) -> dict[str, list[float]]:
    """Return the seconds of decode steps by where they ran, and of prompts and encodings."""
    busy = [Interval(span.start_s, span.end_s) for span in spans if span.track == "encode" and span.name != "crops"]
    found: dict[str, list[float]] = {}
    for span in spans:
        if span.track not in ("compute", "encode") or span.name in ("finalize", "crops", "rows"):
            continue
        seconds = span.end_s - span.start_s
        name = "decode" if span.name == "forward" else span.name
        name += " in part" if "part" in span.args else " on the whole card"
        if span.track == "compute":
            share = sum(_overlap(span, one) for one in busy) / seconds if seconds else 0.0
            name += ", beside the encoder" if share > 0.9 else ", alone" if share < 0.1 else ", partly beside"
        found.setdefault(name, []).append(seconds)
    return found


def tell_steps(spans: Sequence[Span]) -> list[str]:
    """Write a line about each kind of step: how many, mean, median and longest."""
    return [
        f"{name}: {len(times)}, mean {_ms(fmean(times))}, median {_ms(median(times))}, longest {_ms(max(times))}"
        for name, times in sorted(step_times(spans).items())
    ]
