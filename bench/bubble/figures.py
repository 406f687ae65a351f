"""The arithmetic: from spans and times to periods, idle time and host time.

```
compute   | forward 7      |fin|   idle   | forward 8      |fin|
          <────────── period ─────────────>
host      |  wait  :· commit · plan · launch · finalize ·|  wait   :·
                   <──────────── a tick of the host ─────────────> less the time until the copy has arrived
```
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from photonlite.observe.trace import Span, busy_share, idle_intervals, step_starts

CYCLE = 3
"""Steps of a box: x, y and size, each with other heads. Periods are averaged over this number of steps."""

PHASES = ("plan", "launch", "commit", "finalize")
"""Host work of a tick, without waiting."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 5th and 95th percentile of some values; NaN where there are none."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Compute them from values."""
        if len(values) < 2:
            only = values[0] if values else math.nan
            return cls(only, only, only)
        cuts = statistics.quantiles(values, n=20, method="inclusive")
        return cls(statistics.median(values), cuts[0], cuts[-1])


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Median, first and third quartile of some values; NaN where there are none."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Quartiles":
        """Compute them from values; a single value is all three."""
        if len(values) < 2:
            only = values[0] if values else math.nan
            return cls(only, only, only)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval that holds the true median with the given confidence, whatever the distribution.

    The k-th smallest value exceeds the median with the probability that fewer than k of n fair coins show heads (the
    interval of the sign test). Few values give no more than their range; no values give NaN.

    Args:
        values: Independent measurements.
        confidence: Probability that the interval holds the median, for 6 values or more.
    """
    if not values:
        return math.nan, math.nan
    ordered, count = sorted(values), len(values)
    rank, below = 0, 1 / 2**count
    while 2 * below <= 1 - confidence and rank < (count - 1) // 2:
        rank += 1
        below += math.comb(count, rank) / 2**count
    place = max(0, rank - 1)
    return ordered[place], ordered[count - 1 - place]


@dataclass(frozen=True, slots=True)
class Steady:
    """Figures of steady decoding from its spans, in seconds.

    Attributes:
        forward_s: Of each forward pass on the device.
        finalize_s: Of each finalize on the device: heads, masks, sampling.
        period_s: From the start of each forward pass to the start of the next.
        idle_s: In which the device did nothing, of each period.
        tick_s: Of the host, of each period: everything but waiting for the device.
        phase_s: Of the host by phase, mean of a period.
        busy: Share of the time in which the device worked.
    """

    forward_s: list[float]
    finalize_s: list[float]
    period_s: list[float]
    idle_s: list[float]
    tick_s: list[float]
    phase_s: dict[str, float]
    busy: float


def middle(values: Sequence[float]) -> float:
    """Return the median; NaN where there are no values."""
    return statistics.median(values) if values else math.nan


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN where there are no values."""
    return statistics.fmean(values) if values else math.nan


def typical(periods: Sequence[float]) -> float:
    """Return the median of the means of `CYCLE` successive periods; of all of them where there are fewer."""
    if len(periods) <= CYCLE:
        return mean(periods)
    return statistics.median(statistics.fmean(periods[i : i + CYCLE]) for i in range(len(periods) - CYCLE + 1))


def steady(spans: Sequence[Span]) -> Steady:
    """Read the spans of decode steps of one round, all at full batch."""
    starts = step_starts(spans)
    ticks = host_ticks(spans)
    phases = {name: sum(_lengths(spans, "host", name)) / len(ticks) if ticks else math.nan for name in PHASES}
    return Steady(
        forward_s=_lengths(spans, "compute", "forward"),
        finalize_s=_lengths(spans, "compute", "finalize"),
        period_s=[later - earlier for earlier, later in pairwise(starts)],
        idle_s=idle_by_period(spans),
        tick_s=ticks,
        phase_s=phases,
        busy=busy_share(spans),
    )


STEP_HEAD = ["what", "forward (ms)", "finalize (ms)", "idle (us)", "busy", "host tick (us)"]


def step_cells(found: Steady) -> list[str]:
    """Write what follows the first column of `STEP_HEAD`."""
    idle, tick = 1e6 * middle(found.idle_s), 1e6 * middle(found.tick_s)
    times = [f"{1e3 * middle(values):.3f}" for values in (found.forward_s, found.finalize_s)]
    return [*times, f"{idle:.0f}", f"{found.busy:.2%}", f"{tick:.0f}"]


def together(rounds: Sequence[Steady]) -> Steady:
    """Combine rounds: shares and means are averaged over them."""
    return Steady(
        forward_s=[value for one in rounds for value in one.forward_s],
        finalize_s=[value for one in rounds for value in one.finalize_s],
        period_s=[value for one in rounds for value in one.period_s],
        idle_s=[value for one in rounds for value in one.idle_s],
        tick_s=[value for one in rounds for value in one.tick_s],
        phase_s={name: statistics.fmean(one.phase_s[name] for one in rounds) for name in PHASES},
        busy=statistics.fmean(one.busy for one in rounds),
    )


def idle_by_period(spans: Sequence[Span]) -> list[float]:
    """Return the seconds in which the compute stream did nothing, from each step's start to the next one's."""
    gaps = idle_intervals(spans)
    return [
        sum(end - start for start, end in gaps if begin <= start < until)
        for begin, until in pairwise(step_starts(spans))
    ]


def host_ticks(spans: Iterable[Span]) -> list[float]:
    """Return the seconds that the host worked from the end of each wait to the end of the next.

    Only the time until the results have arrived counts as waiting: reading them is work.
    """
    copied: dict[object, float] = {}
    waits: list[Span] = []
    for span in spans:
        if span.track == "download":
            copied[span.args.get("step")] = span.end_s
        elif span.track == "host" and span.name == "wait":
            waits.append(span)
    waits.sort(key=lambda span: span.start_s)
    ticks = []
    for last, wait in pairwise(waits):
        arrived = min(copied.get(wait.args.get("step"), wait.end_s), wait.end_s)
        ticks.append(wait.end_s - last.end_s - max(0.0, arrived - wait.start_s))
    return ticks


def _lengths(spans: Iterable[Span], track: str, name: str) -> list[float]:
    return [span.end_s - span.start_s for span in spans if span.track == track and span.name == name]
