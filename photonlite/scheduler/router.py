"""The router: how many sequences run at a time, so that pages rarely run out. No torch.

A sequence grows by one position a step and gives all of them back when it ends. The need of some sequences is the most
positions that they will hold together at any moment; it is reached when one of them ends:

```
held  │        ┌┐
      │    ┌───┘│   ┌┐     need = max over ends e of  sum over sequences that are still there of (held + steps to e)
      │  ┌─┘    └───┘└──┐
      └─────────┴────┴──┴── steps
```

How long an answer will be is estimated: mean and spread of answers to the same skill, at most what its limits allow.
A sequence is admitted if the need stays within the budget. As estimates add up to more than the truth, the budget may
exceed the allocation. The adaptive rule finds it as TCP finds its window: it grows by a share of the allocation while
it holds somebody back and pages are idle, and shrinks by a factor when a sequence had to give its pages away.
"""

import math
from collections.abc import Collection, Iterable
from collections.abc import Sequence as ListLike
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from photonlite.cache.manager import CacheManager
from photonlite.scheduler.limits import Limits
from photonlite.sequence import Sequence

GROWTH = 0.002
"""Share of the allocation by which the budget grows in a plan that held somebody back while pages were idle."""

DECREASE = 0.97
"""Factor of the budget when a sequence had to give way."""

ROOM = 0.02
"""Share of the allocation that must have come free in the budget before, once a prompt was held back, prompts start
again: several then share a launch, which costs about as much as one that a single prompt has."""

MOST = 1.5
"""Largest budget, as a share of the allocation."""

_BUSY = 0.9
"""Share of pages in use from which the budget grows no more."""

_FIRST, _FADING = 8, 1 / 128
"""Answers of a skill before its lengths count, and the least share of the newest in mean and spread."""

_REFRESH = 16
"""Plans after which what the running sequences will hold is estimated anew, though none has come or gone."""


class AnswerLengths:
    """Running mean and spread of the tokens of a skill's answers."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self._square = 0.0

    def observe(self, tokens: int) -> None:
        self.count += 1
        share = max(1 / self.count, _FADING)
        self.mean += share * (tokens - self.mean)
        self._square += share * (tokens * tokens - self._square)

    @property
    def spread(self) -> float:
        """Standard deviation."""
        return math.sqrt(max(0.0, self._square - self.mean * self.mean))


@dataclass(slots=True)
class Forecast:
    """A predicted peak, which is compared with the true one when all of its sequences have ended."""

    predicted: float  # positions
    fixed: float  # of these, the ones that no sequence gives back
    members: dict[Sequence, tuple[int, int]]  # positions held and tokens known at the time
    ended: list[tuple[int, int]]  # positions held at the time, and tokens that came after it

    @property
    def true_peak(self) -> float:
        held, left = zip(*self.ended, strict=True)
        return self.fixed + peak(np.array(held, float), np.array(left, float))


class Router:
    """Decides whether a sequence may start beside those that run; positions are those of whole pages."""

    def __init__(self, cache: CacheManager, limits: Limits) -> None:
        self._cache = cache
        self._page_size = cache.pages.page_size
        self.rule = limits.router
        self.allocation = cache.pages.usable * self._page_size
        self.least = float(min(limits.max_positions, self.allocation))
        self.budget = max(self.least, limits.router_budget * self.allocation)
        # Real-time or not: the last sequence of a class that may not start yet.
        self.refused: dict[bool, Sequence] = {}
        self.predicted_peak = 0.0  # positions, of the running sequences when the last one was admitted
        self.true_peak = 0.0  # of the last forecast whose sequences have all ended
        self.forecast_peak = 0.0  # what that one had predicted
        self._lengths: dict[str, AnswerLengths] = {}
        self._forecast: Forecast | None = None
        # Of the running sequences: positions held and tokens to come; None where they must be estimated anew.
        self._running: tuple[list[float], list[float]] | None = None
        self._plans = 0  # since then
        self._asked: Sequence | None = None  # whom `predicted_peak` is for

    def admits(self, sequence: Sequence, running: ListLike[Sequence], zombies: Collection[Sequence]) -> bool:
        """Whether a sequence may start; alone it always may, and a real-time one wherever its pages are there."""
        if self.rule == "reserve":
            sequence.reserved = self._cache.pages_needed(sequence)
            taken = sum(one.reserved for one in (*running, *zombies))
            allowed = taken + sequence.reserved <= self._cache.pages.usable
        elif self.rule == "greedy" or not running:
            allowed = True
        else:
            self.predicted_peak = self._need(sequence, running, zombies)
            room = ROOM * self.allocation if sequence.realtime in self.refused else 0.0
            allowed = self.predicted_peak <= self.budget - room or sequence.realtime
        if allowed:
            self.refused.pop(sequence.realtime, None)
        else:
            self.refused[sequence.realtime] = sequence
        if not allowed and self.rule == "adaptive" and self.used < _BUSY * self._cache.pages.usable:
            self.grow()
        return allowed

    def grow(self) -> None:
        """Raise the budget: it holds somebody back, and pages are idle."""
        self.budget = min(self.budget + GROWTH * self.allocation, MOST * self.allocation)

    def shrink(self) -> None:
        """Lower the budget: a sequence had to give way."""
        self.budget = max(self.budget * DECREASE, self.least)

    def note_start(self, sequence: Sequence, running: Iterable[Sequence]) -> None:
        """Note that an admitted sequence runs, and has its pages."""
        self._asked = None
        if self._running is not None:
            for values, value in zip(self._running, self._outlook(sequence), strict=True):
                values.append(value)
        if self._forecast is None and self.predicted_peak:
            # Ended ones may still be on their way back from host memory.
            open_ = [one for one in (*running, sequence) if not one.finalized]
            members = {one: (self._held(one), len(one.tokens)) for one in open_}
            fixed = max(0.0, self.used * self._page_size - sum(held for held, _ in members.values()))
            self._forecast = Forecast(self.predicted_peak, fixed, members, [])

    def note_victim(self) -> None:
        """Note that a sequence must give its pages back, as there are not enough."""
        if self.rule == "adaptive":
            self.shrink()

    def note_change(self) -> None:
        """Note that a sequence runs no more."""
        self._running = None

    def note_end(self, sequence: Sequence) -> None:
        """Learn from a request that has ended."""
        if sequence is self._asked:
            self._asked = None
        if sequence is self.refused.get(sequence.realtime):
            del self.refused[sequence.realtime]
        if sequence.error is None and sequence.tokens:
            self._lengths.setdefault(sequence.skill, AnswerLengths()).observe(len(sequence.tokens))
        forecast = self._forecast
        if forecast is not None and sequence in forecast.members:
            held, known = forecast.members.pop(sequence)
            forecast.ended.append((held, len(sequence.tokens) - known))
            if not forecast.members:
                self.forecast_peak, self.true_peak = forecast.predicted, forecast.true_peak
                self._forecast = None

    def figures(self) -> dict[str, int]:
        """Return the gauges `pages_...` of metrics and trace, without that beginning; from any thread."""
        budget = self.budget if self.rule in ("adaptive", "static") else 0.0
        peaks = {"predicted": self.predicted_peak, "forecast": self.forecast_peak, "peak": self.true_peak}
        return {name: round(of / self._page_size) for name, of in {"budget": budget, **peaks}.items()}

    @property
    def used(self) -> int:
        """Pages that cannot be had at once: not free, nor kept for later requests alone."""
        pages = self._cache.pages
        return pages.usable - pages.free - self._cache.prefix.idle_pages

    def tokens_to_come(self, sequence: Sequence) -> float:
        """Estimate how many tokens of an answer are still to come: at least its spread, at most what its limits allow.

        Of lengths that are spread widely, those that have come do not tell how many follow.
        """
        known = len(sequence.tokens)
        bound = sequence.budget - known
        lengths = self._lengths.get(sequence.skill)
        if lengths is None or lengths.count < _FIRST:
            return bound
        spread = lengths.spread
        return min(bound, max(lengths.mean + spread - known, spread, 1.0))

    def _need(self, sequence: Sequence, running: Iterable[Sequence], zombies: Iterable[Sequence]) -> float:
        self._plans += 1
        if sequence is self._asked and self._running is not None and self._plans < _REFRESH:
            return self.predicted_peak  # which time does not change, where all goes as expected
        self._asked = sequence
        if self._running is None or self._plans >= _REFRESH:
            outlooks = [self._outlook(one) for one in running]
            self._running, self._plans = ([held for held, _ in outlooks], [left for _, left in outlooks]), 0
        held, left = self._running
        # Pages of ended sequences that others go on to use, and the cache's copies: they stay for now.
        fixed = self.used * self._page_size - sum(held) - sum(map(self._held, zombies))
        shared = self._cache.cached_pages(sequence)
        new = self._cache.pages.pages_for(sequence.num_tokens + 1) - shared
        holds = np.array([*held, new * self._page_size])
        return max(0.0, fixed) + peak(holds, np.array([*left, self.tokens_to_come(sequence)]))

    def _outlook(self, sequence: Sequence) -> tuple[float, float]:
        return self._held(sequence), self.tokens_to_come(sequence)

    def _held(self, sequence: Sequence) -> int:
        """Return the positions that a sequence gives back when it ends: of pages that it has not got from the cache."""
        return (len(sequence.pages) - sequence.shared_pages) * self._page_size


def peak(held: npt.NDArray[np.float64], left: npt.NDArray[np.float64]) -> float:
    """Return the most positions that sequences hold together; each has `held` [N] and gets `left` [N] more, one a step.

    When one ends that has as many to come as the k-th most, k sequences are there, and each has grown by as many.
    """
    order = np.argsort(-left)
    return float(np.max(np.cumsum(held[order]) + left[order] * np.arange(1, len(order) + 1)))
