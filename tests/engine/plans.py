"""Batches of one run, recorded as the executor received them, and replayed on another one at any depth."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from photonlite.batch import BatchItem, EncodeJob, Executor, ScheduledBatch, Step
from photonlite.request import Allowed, Token
from photonlite.runner.slots import Pipeline

Outcomes = list[Token | Exception | None]


@dataclass(eq=False)
class Recorded:
    """A step: what it did, what its rows were allowed, and what came of it.

    Attributes:
        plan: With sequences as they were at the launch.
        allowed: Empty for an encode step.
        outcomes: Of its rows.
    """

    plan: ScheduledBatch
    allowed: Sequence[Allowed | None] = ()
    outcomes: Outcomes = field(default_factory=list)


class Recorder:
    """Passes all calls on to an executor, and records the order of launches and of freed images."""

    def __init__(self, runner: Executor) -> None:
        self._runner = runner
        self._open: dict[int, Recorded] = {}
        self.deeds: list[Recorded | EncodeJob] = []

    @property
    def steps(self) -> list[Recorded]:
        return [deed for deed in self.deeds if isinstance(deed, Recorded)]

    def launch(self, step: Step) -> None:
        plan = replace(step.plan, rows=tuple(_frozen(row) for row in step.plan.rows))
        self._open[step.number] = recorded = Recorded(plan)
        self.deeds.append(recorded)
        self._runner.launch(step)

    def finalize(self, step: Step, allowed: Sequence[Allowed | None]) -> None:
        self._open[step.number].allowed = tuple(allowed)
        self._runner.finalize(step, allowed)

    def collect(self, step: Step) -> Outcomes:
        found = self._open.pop(step.number).outcomes = self._runner.collect(step)
        return found

    def forget(self, job: EncodeJob) -> None:
        self.deeds.append(job)
        self._runner.forget(job)

    def free_memory(self) -> None:
        pass

    def close(self) -> None:
        self._runner.close()


def play(deeds: Sequence[Recorded | EncodeJob], runner: Executor, depth: int) -> list[Outcomes]:
    """Replay a record; at depth 2 a step is launched before the previous one has been collected."""
    pipeline = Pipeline(depth)
    found: list[Outcomes] = []

    def finalize(step: Step, allowed: Sequence[Allowed | None]) -> None:
        pipeline.finalize(step)
        if step.kind != "encode":
            runner.finalize(step, allowed)

    def commit(step: Step) -> None:
        pipeline.begin_commit(step)
        found.append(runner.collect(step))
        pipeline.end_commit(step)

    for deed in deeds:
        if isinstance(deed, EncodeJob):
            runner.forget(deed)
            continue
        step = pipeline.launch(deed.plan)
        runner.launch(step)
        oldest = pipeline.in_flight[0]
        if depth == 1:
            finalize(step, deed.allowed)
            commit(step)
        else:
            if oldest is not step:
                commit(oldest)
            finalize(step, deed.allowed)
    for step in pipeline.in_flight:
        commit(step)
    return found


def _frozen(row: BatchItem) -> BatchItem:
    """Copy the sequence's present state: it grows with every commit."""
    sequence = copy.copy(row.sequence)
    sequence.pages, sequence.tokens = list(sequence.pages), list(sequence.tokens)
    return row._replace(sequence=sequence)
