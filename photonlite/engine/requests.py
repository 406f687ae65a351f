"""The open requests: how they receive tokens, and how they end. Each ends exactly once."""

import logging
from collections.abc import Callable

from photonlite.engine.accounting import Accountant
from photonlite.engine.faults import told, without_frames
from photonlite.errors import PhotonliteError
from photonlite.request import Token
from photonlite.scheduler.fifo import Ended
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence

_logger = logging.getLogger("photonlite")


class OpenRequests:
    """Requests from submission to their end.

    Grammars and sinks are plug-ins: their faults end their request alone.
    """

    def __init__(self, scheduler: Scheduler, accounts: Accountant, clock: Callable[[], float]) -> None:
        self.open: set[Sequence] = set()
        self.realtime = 0  # open ones that are real-time
        self.ended = 0
        self._scheduler = scheduler
        self._accounts = accounts
        self._clock = clock

    def add(self, sequence: Sequence) -> None:
        """Open a request that the scheduler has accepted."""
        self.open.add(sequence)
        self.realtime += sequence.realtime
        self._accounts.count_submitted()

    def accept(self, sequence: Sequence, token: Token, now: float) -> None:
        """Give a request its next token, which may end it."""
        grammar, tokens, times = sequence.grammar, sequence.tokens, sequence.times
        try:
            grammar.accept(token)
            finished = grammar.finish_reason is not None
            self._accounts.add_token(times.last_token, now)
            times.first_token = times.first_token or now
            times.last_token = now
            tokens.append(token)
            sequence.sink.on_token(token)
        except Exception as error:
            self.end(sequence, error)
            return
        if finished:
            self.end(sequence)
        elif len(tokens) >= sequence.budget:
            # Nothing is launched beyond the budget: it would never end.
            spent = f"the grammar goes on after {len(tokens)} tokens, which were its budget"
            self.end(sequence, AssertionError(spent))

    def end(self, sequence: Sequence, error: BaseException | None = None) -> None:
        """End a request: its result or error goes out now, its pages are released when no step carries it.

        One that has ended stays as it is.
        """
        if sequence in self.open:
            now = self._clock()
            error = None if error is None else _reported(sequence, error)
            self._scheduler.finish(sequence, now)
            self._close(sequence, error, now)

    def end_dropped(self, ended: Ended) -> None:
        """End a request that the scheduler has taken out of its queues."""
        if ended.dropped is not None:
            self._accounts.count_dropped(ended.dropped)
        self.end(ended.sequence, ended.error)

    def end_all(self, error: BaseException) -> None:
        """End every open request with an error."""
        for sequence in sorted(self.open, key=lambda one: one.number):
            self.end(sequence, error)

    def end_all_after_fault(self, error: BaseException) -> None:
        """Fail all requests without touching scheduler state that may be inconsistent."""
        for sequence in sorted(self.open, key=lambda one: one.number):
            sequence.finalized = True
            self._close(sequence, error, self._clock())

    def _close(self, sequence: Sequence, error: BaseException | None, now: float) -> None:
        self.open.discard(sequence)
        self.realtime -= sequence.realtime
        self.ended += 1
        sequence.error = error
        sequence.times.finished = now
        self._accounts.count_ended(sequence)
        try:
            sequence.sink.on_finish(sequence)
        except Exception:  # there is no other way to report it
            _logger.exception("request %d has ended, but its sink raised", sequence.number)


def _reported(sequence: Sequence, error: BaseException) -> BaseException:
    """Log an unexpected error, and strip the frames that it came through."""
    without_frames(error)
    if not isinstance(error, PhotonliteError):
        _logger.error("request %d failed", sequence.number, exc_info=error)
    return told(error)
