"""A request and its follow-ups, as scored choices follow a question, on the simulator."""

from typing import TYPE_CHECKING

from photonlite.errors import CapacityError
from photonlite.request import Completion, Token
from photonlite.results import Metrics
from photonlite.sequence import Sequence
from tests.simulation.body import Violation
from tests.simulation.workload import Ask

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation


class Family:
    """Submits follow-ups when a request has ended, and receives the end of the whole.

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
        self._first: Completion | None = None
        self._running: set[Sequence] = set()

    def first_ended(self, sequence: Sequence) -> None:
        """Receive the end of the first request, and submit follow-ups unless it failed."""
        if sequence.error is not None or self.given_up:
            self.ends.append(sequence.error or AssertionError("given up"))
            return
        self._first = Completion(tuple(sequence.tokens), sequence.request.grammar.finish_reason, Metrics())
        self._follow(self._ask)

    def give_up(self) -> None:
        """Cancel the whole, as its caller may at any moment."""
        if not self.ends:
            self.given_up = True
            self._cancel_all()

    def check(self) -> None:
        """Check how the whole has ended.

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

    def _follow(self, ask: Ask) -> None:
        """Submit the follow-ups of a request that has ended; the whole ends when there are none left."""
        self._simulation.seen["further requests"] += len(ask.further)
        for one in ask.further:
            if self.given_up:
                raise Violation("a request follows one that was given up")
            try:
                sink = _Follower(self, one)
                sequence = self._simulation.follow(self._simulation.request_of(one), sink, one)
            except CapacityError as error:
                self._fail(error)
                return
            self.members.append(sequence)
            self._running.add(sequence)
        if not self._running and self._first is not None:
            self.ends.append(self._first)

    def ended(self, ask: Ask, sequence: Sequence) -> None:
        """Receive the end of a follow-up."""
        self._running.discard(sequence)
        if sequence.error is not None:
            self._fail(sequence.error)
        elif not self.given_up and not self.ends:
            self._follow(ask)

    def _fail(self, error: BaseException) -> None:
        self.ends.append(error)
        self._cancel_all()

    def _cancel_all(self) -> None:
        for sequence in sorted(self._running, key=lambda one: one.number):
            self._simulation.cancel_soon(sequence)


class _Follower:
    """The sink of a follow-up."""

    def __init__(self, family: Family, ask: Ask) -> None:
        self._family = family
        self._ask = ask

    def on_token(self, token: Token) -> None:
        """Do nothing: the sequence has the token."""

    def on_finish(self, sequence: Sequence) -> None:
        self._family.ended(self._ask, sequence)
