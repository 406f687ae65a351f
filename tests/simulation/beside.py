"""Images that are encoded beside the other steps: who reads their features, and when."""

from collections import Counter
from typing import TYPE_CHECKING

from photonlite.batch import EncodeJob, Step
from photonlite.sequence import Sequence
from tests.simulation.body import Violation

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation

_OPEN = 2
"""Encode steps in flight beside the others."""


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
        self._encoded: Counter[int] = Counter()  # crops of each job whose encode steps have come back well

    @property
    def open(self) -> list[Step]:
        return [step for step in self.lent if step is not None]

    def is_beside(self, step: Step) -> bool:
        """Whether a step has a place of its own beside the others."""
        return (step.kind == "encode" or step.plan.beside) and self._simulation.scenario.encodes_beside

    def encodes(self, sequence: Sequence) -> bool:
        """Whether a step in flight encodes an image for a sequence."""
        return any(group.job.leader is sequence for step in self.open for group in step.plan.groups)

    def launching(self, step: Step) -> None:
        """Check a launch that has been planned and not yet done."""
        seen = self._simulation.seen
        if self.is_beside(step):
            seen["two encode steps beside others"] += len(self.open) == _OPEN
            seen["images encoded in a part"] += step.plan.in_part
            seen["images encoded in turns"] += step.plan.in_turn
            for group in step.plan.groups if step.plan.in_turn else ():
                self._encoded[group.job.number] += group.count  # other steps wait for it
        else:
            seen["launches beside an encode step"] += bool(self.open)
            seen["launches beside a part"] += step.beside
        if any(row.sequence.beside for row in step.rows) and not step.plan.beside:
            raise Violation(f"step {step.number} carries a prompt that is computed beside it")
        for job in {job for row in step.rows for job in row.jobs} if self._simulation.scenario.encodes_beside else ():
            if self._encoded[job.number] != job.total:
                raise Violation(f"step {step.number} reads image {job.number}, of which crops may still be encoded")

    def collected(self, step: Step) -> None:
        """Note an encode step that has come back well."""
        for group in () if step.plan.in_turn else step.plan.groups:
            self._encoded[group.job.number] += group.count

    def forgetting(self, job: EncodeJob) -> None:
        """Note an image that is dropped while it is encoded."""
        encoded = any(group.job is job for step in self.open for group in step.plan.groups)
        self._simulation.seen["images dropped while encoded beside others"] += encoded
