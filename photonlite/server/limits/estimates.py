"""Estimates of what requests cost, from running means and variances of what requests of the same kind have cost."""

import math
from typing import Any, Final, NamedTuple

from photonlite.server.backend import Call

_MEMORY: Final = 64
"""Number of answers after which the weight of an older one has fallen to about a third."""
_FEW: Final = 3.0
"""Requests inside the engine from which on they count as many."""
_ENOUGH: Final = 4
"""Answers that a mean needs."""
_SPREADS: Final = 3.0
"""Standard deviations that an estimate adds to the mean: one in fifty exponential values is larger."""
_MARGIN: Final = 1.1
"""Factor on top of that."""


class Kind(NamedTuple):
    """Requests that are expected to cost about the same."""

    skill: str
    image: bool
    form: bool
    """Whether the answer is constrained by a schema, choices or a pattern."""
    reasoning: bool
    length: int
    """Binary digits of the limit of tokens or objects."""


def kind_of(call: Call) -> Kind:
    """Return the kind of a call from `bounded`."""
    arguments = call.arguments
    settings: Any = arguments.get("settings") or {}
    limit = settings.get("max_tokens" if call.skill in ("caption", "query") else "max_objects", 0)
    form = any(arguments.get(name) is not None for name in ("schema", "choices", "regex"))
    return Kind(call.skill, call.image is not None, form, bool(arguments.get("reasoning")), int(limit).bit_length())


class Estimate(NamedTuple):
    """Mean and variance of the seconds that something is expected to take."""

    mean: float = 0.0
    variance: float = 0.0

    def __add__(self, other: tuple[object, ...]) -> "Estimate":
        """Estimate of both, one after the other."""
        assert isinstance(other, Estimate)
        return Estimate(self.mean + other.mean, self.variance + other.variance)

    def scaled(self, factor: float) -> "Estimate":
        """Estimate of `factor` times as much."""
        return Estimate(self.mean * factor, self.variance * factor * factor)

    @property
    def most(self) -> float:
        """Seconds that are rarely exceeded."""
        return _MARGIN * (self.mean + _SPREADS * math.sqrt(self.variance))


class RunningMean:
    """Exponentially weighted mean and variance."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.variance = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        part = 1 / min(self.count, _MEMORY)
        difference = value - self.mean
        self.mean += part * difference
        self.variance = (1 - part) * (self.variance + part * difference * difference)

    def sum_of(self, count: int, least: float = 0.0) -> Estimate:
        """Estimate the sum of further values whose mean is at least `least`.

        Its variance is that of the values and that of the mean, which comes from a limited number of them.
        """
        doubt = count * count / min(max(1, self.count), 2 * _MEMORY)
        return Estimate(count * max(least, self.mean), (count + doubt) * self.variance)


class Costs:
    """Engine seconds that requests have used, by kind.

    A kind without answers is estimated by the mean of all kinds; without any answer, by 0.
    """

    def __init__(self) -> None:
        self._known: dict[Kind | None, RunningMean] = {}

    def add(self, kind: Kind, seconds: float, *, answered: bool) -> None:
        """Count a request; one that was not answered needed more than its seconds.

        Like any unfinished request it is expected to need the mean in addition; if it was given up early, it says
        nothing and is skipped.
        """
        mean = self.of(kind).mean
        if answered or seconds > 0.9 * mean:
            for key in (kind, None):
                self._known.setdefault(key, RunningMean()).add(seconds if answered else seconds + mean)

    def of(self, kind: Kind) -> RunningMean:
        return self._known.get(kind) or self._known.get(None) or RunningMean()


class Crowding:
    """How much longer a kind of request takes with more requests inside the engine.

    On a CPU two take about twice as long as one; on a GPU further ones cost little while they decode. Times between
    those of few and of many requests are interpolated linearly.
    """

    def __init__(self) -> None:
        self._few = RunningMean(), RunningMean()
        self._many = RunningMean(), RunningMean()

    def add(self, inside: float, seconds: float) -> None:
        """Count an answer that took so many seconds with so many requests inside on average."""
        count, taken = self._few if inside < _FEW else self._many
        count.add(inside)
        taken.add(seconds)

    def room(self, callers: int) -> float:
        """Requests that may be inside so that each takes at most `callers` times as long as alone.

        One for each caller until it is known what few take, then no limit until it is known what many take.
        """
        (few, short), (many, long) = self._few, self._many
        if few.count < _ENOUGH:
            return callers
        if many.count < _ENOUGH:
            return math.inf
        slope = (long.mean - short.mean) / (many.mean - few.mean)
        alone = short.mean - slope * (few.mean - 1)
        if slope <= 0:
            return math.inf
        return max(callers, 1 + (callers - 1) * alone / slope)
