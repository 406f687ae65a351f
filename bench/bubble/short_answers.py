"""Answers of three tokens: a queue of prompts, with a few decode steps between their prefills."""

import dataclasses
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.bubble.figures import Quartiles
from bench.bubble.report import percent, table
from bench.bubble.rounds import Rig, Round
from bench.bubble.subjects import Subject, ending_at, engine_config, requests
from photonlite.config import EngineConfig
from photonlite.observe.trace import busy_share

LENGTH = 3
"""Tokens of an answer, the end included."""

KINDS = {
    "depth 1": (1, False),
    "depth 2": (2, False),
    "depth 2, ends known": (2, True),
}
"""Depth, and whether budgets tell the host where answers end: then there are no zombies."""


@dataclass
class ShortAnswers:
    """Measurements of one kind of engine.

    Attributes:
        rates: Answers per second, of each round that was not traced.
        busy: Share of the time in which the device worked, of each traced round.
        last: A round that was not traced.
    """

    rates: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    last: Round | None = None

    def add(self, one: Round, *, traced: bool) -> None:
        """Add a round."""
        if traced:
            self.busy.append(busy_share(one.spans))
        else:
            self.rates.append(len(one.tokens) / (one.freed - one.submitted))
            self.last = one


def short_config(subject: Subject, streams: int, depth: int) -> EngineConfig:
    """Configure an engine whose prefills are no larger than by default."""
    config = engine_config(subject, (streams,), depth)
    sizes = tuple(size for size in EngineConfig().graph_sizes if size < streams)
    longest = subject.prompt + 1
    most = max(longest, EngineConfig().max_prefill_tokens)
    return dataclasses.replace(config, graph_sizes=(*sizes, streams), max_prefill_tokens=most)


def measure_short_answers(subject: Subject, streams: int, queued: int, rounds: int) -> dict[str, ShortAnswers]:
    """Submit a queue of prompts to each engine, alternating between them.

    Args:
        subject: Whose model answers; its prompts keep their mean length, and all have it.
        streams: Rows of a batch at most.
        queued: Requests of a round.
        rounds: Without tracing, of each; at most two more are traced, and one, the first, warms up.
    """
    short = ending_at(subject, stop=subject.prompt + LENGTH - 1, prompt=subject.prompt, spread=0)
    rigs = {depth: Rig(short, short_config(short, streams, depth)) for depth in (1, 2)}
    found = {name: ShortAnswers() for name in KINDS}
    try:
        for number in range(1 + rounds + min(rounds, 2)):
            for name, (depth, told) in KINDS.items():
                traced = number > rounds
                made = requests(short, "text", queued, seed=number, bounded=told)
                one = rigs[depth].run(made, traced=traced)
                if number > 0:
                    found[name].add(one, traced=traced)
    finally:
        for rig in rigs.values():
            rig.close()
    return found


def short_answer_table(found: Mapping[str, ShortAnswers], *, absolute: bool) -> str:
    """Write the rates; on a CPU as shares of the first one."""
    head = ["engine", "answers per second" if absolute else "answers", "quartiles", "gain", "busy", "prefill steps"]
    head += ["decode steps", "rows", "zombie rows"]
    first = statistics.median(next(iter(found.values())).rates)
    unit = 1.0 if absolute else first
    digits = 1 if absolute else 3
    rows = []
    for name, one in found.items():
        rate, last = Quartiles.of([value / unit for value in one.rates]), one.last
        if last is None:
            raise AssertionError(f"no round of {name!r} was measured")
        rows.append(
            [
                name,
                f"{rate.median:.{digits}f}",
                f"{rate.low:.{digits}f} to {rate.high:.{digits}f}",
                percent(rate.median * unit / first),
                f"{statistics.fmean(one.busy):.2%}",
                str(last.prefills),
                str(last.steps),
                str(last.rows),
                str(last.zombies),
            ]
        )
    return table(head, rows)
