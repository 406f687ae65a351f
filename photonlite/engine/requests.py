"""The open requests: what becomes of their tokens, when their deadlines pass, how they end. Each ends exactly once."""

import heapq
import logging
from collections.abc import Callable

from photonlite.engine.accounting import Accountant
from photonlite.errors import DeadlineError
from photonlite.request import Token
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence

_SPARE_DEADLINES = 64
"""Deadlines of ended requests that may be kept before they are looked for."""

_logger = logging.getLogger("photonlite")


class OpenRequests:
    """Requests from submission to their end.

    Args:
        scheduler: Is told of ends, and takes back what sequences hold.
        accounts: Counts.
        clock: Gives the time that deadlines are compared with, in seconds.

    Attributes:
        open: Requests that have not ended.
        ended: How many have.
    """

    def __init__(self, scheduler: Scheduler, accounts: Accountant, clock: Callable[[], float]) -> None:
        self.open: set[Sequence] = set()
        self.ended = 0
        self._scheduler = scheduler
        self._accounts = accounts
        self._clock = clock
        self._deadlines: list[tuple[float, int, Sequence]] = []

    @property
    def next_deadline(self) -> float | None:
        """When the next deadline passes, at the latest."""
        return self._deadlines[0][0] if self._deadlines else None

    def add(self, sequence: Sequence) -> None:
        """Take a request that the scheduler has accepted."""
        self.open.add(sequence)
        self._accounts.submitted()
        if sequence.deadline is not None:
            self._watch(sequence, sequence.deadline)

    def accept(self, sequence: Sequence, token: Token) -> None:
        """Give a request its next token, which may end it.

        Grammar and sink are plug-ins: their faults are the request's alone.
        """
        grammar = sequence.request.grammar
        try:
            grammar.accept(token)
            finished = grammar.finish_reason is not None
            now = self._clock()
            self._accounts.token(sequence, now)
            sequence.times.first_token = sequence.times.first_token or now
            sequence.tokens.append(token)
            sequence.sink.on_token(token)
        except Exception as error:
            self.end(sequence, error)
            return
        if finished:
            self.end(sequence)
        elif len(sequence.tokens) >= sequence.request.budget:
            # Nothing is launched beyond the budget: it would never end.
            spent = f"the grammar goes on after {len(sequence.tokens)} tokens, which were its budget"
            self.end(sequence, AssertionError(spent))

    def end(self, sequence: Sequence, error: BaseException | None = None) -> None:
        """Finalize a request: its result or error goes out now, what it holds comes free when no step carries it.

        One that has ended stays as it is.
        """
        if sequence.finalized:
            return
        self._finalize(sequence, error)
        self._scheduler.finish(sequence)
        self._tell(sequence)

    def end_all(self, error: BaseException) -> None:
        """End every open request with an error."""
        for sequence in self._oldest_first():
            self.end(sequence, error)

    def bury(self, error: BaseException) -> None:
        """End every open request after a fault that may have left the books wrong: nobody looks at them any more."""
        for sequence in self._oldest_first():
            self._finalize(sequence, error)
            self._tell(sequence)

    def expire(self) -> None:
        """End the requests whose deadlines have passed."""
        if not self._deadlines:
            return
        now = self._clock()
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].finalized):
            _, _, sequence = heapq.heappop(self._deadlines)
            self.end(sequence, DeadlineError("the request's deadline passed before its answer was complete"))

    def _oldest_first(self) -> list[Sequence]:
        return sorted(self.open, key=lambda one: one.number)

    def _finalize(self, sequence: Sequence, error: BaseException | None) -> None:
        sequence.finalized = True
        sequence.preempting = False
        sequence.error = error
        sequence.times.finished = self._clock()
        self.open.discard(sequence)
        self.ended += 1

    def _tell(self, sequence: Sequence) -> None:
        self._accounts.ended(sequence)
        try:
            sequence.sink.on_finish(sequence)
        except Exception:  # nobody is left to be told
            _logger.exception("request %d has ended, but its sink raised", sequence.number)

    def _watch(self, sequence: Sequence, deadline: float) -> None:
        """Note a deadline; those of requests that have ended go before they outnumber the others."""
        if len(self._deadlines) >= 2 * len(self.open) + _SPARE_DEADLINES:
            # They hold pictures, and one early deadline may keep many late ones from the top of the heap.
            self._deadlines = [entry for entry in self._deadlines if not entry[2].finalized]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (deadline, sequence.number, sequence))
