"""The open requests: what becomes of their tokens, when their deadlines pass, how they end. Each ends exactly once."""

import logging
import math
from collections.abc import Callable

from sortedcontainers import SortedKeyList

from photonlite.engine.accounting import Accountant
from photonlite.engine.faults import told, without_frames
from photonlite.engine.rhythm import Rhythm
from photonlite.engine.trust import Trust
from photonlite.errors import DeadlineError, PhotonliteError
from photonlite.request import Token
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence

_EXPIRED = 64
"""Requests that one tick ends because their deadlines have passed: those that run must not wait for thousands."""

_NEAR_S = 1.0
"""Seconds after the last real-time request was open in which the next one is expected: loops come again and again."""

_LOOKED_AT = 16
"""Waiting real-time requests that a tick compares with their deadlines, those that come next."""

_logger = logging.getLogger("photonlite")


class OpenRequests:
    """Requests from submission to their end.

    Args:
        scheduler: Is told of ends, and takes back what sequences hold.
        accounts: Counts.
        clock: Gives the time that deadlines are compared with, in seconds.

    Attributes:
        open: Requests that have not ended.
        realtime: How many of these are real-time.
        ended: How many have.
        rhythm: When real-time ones come.
        kept_free_until: Until when the device was kept free for one when the scheduler was last asked; None if not.
    """

    def __init__(self, scheduler: Scheduler, accounts: Accountant, clock: Callable[[], float]) -> None:
        self.open: set[Sequence] = set()
        self.realtime = 0
        self.ended = 0
        self._scheduler = scheduler
        self._accounts = accounts
        self._clock = clock
        # Of open requests alone: one that has ended would keep its image in memory until its deadline.
        self._deadlines: SortedKeyList[Sequence, tuple[float, int]] = SortedKeyList(key=_deadline)
        self._realtime_until = -math.inf
        self._trust = Trust()
        self.rhythm = Rhythm()
        self.kept_free_until: float | None = None

    @property
    def look_again_at(self) -> float | None:
        """When time alone may give something to do: a deadline passes, or the device is kept free no longer."""
        times = [_deadline(self._deadlines[0])[0]] if self._deadlines else []
        if self.open and self.kept_free_until is not None:
            times.append(self.kept_free_until)
        return min(times, default=None)

    def add(self, sequence: Sequence) -> None:
        """Take a request that the scheduler has accepted."""
        self.open.add(sequence)
        if sequence.realtime:
            self.realtime += 1
            self.rhythm.note(self._clock())
        self._accounts.submitted()
        if sequence.deadline is not None:
            self._deadlines.add(sequence)

    def accept(self, sequence: Sequence, token: Token) -> None:
        """Give a request its next token, which may end it.

        Grammar and sink are plug-ins: their faults are the request's alone.
        """
        grammar = sequence.grammar
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
        elif len(sequence.tokens) >= sequence.budget:
            # Nothing is launched beyond the budget: it would never end.
            spent = f"the grammar goes on after {len(sequence.tokens)} tokens, which were its budget"
            self.end(sequence, AssertionError(spent))

    def end(self, sequence: Sequence, error: BaseException | None = None) -> None:
        """Finalize a request: its result or error goes out now, what it holds comes free when no step carries it.

        One that has ended stays as it is.
        """
        if sequence.finalized:
            return
        self._finalize(sequence, None if error is None else _reported(sequence, error))
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
        """End the requests whose deadlines have passed, and real-time ones that cannot be in time any more.

        No more work is spent on those that wait: where so many have expired that the next ticks have to end the rest,
        the scheduler admits nobody until then.
        """
        self._scheduler.admits = True
        if not self._deadlines:
            return
        now = self._clock()
        for _ in range(_EXPIRED):
            if not self._expired(now):
                break
            sequence = self._deadlines[0]
            self._accounts.dropped("running" if sequence.times.admitted else "waiting")
            self.end(sequence, DeadlineError("the request's deadline passed before its answer was complete"))
        self._scheduler.admits = not self._expired(now)
        if self.realtime:
            self._give_up(now)

    def realtime_near(self) -> bool:
        """Tell whether real-time requests are open, or were a moment ago."""
        return self.realtime > 0 or self._clock() < self._realtime_until

    def realtime_soon(self) -> bool:
        """Tell whether a real-time request will be ready in a moment: the device is kept free for it."""
        waiting, bulk_waits = self._scheduler.waiting.realtime > 0, self._scheduler.bulk_waits
        # Kept, because it may be over when somebody asks when to look again: then it is at once.
        self.kept_free_until = self.rhythm.free_until(self._clock(), waiting=waiting, bulk_waits=bulk_waits)
        return self.kept_free_until is not None

    def _expired(self, now: float) -> bool:
        return bool(self._deadlines) and _deadline(self._deadlines[0])[0] <= now

    def _give_up(self, now: float) -> None:
        """End waiting real-time requests whose first token, by measured rates, would come after their deadlines."""
        rates = self._scheduler.rates
        for sequence in self._scheduler.waiting.first(_LOOKED_AT, realtime=True):
            if sequence.deadline is None:
                continue
            try:
                need = self._scheduler.need(sequence)
            except Exception as error:  # an image is a plug-in
                self.end(sequence, error)
                continue
            if need is None:
                continue
            needed_s, left_s = need.least_s(rates), sequence.deadline - now
            if needed_s <= left_s or not self._trust.spend(rates, need):
                continue
            self._accounts.dropped("hopeless")
            late = f"image and prompt alone take about {needed_s:.3g} s, and the deadline is in {left_s:.3g} s"
            self.end(sequence, DeadlineError(f"{late}: raise deadline_s, or ask for less at a time"))

    def _oldest_first(self) -> list[Sequence]:
        return sorted(self.open, key=lambda one: one.number)

    def _finalize(self, sequence: Sequence, error: BaseException | None) -> None:
        sequence.finalized = True
        sequence.preempting = False
        sequence.error = error
        sequence.times.finished = self._clock()
        self.open.discard(sequence)
        if sequence.deadline is not None:
            self._deadlines.discard(sequence)
        self.ended += 1
        if sequence.realtime:
            self.realtime -= 1
            self._realtime_until = sequence.times.finished + _NEAR_S

    def _tell(self, sequence: Sequence) -> None:
        self._accounts.ended(sequence)
        try:
            sequence.sink.on_finish(sequence)
        except Exception:  # nobody is left to be told
            _logger.exception("request %d has ended, but its sink raised", sequence.number)


def _deadline(sequence: Sequence) -> tuple[float, int]:
    return math.inf if sequence.deadline is None else sequence.deadline, sequence.number


def _reported(sequence: Sequence, error: BaseException) -> BaseException:
    """Log an error that nobody foresaw, and give it without the frames that it came through."""
    without_frames(error)
    if not isinstance(error, PhotonliteError):
        _logger.error("request %d failed", sequence.number, exc_info=error)
    return told(error)
