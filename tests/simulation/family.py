"""A request and those that follow it, as scored choices follow a question: `engine.sequel` on the simulator."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from photonlite.engine.sequel import Sequel
from photonlite.errors import CapacityError
from photonlite.request import Completion, Request
from photonlite.results import Metrics
from photonlite.sequence import Sequence, Sink
from tests.simulation.body import Violation
from tests.simulation.workload import Ask

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation


class Family:
    """Asks what follows a request when that has ended, and takes the end of the whole.

    Args:
        simulation: Whose.
        ask: The first request.

    Attributes:
        members: Sequences that were handed in after the first one, in order.
        ends: What the whole ended with; the first one counts.
        given_up: Whether the caller has cancelled the whole.
    """

    def __init__(self, simulation: "Simulation", ask: Ask) -> None:
        self.members: list[Sequence] = []
        self.ends: list[Completion | BaseException] = []
        self.given_up = False
        self._simulation = simulation
        self._ask = ask
        self._asks: dict[int, Ask] = {}  # of further requests that are about to be handed in
        self._sequel = Sequel(self._further, self._submit, self._cancel, self.ends.append)

    def first_ended(self, sequence: Sequence) -> None:
        """Take the end of the first request, and ask what follows unless it failed."""
        if sequence.error is not None or self.given_up:
            self.ends.append(sequence.error or AssertionError("given up"))
            return
        try:
            self._sequel.begin(Completion(tuple(sequence.tokens), sequence.request.grammar.finish_reason, Metrics()))
        except CapacityError as error:
            self.ends.append(error)

    def give_up(self) -> None:
        """Cancel the whole, as its caller may at any moment."""
        if not self.ends:
            self.given_up = True
            self._sequel.cancel()

    def check(self) -> None:
        """Check how the whole has ended, when everything has.

        Raises:
            Violation: It has not ended, has a result though one of its requests failed, or the reverse.
        """
        failed = [one for one in self.members if one.error is not None]
        if self.given_up:
            return
        if not self.ends:
            raise Violation(f"a request and its {len(self.members)} further ones have never ended")
        if isinstance(self.ends[0], BaseException) == (not failed and bool(self.members)):
            raise Violation(f"{len(failed)} of {len(self.members)} further ones failed, but the end is {self.ends}")

    def _further(self, name: Ask | None, completion: Completion) -> Iterable[tuple[Ask, Request]]:
        asks = (name or self._ask).further
        self._simulation.seen["further requests"] += len(asks)
        requests = [self._simulation.request_of(ask) for ask in asks]
        self._asks.update(zip(map(id, requests), asks, strict=True))
        return zip(asks, requests, strict=True)

    def _submit(self, request: Request, sink: Sink) -> Sequence:
        if self.given_up:
            raise Violation("a request follows one that was given up")
        sequence = self._simulation.follow(request, sink, self._asks.pop(id(request)))
        self.members.append(sequence)
        return sequence

    def _cancel(self, sequence: Sequence) -> None:
        self._simulation.cancel_soon(sequence)
