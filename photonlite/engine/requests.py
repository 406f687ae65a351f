"""The open requests: how they receive tokens, how they end, and what is counted of that. Each ends exactly once."""

import logging
from collections.abc import Callable

from photonlite.engine.faults import told, without_frames
from photonlite.errors import PhotonliteError, RequestCancelledError
from photonlite.observe.metrics import EngineMetrics
from photonlite.request import Token
from photonlite.scheduler.fifo import Ended
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence

_logger = logging.getLogger("photonlite")


class OpenRequests:
    """Requests from submission to end; faults of grammars and sinks, which are plug-ins, end their request alone."""

    def __init__(self, scheduler: Scheduler, metrics: EngineMetrics, clock: Callable[[], float]) -> None:
        self.open: set[Sequence] = set()
        self.realtime = 0  # open ones that are real-time
        self.ended = 0
        self._scheduler = scheduler
        self._metrics = metrics
        self._clock = clock
        # Of the step that is committed: tokens, and how many came so many seconds after the one before. Most of these
        # were in the same step, so that there are few different times.
        self._tokens = 0
        self._gaps: dict[float, int] = {}

    def add(self, sequence: Sequence) -> None:
        self.open.add(sequence)
        self.realtime += sequence.realtime
        self._metrics.requests_submitted += 1

    def accept(self, sequence: Sequence, token: Token, now: float) -> None:
        grammar, tokens, times = sequence.grammar, sequence.tokens, sequence.times
        try:
            grammar.accept(token)
            finished = grammar.finish_reason is not None
            self._tokens += 1
            if times.last_token:
                gap = now - times.last_token
                self._gaps[gap] = self._gaps.get(gap, 0) + 1
            else:
                times.first_token = now
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

    def count_tokens(self) -> None:
        self._metrics.tokens += self._tokens
        for gap, count in self._gaps.items():
            self._metrics.token_s.observe(gap, count)
        self._gaps.clear()
        self._tokens = 0

    def end(self, sequence: Sequence, error: BaseException | None = None) -> None:
        """End a request, unless it has ended: the result goes out now, pages are released when no step carries it."""
        if sequence in self.open:
            now = self._clock()
            error = None if error is None else _reported(sequence, error)
            self._scheduler.finish(sequence, now)
            self._close(sequence, error, now)

    def end_dropped(self, ended: Ended) -> None:
        if ended.dropped is not None:
            name = f"dropped_{ended.dropped}"
            setattr(self._metrics, name, getattr(self._metrics, name) + 1)
        self.end(ended.sequence, ended.error)

    def end_all(self, error: BaseException) -> None:
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
        self._count_end(sequence)
        try:
            sequence.sink.on_finish(sequence)
        except Exception:  # there is no other way to report it
            _logger.exception("request %d has ended, but its sink raised", sequence.number)

    def _count_end(self, sequence: Sequence) -> None:
        metrics, times = self._metrics, sequence.times
        metrics.preemptions += times.preemptions
        if sequence.error is not None:
            cancelled = isinstance(sequence.error, RequestCancelledError)
            metrics.requests_cancelled += cancelled
            metrics.requests_failed += not cancelled
            return
        metrics.requests_finished += 1
        if times.admitted:
            metrics.queue_s.observe(times.queue_s)
        if sequence.image is not None:
            metrics.preprocess_s.observe(times.preprocess_s)
            if times.encode_s:
                metrics.encode_s.observe(times.encode_s)
        if sequence.tokens:
            metrics.prefill_s.observe(times.prefill_s)
            metrics.time_to_first_token_s.observe(max(0.0, times.first_token - times.submitted))
            metrics.decode_s.observe(max(0.0, times.finished - times.first_token))


def _reported(sequence: Sequence, error: BaseException) -> BaseException:
    """Log an unexpected error, and strip the frames that it came through."""
    without_frames(error)
    if not isinstance(error, PhotonliteError):
        _logger.error("request %d failed", sequence.number, exc_info=error)
    return told(error)
