"""Where the simulation observes the engine: at its output, and between the phases of a tick."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from photonlite.batch import EncodeJob, Step, Transfer
from photonlite.request import Allowed, Token
from photonlite.runner.step_executor import StepExecutor
from photonlite.sequence import Sequence as EngineSequence
from photonlite.sequence import Sink
from tests.simulation.body import Violation
from tests.simulation.family import Family
from tests.simulation.oracle import Oracle

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation


class Watch:
    """A sequence's sink: compares tokens with the oracle's.

    Args:
        simulation: Whose.
        number: The sequence's.
        oracle: Says it too.
        follower: Takes the end as well: of a request that others follow, or of one of these.

    Attributes:
        end: Tokens and error at the end; None before.
        sequence: Whose sink it is.
    """

    __slots__ = ("_follower", "_number", "_simulation", "end", "oracle", "sequence")
    sequence: EngineSequence

    def __init__(
        self, simulation: "Simulation", number: int, oracle: Oracle, follower: "Family | Sink | None" = None
    ) -> None:
        self._follower = follower
        self.end: tuple[int, BaseException | None] | None = None
        self.oracle = oracle
        self._simulation = simulation
        self._number = number

    def on_token(self, token: Token) -> None:
        expected = self.oracle.next()
        if self.end is not None or token != expected:
            raise Violation(f"{self._number} says {token} as token {self.oracle.said - 1}, not {expected}")
        if not self.sequence.finalized:  # else an answer without any choice ends in the middle of a plan
            self._simulation.moment()

    def on_finish(self, sequence: EngineSequence) -> None:
        if self.end is not None:
            raise Violation(f"{self._number} ends a second time")
        self.end = len(sequence.tokens), sequence.error
        if sequence.answered and sequence.error is None:
            self._simulation.seen["answers without any choice"] += 1
            self._simulation.seen["answers without any choice, about an image"] += bool(sequence.images)
        self._simulation.ended(sequence, self.oracle)
        if isinstance(self._follower, Family):
            self._follower.first_ended(sequence)
        elif self._follower is not None:
            self._follower.on_finish(sequence)


class WatchedRunner:
    """An executor between whose phases the simulation progresses; some of its calls fail.

    Args:
        inner: Does the work.
        simulation: Whose.
    """

    def __init__(self, inner: StepExecutor, simulation: "Simulation") -> None:
        self._inner = inner
        self._simulation = simulation

    def launch(self, step: Step) -> None:
        simulation = self._simulation
        simulation.launching(step)
        try:
            simulation.fail("launch", step)
            self._inner.launch(step)
        except Exception as error:
            simulation.slots_of(step)[step.slot] = None
            simulation.uncompute(step)
            simulation.doom(step, error)
            raise
        if step.kind == "encode" or not simulation.scenario.encodes_beside:  # else images are about to be launched
            simulation.moment()

    def finalize(self, step: Step, allowed: Sequence[Allowed | None]) -> None:
        self._simulation.finalizing(step)
        self._inner.finalize(step, allowed)
        self._simulation.moment()

    def collect(self, step: Step) -> list[Token | Exception | None]:
        simulation = self._simulation
        simulation.collecting(step)
        try:
            outcomes = self._inner.collect(step)
            simulation.fail("collect", step)
        except Exception as error:
            simulation.doom(step, error)
            raise
        finally:
            simulation.slots_of(step)[step.slot] = None
        simulation.beside.collected(step)
        # The failures of steps behind it are still to come out.
        simulation.failures.wounds = sum(one.failure is not None for one in simulation.core.in_flight)
        simulation.moment()
        return outcomes

    def has_ended(self, step: Step) -> bool:
        self._simulation.moment()
        return self._inner.has_ended(step)

    def transfer(self, transfer: Transfer) -> None:
        self._simulation.transferring(transfer)
        self._inner.transfer(transfer)  # no moment: what has been planned is about to be launched

    def transferred(self, transfer: Transfer, *, wait: bool) -> bool:
        self._simulation.moment()
        ended = self._inner.transferred(transfer, wait=wait)
        if ended:
            self._simulation.transferred(transfer)
        return ended

    def forget(self, job: EncodeJob) -> None:
        self._simulation.beside.forgetting(job)
        self._inner.forget(job)

    def free_memory(self) -> None:
        self._simulation.seen["memory was short"] += 1
        self._inner.free_memory()

    def close(self) -> None:
        self._inner.close()
