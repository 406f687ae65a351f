"""A whole run: device use of one batch from its prompts to the last token of long answers."""

import dataclasses
import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from bench.bubble.figures import host_ticks, mean
from bench.bubble.report import percent, table
from bench.bubble.rounds import Rig, Round
from bench.bubble.subjects import Subject, ending_at, engine_config, requests
from photonlite.observe.trace import busy_intervals, busy_share, step_starts

PROMPT, LENGTH = 100, 8000
"""Tokens of a prompt and of an answer on average; prompts differ by a fifth, and shrink with a small context."""

CONTEXT = 8192
"""Positions of the model on a card: answers of `LENGTH` tokens fit, longer than the published checkpoint's 2,048."""

STRETCHES = 160
"""Parts with equal numbers of steps into which a run is divided."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some steps of a run, in seconds.

    Attributes:
        step: First of them; as many tokens has each sequence, about.
        steps: How many.
        period: Mean from the start of a step to the start of the next.
        busy: Share of the time in which the device worked.
        host: Mean work of the host in a step.
    """

    step: int
    steps: int
    period: float
    busy: float
    host: float


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run at one depth, traced.

    Attributes:
        depth: Steps in flight.
        streams: Sequences.
        tokens: Of all sequences.
        seconds: From handing the requests in until the engine was free.
        busy: Share of the time in which the device worked, from the first work to the last.
        stretches: In order.
    """

    depth: int
    streams: int
    tokens: int
    seconds: float
    busy: float
    stretches: list[Stretch]

    @classmethod
    def of(cls, depth: int, one: Round, stretches: int = STRETCHES) -> "WholeRun":
        """Compute the figures of a traced round."""
        return cls(
            depth,
            len(one.tokens),
            sum(map(len, one.tokens)),
            one.freed - one.submitted,
            busy_share(one.spans),
            divide(one, stretches),
        )


def divide(one: Round, stretches: int) -> list[Stretch]:
    """Divide the decode steps of a traced round into parts with equal numbers of steps; drop a remainder."""
    starts = [start for start in step_starts(one.spans) if start >= one.prefilled]
    size = max(1, (len(starts) - 1) // stretches)
    spans = [span for span in one.spans if span.start_s >= one.prefilled]
    ticks, busy = host_ticks(spans), _BusyTime(one)
    edges = range(0, len(starts), size)
    found = []
    for begin, end in pairwise(edges):
        seconds = starts[end] - starts[begin]
        worked = busy.until(starts[end]) - busy.until(starts[begin])
        found.append(Stretch(begin, size, seconds / size, worked / seconds, mean(ticks[begin:end])))
    return found


class _BusyTime:
    """Busy time of the device up to a point in time."""

    def __init__(self, one: Round) -> None:
        intervals = busy_intervals(one.spans)
        self._starts = [start for start, _ in intervals]
        self._lengths = [end - start for start, end in intervals]
        self._before = [0.0, *accumulate(self._lengths)]

    def until(self, moment: float) -> float:
        """Return the busy seconds before a point in time."""
        index = bisect_left(self._starts, moment)
        if index == 0:
            return 0.0
        return self._before[index - 1] + min(self._lengths[index - 1], moment - self._starts[index - 1])


def run_whole(subject: Subject, streams: int, length: int, depths: Sequence[int] = (1, 2)) -> list[WholeRun]:
    """Run long answers at each depth.

    Args:
        subject: Whose model answers.
        streams: Sequences.
        length: Tokens of an answer on average; fewer where the context is shorter.
        depths: One after the other.
    """
    context = subject.model.shape.max_context
    prompt = min(PROMPT, context // 8)
    spread = prompt // 5
    stop = min(prompt + length - 1, context - 2)
    long = ending_at(subject, stop=stop, prompt=prompt, spread=spread)
    warm = ending_at(subject, stop=min(stop, prompt + spread + 8), prompt=prompt, spread=spread)
    found = []
    for depth in depths:
        rig = Rig(long, engine_config(long, (streams,), depth), reason=None)  # budgets end the round that warms up
        try:
            rig.run(requests(warm, "text", streams, seed=0, bounded=True), traced=True)
            found.append(WholeRun.of(depth, rig.run(requests(long, "text", streams, seed=1), traced=True)))
        finally:
            rig.close()
    return found


def whole_run_table(found: Sequence[WholeRun], *, absolute: bool) -> str:
    """Write the runs; on a CPU times are shares of the first run's."""
    head = ["depth", "streams", "tokens", "seconds" if absolute else "time", "busy"]
    head += ["least busy stretch", "first and last period (ms)" if absolute else "first and last period", "gain"]
    first = found[0]
    unit, per = (1.0, 1e-3) if absolute else (first.seconds, first.stretches[0].period)
    rows = []
    for one in found:
        ends = [stretch.period / per for stretch in (one.stretches[0], one.stretches[-1])]
        rows.append(
            [
                str(one.depth),
                str(one.streams),
                f"{one.tokens:,}",
                f"{one.seconds / unit:.2f}",
                f"{one.busy:.2%}",
                f"{min(stretch.busy for stretch in one.stretches):.2%}",
                f"{ends[0]:.2f}, {ends[1]:.2f}",
                percent(first.seconds / one.seconds),
            ]
        )
    return table(head, rows)


def save_runs(found: Sequence[WholeRun], made: str, path: Path) -> None:
    """Write runs as JSON, for the chart.

    Args:
        found: The runs.
        made: Machine, versions and date, for the chart's foot.
        path: Of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"made": made, "runs": [dataclasses.asdict(one) for one in found]}) + "\n")


def load_runs(path: Path) -> tuple[list[WholeRun], str]:
    """Read what `save_runs` wrote: the runs and their settings."""
    raw = json.loads(path.read_text())
    runs = []
    for one in raw["runs"]:
        stretches = [Stretch(**stretch) for stretch in one.pop("stretches")]
        runs.append(WholeRun(**one, stretches=stretches))
    return runs, raw["made"]
