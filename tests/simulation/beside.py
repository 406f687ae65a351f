"""Images that are encoded beside the other steps: who reads their features, and when."""

from collections import Counter
from typing import TYPE_CHECKING

from photonlite.batch import BatchItem, CropGroup, EncodeJob, Step
from photonlite.request import IMAGE
from photonlite.scheduler.realtime import RealtimePolicy
from photonlite.sequence import Sequence
from tests.simulation.body import Violation

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation

_OPEN = 2
"""Encode steps in flight beside the others."""

_TRIAL = 200
"""Ticks after which bulk images give up their part for an eighth as many."""

_PATIENCE = 3
"""Ticks in a row that may plan none though there is room: those in which a deadline passes plan nothing new."""


class Beside:
    """Watches launches.

    Args:
        simulation: Whose.

    Attributes:
        lent: For each slot of such encode steps, the step that has it; None while it is free.
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self.lent: list[Step | None] = [None] * _OPEN
        self._encoded: Counter[int] = Counter()  # crops of each job that later steps of its stream may read
        self._returned: Counter[int] = Counter()  # of these, crops whose encode steps have come back well
        self._lanes: dict[int, bool] = {}  # whether jobs are encoded beside the others
        self._reserved = False  # bulk images were to keep to their part, before a tick
        self._lacked = False  # a prompt had got no place in that part at bulk's turn, before a tick
        self._starved = 0  # ticks in which bulk images could have been encoded in their part, and were not
        self._waiting: list[EncodeJob] = []  # bulk images with crops left for their part, before a tick
        self._newest = self._before = -1  # of encode steps beside the others: now, and before a tick

    @property
    def open(self) -> list[Step]:
        return [step for step in self.lent if step is not None]

    def is_beside(self, step: Step) -> bool:
        """Whether a step has a place of its own beside the others."""
        return step.plan.beside

    def goes_beside(self, job: EncodeJob) -> bool:
        """Whether the next crops of an image are encoded beside the other steps."""
        scenario = self._simulation.scenario
        if job.number in self._lanes or not scenario.divides:
            return self._lanes.get(job.number, scenario.encodes_beside)
        return not job.leader.realtime and self._simulation.scheduler.policy.images.divided

    def ran_beside(self, sequence: Sequence) -> bool:
        """Whether a bulk prompt was to run in the encoder's part when a tick was planned."""
        policy = self._simulation.scheduler.policy
        if not isinstance(policy, RealtimePolicy):
            return policy.runs_beside(sequence)
        now, policy.lacked_place_beside = policy.lacked_place_beside, self._lacked
        try:
            return policy.runs_beside(sequence)
        finally:
            policy.lacked_place_beside = now

    def encodes(self, sequence: Sequence) -> bool:
        """Whether a step in flight encodes an image for a sequence."""
        return any(group.job.leader is sequence for step in self.open for group in step.plan.groups)

    def launching(self, step: Step) -> None:
        """Check a launch that has been planned and not yet done."""
        seen = self._simulation.seen
        if self.is_beside(step):
            seen["two encode steps beside others"] += len(self.open) == _OPEN
            seen["images encoded in a part"] += step.plan.in_part
            self._newest = step.number
        else:
            seen["launches beside an encode step"] += bool(self.open)
            seen["launches beside a part"] += step.beside
            seen["images encoded in turns"] += step.kind == "encode" and self._simulation.scenario.encodes_beside
            for group in step.plan.groups:
                self._encoded[group.job.number] += group.count  # later steps of the compute stream run behind it
        for group in step.plan.groups:
            self._check_lane(step, group)
        for row in step.rows:
            self._check_readable(step, row)
        if self._reserved and self._holds():  # requests that end in a tick, before its launches, may end the trial
            self._check_reserved(step)
        if any(row.sequence.beside for row in step.rows) and not step.plan.beside:
            raise Violation(f"step {step.number} carries a prompt that is computed beside it")

    def _check_lane(self, step: Step, group: CropGroup) -> None:
        """Check that an image is encoded to its end where it began, and that real-time ones begin on all of a card."""
        beside = self.is_beside(step)
        if self._lanes.setdefault(group.job.number, beside) != beside:
            raise Violation(f"step {step.number} encodes crops of image {group.job.number} on another stream")
        if beside and self._simulation.scenario.divides and group.first == 0 and group.job.leader.realtime:
            raise Violation(f"real-time image {group.job.number} is encoded in the part of bulk ones")

    def _check_readable(self, step: Step, row: BatchItem) -> None:
        """Check that features are there, by the order of a stream or because the host has seen the end."""
        beside = self.is_beside(step)
        for job in row.jobs:
            ordered = self._lanes[job.number] == beside
            if (self._encoded if ordered else self._returned)[job.number] != job.total:
                raise Violation(f"step {step.number} reads image {job.number}, of which crops may still be encoded")

    def _check_reserved(self, step: Step) -> None:
        """Check that bulk images and prompts about them stay in their part while real-time requests are open."""
        beside, seen = self.is_beside(step), self._simulation.seen
        bulk = [group for group in step.plan.groups if not group.job.leader.realtime]
        seen["bulk images in their part"] += beside and bool(bulk)
        seen["bulk images finished where they began"] += not beside and bool(bulk)
        if not beside and any(group.first == 0 for group in bulk):
            raise Violation(f"bulk images take a turn in step {step.number}, beside real-time requests")
        rows = [row for row in step.rows if row.begins and not row.sequence.realtime and row.jobs]
        seen["bulk prompts in their part"] += beside and bool(rows)
        seen["real-time images beside the part"] += not beside and len(step.plan.groups) > len(bulk) and bool(self.open)
        seen["bulk prompts that got no place in their part"] += self._lacked and not beside and bool(rows)
        for row in () if beside or self._lacked else rows:
            if self._fits_part(row):
                raise Violation(f"the prompt of {row.sequence.number} takes a turn, beside real-time requests")

    def _fits_part(self, row: BatchItem) -> bool:
        """Whether a prompt could run behind its images in the encoder's part."""
        sequence = row.sequence
        if sequence.adapter_key or any(job.is_stored or not self._lanes[job.number] for job in row.jobs):
            return False
        tokens = (*sequence.prompt, *sequence.tokens)
        ends = max([sequence.block, *(span.end for span in sequence.images)])
        return bool(tokens) and tokens[-1] is not IMAGE and not tokens[-1].values and ends < sequence.num_tokens

    def planning(self) -> None:
        """Note which images wait for the part that they are kept to, before a tick."""
        simulation = self._simulation
        if isinstance(simulation.scheduler.policy, RealtimePolicy) and simulation.now % _TRIAL == 0:
            simulation.scheduler.policy.part._begins = simulation.now + _TRIAL // 8  # as after many late requests
        wanted = simulation.scenario.realtime_part and simulation.core.open_realtime > 0
        self._reserved = wanted and self._holds()
        simulation.seen["bulk images take turns as real-time requests were late"] += wanted and not self._reserved
        jobs = simulation.scheduler.encoder.jobs.values() if self._reserved else ()
        bulk = (job for job in jobs if job.launched < job.total and not job.leader.realtime)
        self._waiting = [job for job in bulk if self._lanes.get(job.number, True)]
        self._before = self._newest
        policy = simulation.scheduler.policy
        self._lacked = isinstance(policy, RealtimePolicy) and policy.lacked_place_beside

    def _holds(self) -> bool:
        """Whether bulk images may run beside real-time requests."""
        policy = self._simulation.scheduler.policy
        return isinstance(policy, RealtimePolicy) and policy.part.holds(self._simulation.now)

    def check(self) -> None:
        """Check after a tick that images do not wait for ever while there is room for them in their part."""
        lacks = self._simulation.priority.lacks
        waits = any(job.launched < job.total and not job.failed and not lacks(job.leader) for job in self._waiting)
        if len(self.open) == _OPEN or self._newest != self._before or not waits:
            self._starved = 0
            return
        self._starved += 1
        if self._starved > _PATIENCE:
            raise Violation(f"bulk images wait for their part for {self._starved} ticks, and it has room")

    def collected(self, step: Step) -> None:
        """Note an encode step that has come back well."""
        for group in step.plan.groups:
            self._returned[group.job.number] += group.count
            if self.is_beside(step):
                self._encoded[group.job.number] += group.count

    def forgetting(self, job: EncodeJob) -> None:
        """Note an image that is dropped while it is encoded."""
        encoded = any(group.job is job for step in self.open for group in step.plan.groups)
        self._simulation.seen["images dropped while encoded beside others"] += encoded
