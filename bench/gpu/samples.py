"""Repeated measurements and their statistics."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One quantity, measured several times: seconds, or events per second.

    Attributes:
        values: In the order in which they were measured; at least one.
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise AssertionError("a sample has 0 values: at least one run must have been measured")

    @classmethod
    def of(cls, values: Iterable[float]) -> "Sample":
        """Make samples from an iterable."""
        return cls(tuple(values))

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The least."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The greatest."""
        return max(self.values)

    @property
    def p99(self) -> float:
        """The 99th percentile, between two values where it falls there; the greatest of few."""
        if len(self.values) < 2:
            return self.values[0]
        return statistics.quantiles(self.values, n=100, method="inclusive")[98]


def median_of(values: Iterable[float]) -> float:
    """Return the median; NaN without values, or if one of them is NaN."""
    kept: Sequence[float] = list(values)
    return math.nan if not kept or any(map(math.isnan, kept)) else statistics.median(kept)


def window_rates(ends: Iterable[float], windows: int, *, skip: int = 0) -> Sample:
    """Return events per second in windows with equal numbers of events.

    Args:
        ends: When each event was, in seconds and any order.
        windows: How many; the events left over are those of the end.
        skip: Events at the beginning and at the end that do not count.

    Raises:
        AssertionError: There is less than one event for each window.
    """
    times = sorted(ends)
    times = times[max(0, skip - 1) : len(times) - skip]
    size = (len(times) - 1) // windows
    if size < 1:
        raise AssertionError(f"{len(times) - 1} intervals cannot be split into {windows} windows")
    return Sample.of(size / (times[start + size] - times[start]) for start in range(0, windows * size, size))
