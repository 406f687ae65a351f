"""How many requests a minute a caller may make: a bucket of tokens for each caller, filled evenly."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

# Callers that are remembered. Beyond that the one that has been silent longest is forgotten, and starts afresh.
_CALLERS = 10_000


class RateLimit:
    """Lets every caller make so many requests at once, and as many again within a minute.

    Args:
        per_minute: Requests.
        clock: Gives seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, caller: Hashable) -> float:
        """Ask for one request.

        Returns:
            0 where it may be made, else the seconds until one may.
        """
        now = self._clock()
        tokens, since = self._buckets.pop(caller, (float(self._per_minute), now))
        tokens = min(float(self._per_minute), tokens + (now - since) * self._per_minute / 60)
        granted = tokens >= 1
        self._buckets[caller] = (tokens - 1 if granted else tokens, now)
        if len(self._buckets) > _CALLERS:
            self._buckets.popitem(last=False)
        return 0.0 if granted else (1 - tokens) * 60 / self._per_minute
