"""Ablations: the period of a decode step with one part of the pipeline disabled or replaced.

Engines that differ in one setting run the same rounds alternately.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from bench.bubble.figures import Quartiles, middle, steady, together
from bench.bubble.report import percent, table
from bench.bubble.rounds import Rig, Round
from bench.bubble.subjects import Subject, Workload, engine_config, requests
from photonlite.engine.core import EngineCore
from photonlite.sequence import Sequence as EngineSequence


class MasksFirst(EngineCore):
    """A pipeline that finalizes masks before the launch: it commits a step first if the next one's masks depend on it.

    Where masks are known ahead, as for words, nothing changes.
    """

    def tick(self) -> bool:
        """Commit the oldest step before the launch where masks need it, then tick as usual."""
        oldest = self.pipeline.oldest
        waits = oldest is not None and not all(_knows_next_mask(row.sequence) for row in oldest.rows)
        if waits:
            self._commit(None)
        return super().tick() or waits


def _knows_next_mask(sequence: EngineSequence) -> bool:
    return sequence.finalized or sequence.request.grammar.ahead is not None


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the engine.

    Attributes:
        name: For the report.
        depth: Steps in flight.
        settings: Of the engine, where they differ from the bench's.
        core: What ticks.
    """

    name: str
    depth: int = 2
    settings: Mapping[str, Any] = field(default_factory=dict)
    core: type[EngineCore] = EngineCore


MASKS = (
    Variant("depth 1", depth=1),
    Variant("depth 2, masks finalized before the launch", core=MasksFirst),
    Variant("depth 2, masks finalized after the launch"),
)

GRAPHS = (
    Variant("depth 1, no graphs", depth=1, settings={"cuda_graphs": False}),
    Variant("depth 2, no graphs", settings={"cuda_graphs": False}),
    Variant("depth 1, graphs", depth=1),
    Variant("depth 2, graphs"),
)

PADDED_STREAMS = 20

PADDING = (
    Variant("a graph of 20 rows: exact", settings={"graph_sizes": (20,)}),
    Variant("padded to a graph of 24 rows", settings={"graph_sizes": (24,)}),
    Variant("padded to a graph of 32 rows", settings={"graph_sizes": (32,)}),
    Variant("a graph of 32 rows, no padding: no graph", settings={"graph_sizes": (32,), "pad_to_graph": False}),
)
"""All for `PADDED_STREAMS` rows; batches have room for 32."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A variant's figures.

    Attributes:
        variant: Which.
        periods: Mean seconds of a step at full batch, of each round that was not traced.
        forward_s: Mean seconds of a forward pass on the device, of traced rounds.
        tick_s: Median seconds of the host's work in a step, of traced rounds.
        busy: Share of the time in which the device worked, of traced rounds.
    """

    variant: Variant
    periods: list[float]
    forward_s: float
    tick_s: float
    busy: float

    @classmethod
    def of(cls, variant: Variant, plain: Sequence[Round], traced: Sequence[Round]) -> "Measured":
        """Compute the figures of rounds."""
        found = together([steady(one.steady_spans) for one in traced])
        forward = statistics.fmean(found.forward_s)
        return cls(variant, [one.period for one in plain], forward, middle(found.tick_s), found.busy)


def measure(
    variants: Sequence[Variant],
    subject: Subject,
    cases: Sequence[tuple[Workload, int]],
    rounds: int,
    room: int | None = None,
) -> dict[tuple[Workload, int], list[Measured]]:
    """Measure all variants in each case, alternating between them.

    Args:
        variants: Engines.
        subject: Whose requests are put.
        cases: Workloads and numbers of streams.
        rounds: Without tracing, of each; at most two more are traced, and one, the first, warms up.
        room: Rows that a batch has room for; as many as the most streams unless given.
    """
    most = max([room or 0, *(streams for _, streams in cases)])
    sizes = tuple(sorted({streams for _, streams in cases}))
    with ExitStack() as opened:
        rigs = []
        for variant in variants:
            config = engine_config(subject, (*sizes, most), variant.depth)
            config = dataclasses.replace(config, graph_sizes=sizes)
            rig = Rig(subject, dataclasses.replace(config, **variant.settings), core=variant.core)
            opened.callback(rig.close)
            rigs.append(rig)
        return {case: _measure_case(variants, rigs, subject, case, rounds) for case in cases}


def _measure_case(
    variants: Sequence[Variant], rigs: Sequence[Rig], subject: Subject, case: tuple[Workload, int], rounds: int
) -> list[Measured]:
    runs: list[tuple[list[Round], list[Round]]] = [([], []) for _ in rigs]
    for number in range(1 + rounds + min(rounds, 2)):
        traced = number > rounds
        for rig, kept in zip(rigs, runs, strict=True):
            one = rig.run(requests(subject, *case, seed=number), traced=traced)
            if number > 0:
                kept[traced].append(one)
    return [Measured.of(variant, *kept) for variant, kept in zip(variants, runs, strict=True)]


def ablation_table(found: Mapping[tuple[Workload, int], Sequence[Measured]], *, absolute: bool) -> str:
    """Write the figures of all cases; gains are against the first variant. On a CPU times are shares of its period.

    Args:
        found: By case.
        absolute: Whether times mean something.
    """
    ms, us = (" (ms)", " (us)") if absolute else ("", "")
    head = ["workload", "streams", "engine", f"period{ms}", "quartiles", "against the first", f"forward{ms}"]
    head += [f"host tick{us}", "busy"]
    rows = []
    for (workload, streams), measured in found.items():
        first = statistics.median(measured[0].periods)
        unit = 1e-3 if absolute else first
        for one in measured:
            period = Quartiles.of(one.periods)
            tick = f"{1e6 * one.tick_s:.0f}" if absolute else f"{one.tick_s / first:.3f}"
            rows.append(
                [
                    workload,
                    str(streams),
                    one.variant.name,
                    f"{period.median / unit:.3f}",
                    f"{period.low / unit:.3f} to {period.high / unit:.3f}",
                    percent(first / period.median),
                    f"{one.forward_s / unit:.3f}",
                    tick,
                    f"{one.busy:.2%}",
                ]
            )
    return table(head, rows, left=3)
