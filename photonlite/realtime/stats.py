"""Counters and times of a real-time loop."""

import copy
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final, Literal, Self

from photonlite.errors import SettingsError
from photonlite.settings import plain

Cause = Literal["superseded", "expired", "deadline", "overtaken", "closed"]
CAUSES: Final[tuple[Cause, ...]] = ("superseded", "expired", "deadline", "overtaken", "closed")
"""Why a frame is dropped: a newer one came while it waited; its deadline passed while it waited, or while it was
answered; a newer frame's result was there first; the loop was closed."""

RATE_WINDOW_S: Final = 5.0
"""The rate is about the last so many seconds."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of a time, in seconds; NaN where nothing was measured."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Nearest-rank percentiles: always values that were measured."""
        ordered = sorted(values)
        if not ordered:
            return cls(math.nan, math.nan, math.nan)
        return cls(*(ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.95, 0.99)))


@dataclass(frozen=True, slots=True)
class LoopStats:
    """Statistics of a loop. `submitted` is always the sum of answered, failed, all dropped, waiting and in flight.

    Attributes:
        submitted: Frames handed in.
        answered: Results handed out.
        late: Those among them that came after their deadline.
        failed: Frames that ended in an error.
        failures: The same by the error's name.
        dropped: Frames without a result or an error, by cause: see `CAUSES`.
        waiting: Frames that wait, 0 or 1.
        in_flight: Frames that are being answered.
        callback_errors: Exceptions that `on_result` and `on_error` have raised.
        elapsed_s: Seconds from the first frame until now, or until the loop was closed.
        rate: Results per second of the last 5 s.
        mean_rate: Results per second since the first frame.
        latency: From a frame's submission to its result, of the latest results.
        age: How old each result's frame had become when the next result replaced it: the oldest that `latest()` gave.
        jitter_s: Standard deviation of the times between results.
    """

    submitted: int
    answered: int
    late: int
    failed: int
    failures: Mapping[str, int]
    dropped: Mapping[Cause, int]
    waiting: int
    in_flight: int
    callback_errors: int
    elapsed_s: float
    rate: float
    mean_rate: float
    latency: Percentiles
    age: Percentiles
    jitter_s: float

    @property
    def missed(self) -> int:
        """Frames whose deadline passed before they had a result."""
        return self.late + self.dropped["expired"] + self.dropped["deadline"]

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, for JSON: what was not measured is None."""
        values = asdict(self) | {"missed": self.missed}
        return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


class FrameCounts:
    """Counts what becomes of frames, and keeps the times of the latest `window` results. Nothing is locked."""

    def __init__(self, window: int) -> None:
        window = plain(window)
        if isinstance(window, bool) or not isinstance(window, int) or window < 2:
            raise SettingsError(f"window is {window!r:.60}: give a number of results, at least 2")
        self.submitted = 0
        self.answered = 0
        self.late = 0
        self.callback_errors = 0
        self.failures: dict[str, int] = {}
        self.dropped: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
        self._begun: float | None = None
        self._ended: float | None = None
        self._ends: deque[float] = deque(maxlen=window)
        self._latencies: deque[float] = deque(maxlen=window)
        self._ages: deque[float] = deque(maxlen=window)
        self._newest_arrived = math.nan

    def submit(self, now: float) -> None:
        self.submitted += 1
        self._begun = now if self._begun is None else self._begun

    def answer(self, arrived: float, now: float, *, late: bool) -> None:
        """Count a result, and how old the one before it has become."""
        self.answered += 1
        self.late += late
        if self._ends:
            self._ages.append(now - self._newest_arrived)
        self._newest_arrived = arrived
        self._ends.append(now)
        self._latencies.append(now - arrived)

    def fail(self, error: BaseException) -> None:
        name = type(error).__name__
        self.failures[name] = self.failures.get(name, 0) + 1

    def end(self, now: float) -> None:
        self._ended = now if self._ended is None else self._ended

    def copied(self) -> Self:
        """Return a copy, for a snapshot that takes its time."""
        copied = copy.copy(self)
        copied.failures, copied.dropped = dict(self.failures), dict(self.dropped)
        copied._ends, copied._latencies, copied._ages = self._ends.copy(), self._latencies.copy(), self._ages.copy()
        return copied

    def snapshot(self, now: float, *, waiting: int, in_flight: int) -> LoopStats:
        """Return the statistics at a moment."""
        now = now if self._ended is None else self._ended
        elapsed = 0.0 if self._begun is None else now - self._begun
        intervals = [after - before for before, after in pairwise(self._ends)]
        return LoopStats(
            submitted=self.submitted,
            answered=self.answered,
            late=self.late,
            failed=sum(self.failures.values()),
            failures=self.failures,
            dropped=self.dropped,
            waiting=waiting,
            in_flight=in_flight,
            callback_errors=self.callback_errors,
            elapsed_s=elapsed,
            rate=self._rate(now, elapsed),
            mean_rate=self.answered / elapsed if elapsed > 0 else 0.0,
            latency=Percentiles.of(self._latencies),
            age=Percentiles.of(self._ages),
            jitter_s=_deviation(intervals),
        )

    def _rate(self, now: float, elapsed: float) -> float:
        span = min(RATE_WINDOW_S, elapsed)
        if len(self._ends) == self._ends.maxlen:  # there may have been more, which are forgotten
            span = min(span, now - self._ends[0])
        recent = sum(now - end <= span for end in self._ends)
        return recent / span if span > 0 else 0.0


def _deviation(values: Sequence[float]) -> float:
    if not values:
        return math.nan
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
