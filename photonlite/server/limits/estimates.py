"""What requests of each kind have cost: running means and spreads, from which the server expects what others will."""

import math
from typing import Any, Final, NamedTuple

from photonlite.server.backend import Call

_MEMORY: Final = 64
"""Answers after which an older one counts about a third as much."""
_FEW: Final = 3.0
"""Requests inside the engine at a time from which on they are many."""
_ENOUGH: Final = 4
"""Answers that make a mean."""
_SPREADS: Final = 3.0
"""Standard deviations above the mean that an estimate allows for: one in fifty exponential values is larger."""
_MARGIN: Final = 1.1
"""By how much an estimate is raised beyond that."""


class Kind(NamedTuple):
    """Requests that are expected to cost about the same.

    Attributes:
        skill: What is asked.
        image: Whether it is about an image.
        form: Whether the answer has a schema, choices or a pattern.
        reasoning: Whether the model thinks before it answers.
        length: Limit of tokens or objects: the number of its binary digits.
    """

    skill: str
    image: bool
    form: bool
    reasoning: bool
    length: int


def kind_of(call: Call) -> Kind:
    """Return the kind of a call whose settings hold every limit."""
    arguments = call.arguments
    settings: Any = arguments.get("settings") or {}
    limit = settings.get("max_tokens" if call.skill in ("caption", "query") else "max_objects", 0)
    form = any(arguments.get(name) is not None for name in ("schema", "choices", "regex"))
    return Kind(call.skill, call.image is not None, form, bool(arguments.get("reasoning")), int(limit).bit_length())


class Estimate(NamedTuple):
    """Seconds that something is expected to take.

    Attributes:
        mean: Of the seconds.
        variance: Of the seconds.
    """

    mean: float = 0.0
    variance: float = 0.0

    def __add__(self, other: tuple[object, ...]) -> "Estimate":
        """Return the estimate of both, one after the other."""
        assert isinstance(other, Estimate)
        return Estimate(self.mean + other.mean, self.variance + other.variance)

    def scaled(self, factor: float) -> "Estimate":
        """Return the estimate of so many times as much."""
        return Estimate(self.mean * factor, self.variance * factor * factor)

    @property
    def most(self) -> float:
        """Seconds that it will hardly exceed."""
        return _MARGIN * (self.mean + _SPREADS * math.sqrt(self.variance))


class Running:
    """Mean and variance of values, the newest of which count most."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.variance = 0.0

    def add(self, value: float) -> None:
        """Take one value."""
        self.count += 1
        part = 1 / min(self.count, _MEMORY)
        difference = value - self.mean
        self.mean += part * difference
        self.variance = (1 - part) * (self.variance + part * difference * difference)

    def sum_of(self, count: int, least: float = 0.0) -> Estimate:
        """Return the sum of so many further values, whose mean is at least so much.

        Its variance is that of the values and that of the mean, which is known from a limited number of them.
        """
        doubt = count * count / min(max(1, self.count), 2 * _MEMORY)
        return Estimate(count * max(least, self.mean), (count + doubt) * self.variance)


class Costs:
    """Seconds of the engine that requests have taken for themselves, by kind.

    A kind without an answer is taken for the mean of all; without any answer, for nothing.
    """

    def __init__(self) -> None:
        self._known: dict[Kind | None, Running] = {}

    def add(self, kind: Kind, seconds: float, *, answered: bool) -> None:
        """Count a request.

        Args:
            kind: Of the request.
            seconds: What it has taken.
            answered: Whether that was all that it needed. Of one that was given up it is known only that it needed
                more: as for any that is not done yet, the mean is expected to be left. It tells nothing if it was given
                up early.
        """
        mean = self.of(kind).mean
        if answered or seconds > 0.9 * mean:
            for key in (kind, None):
                self._known.setdefault(key, Running()).add(seconds if answered else seconds + mean)

    def of(self, kind: Kind) -> Running:
        """Return what is known about a request."""
        return self._known.get(kind) or self._known.get(None) or Running()


class Crowding:
    """How much longer a kind of request takes with more inside the engine.

    On a CPU two take about twice as long as one; on a card further ones cost little as long as they decode. The rest is
    between what few and what many have taken, in a straight line.
    """

    def __init__(self) -> None:
        self._few = Running(), Running()
        self._many = Running(), Running()

    def add(self, inside: float, seconds: float) -> None:
        """Count an answer.

        Args:
            inside: Requests that were inside, on average.
            seconds: What it took.
        """
        count, taken = self._few if inside < _FEW else self._many
        count.add(inside)
        taken.add(seconds)

    def room(self, callers: int) -> float:
        """Return how many may be inside so that each takes at most so many times as long as alone as there are callers.

        Returns:
            One for each caller until it is known what few take, and then no limit until it is known what many take.
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
