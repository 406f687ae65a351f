"""The state machine of a real-time loop: one frame waits, a few are in flight, everything is counted.

```
submit ──> waiting ── begin ──> in flight ── finish ──> result
             │                      ├─ fail ──> failure, or dropped: deadline
             │                      └─ finish, after a newer one ──> dropped: overtaken
             ├─ a newer frame ──> dropped: superseded
             └─ begin, too late ──> dropped: expired
```

It has neither threads nor a clock of its own. Any thread may call any method.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, Self

from photonlite.errors import DeadlineError, InputError, RequestCancelledError, SettingsError
from photonlite.realtime.frames import Frame, FrameFailure, FrameJob, FrameResult, Question
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
    """Statistics of a loop. `submitted` is always the sum of answered, failed, all dropped, waiting and in flight."""

    submitted: int  # frames handed in
    answered: int  # results handed out
    late: int  # those among them that came after their deadline
    failed: int  # frames that ended in an error
    failures: Mapping[str, int]  # the same by the error's name
    dropped: Mapping[Cause, int]  # frames without a result or an error
    waiting: int  # 0 or 1
    in_flight: int
    callback_errors: int  # exceptions that `on_result` and `on_error` have raised
    elapsed_s: float  # from the first frame until now, or until the loop was closed
    rate: float  # results per second of the last 5 s
    mean_rate: float  # results per second since the first frame
    latency: Percentiles  # from a frame's submission to its result, of the latest results
    age: Percentiles  # how old a result's frame had become when the next one replaced it: the oldest of `latest()`
    jitter_s: float  # standard deviation of the times between results

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


class AnsweredFrame(NamedTuple):
    """When a frame arrived and was answered, and how old the answer before it had become: NaN for the first."""

    number: int
    arrived: float
    at: float
    age_s: float


def times_of(answers: Sequence[AnsweredFrame], now: float, elapsed_s: float, *, forgotten: bool) -> dict[str, Any]:
    """Return rate, latency, age and jitter from the latest answers; `forgotten` tells that there may have been more."""
    span = min(RATE_WINDOW_S, elapsed_s)
    if forgotten:
        span = min(span, now - answers[0].at)
    recent = sum(now - answer.at <= span for answer in answers)
    return {
        "rate": recent / span if span > 0 else 0.0,
        "latency": Percentiles.of(answer.at - answer.arrived for answer in answers),
        "age": Percentiles.of(answer.age_s for answer in answers if not math.isnan(answer.age_s)),
        "jitter_s": _deviation([after.at - before.at for before, after in pairwise(answers)]),
    }


def _deviation(values: Sequence[float]) -> float:
    if not values:
        return math.nan
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


class LoopState:
    """What a real-time loop knows; arguments as for :class:`photonlite.RealtimeLoop`."""

    def __init__(
        self, question: Question, clock: Callable[[], float], *, in_flight: int = 1, window: int = 1000
    ) -> None:
        self._question = question
        self._clock = clock
        self._capacity = _whole_number("in_flight", in_flight, least=1)
        self._lock = threading.Lock()
        self._waiting: Frame | None = None
        self._jobs: set[FrameJob] = set()
        self._closed = False
        self._submitted = self._answered = self._late = self._callback_errors = 0
        self._failures: dict[str, int] = {}
        self._dropped: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
        self._begun: float | None = None
        self._ended: float | None = None
        self._answers: deque[AnsweredFrame] = deque(maxlen=_whole_number("window", window, least=2))

    @property
    def question(self) -> Question:
        return self._question

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def idle(self) -> bool:
        with self._lock:
            return self._waiting is None and not self._jobs

    def submit(self, image: Any, stamp: Any = None) -> Frame:
        """Let a frame wait, in place of the one that waits; raises `InputError` once closed."""
        with self._lock:
            if self._closed:
                raise InputError("the real-time loop is closed: make another one")
            now = self._clock()
            frame = Frame(self._submitted, image, now if stamp is None else stamp, now)
            self._submitted += 1
            self._begun = now if self._begun is None else self._begun
            self._dropped["superseded"] += self._waiting is not None
            self._waiting = frame
            return frame

    def change(self, changes: Mapping[str, Any]) -> Question:
        """Ask something else from the next frame on, also of the one that waits; see `Question.changed`."""
        with self._lock:
            self._question = self._question.changed(changes)
            return self._question

    def begin(self) -> FrameJob | None:
        """Take the waiting frame, if there is one and room for it; one that is too late is dropped."""
        with self._lock:
            if self._waiting is None or len(self._jobs) >= self._capacity:
                return None
            frame, self._waiting = self._waiting, None
            limit = self._question.deadline_s
            deadline = None if limit is None else frame.arrived + limit
            left = None if deadline is None else deadline - self._clock()
            if left is not None and left <= 0:
                self._dropped["expired"] += 1
                return None
            job = FrameJob(frame, self._question, deadline, left)
            self._jobs.add(job)
            return job

    def finish(self, job: FrameJob, result: Mapping[str, Any]) -> FrameResult | None:
        """Take an answer; returns what is handed out: None where a newer frame's result was there first."""
        with self._lock:
            self._jobs.remove(job)
            frame = job.frame
            newest = self._answers[-1] if self._answers else None
            if newest is not None and frame.number < newest.number:
                self._dropped["overtaken"] += 1
                return None
            now = self._clock()
            late = job.deadline is not None and now > job.deadline
            latency, question = now - frame.arrived, job.question
            self._answered += 1
            self._late += late
            age = math.nan if newest is None else now - newest.arrived
            self._answers.append(AnsweredFrame(frame.number, frame.arrived, now, age))
        return FrameResult(
            result=result,
            number=frame.number,
            stamp=frame.stamp,
            task=question.task,
            arguments=question.arguments,
            image=frame.image,
            arrived=frame.arrived,
            latency_s=latency,
            age_s=latency,
            met_deadline=not late,
        )

    def fail(self, job: FrameJob, error: BaseException) -> FrameFailure | None:
        """Take an error; returns what is handed out: None past the deadline, or once the loop is closed."""
        with self._lock:
            self._jobs.remove(job)
            if isinstance(error, DeadlineError) and job.deadline is not None:
                self._dropped["deadline"] += 1
                return None
            if isinstance(error, RequestCancelledError) and self._closed:
                self._dropped["closed"] += 1
                return None
            name = type(error).__name__
            self._failures[name] = self._failures.get(name, 0) + 1
        return FrameFailure(error, job.frame.number, job.frame.stamp, job.question.task)

    def count_callback_error(self) -> None:
        with self._lock:
            self._callback_errors += 1

    def close(self, *, drain: bool) -> None:
        """Refuse frames; the one that waits is still answered if `drain`."""
        with self._lock:
            self._closed = True
            if not drain and self._waiting is not None:
                self._waiting = None
                self._dropped["closed"] += 1

    def end(self) -> None:
        """Stop the time of the statistics."""
        with self._lock:
            self._ended = self._clock() if self._ended is None else self._ended

    def age(self, result: FrameResult) -> float:
        return self._clock() - result.arrived

    def stats(self) -> LoopStats:
        with self._lock:
            now = self._clock() if self._ended is None else self._ended
            elapsed = 0.0 if self._begun is None else now - self._begun
            answers, forgotten = list(self._answers), len(self._answers) == self._answers.maxlen
            counts: dict[str, Any] = {
                "submitted": self._submitted,
                "answered": self._answered,
                "late": self._late,
                "failed": sum(self._failures.values()),
                "failures": dict(self._failures),
                "dropped": dict(self._dropped),
                "waiting": int(self._waiting is not None),
                "in_flight": len(self._jobs),
                "callback_errors": self._callback_errors,
                "elapsed_s": elapsed,
                "mean_rate": self._answered / elapsed if elapsed > 0 else 0.0,
            }
        # Sorting takes time in proportion to the window, and submissions must not wait for it.
        return LoopStats(**counts, **times_of(answers, now, elapsed, forgotten=forgotten))


def _whole_number(name: str, value: Any, *, least: int) -> int:
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise SettingsError(f"{name} is {value!r:.60}: give a whole number of at least {least}")
    return number
