"""Counters and times of a real-time loop."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, Self

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
