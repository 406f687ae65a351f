"""When real-time requests come: nothing that has been launched can be called back, so the device is free for them."""

import math

_LONGEST_S = 1.0
"""Loops that ask less often are not waited for."""

_AHEAD_S, _AFTER_S = 4e-3, 2e-3
"""The device is kept free so long before a request is expected, which is what a short launch takes, and after that."""
_SHARE = 0.25
"""Of an interval it is kept free for no larger part."""
_STEADY = 0.2
"""Intervals that differ by no more than this part are a rhythm."""
_BEGIN_S = 3e-3
"""A request that has come should be ready for its first launch after so long: its picture is being cut."""


class Rhythm:
    """Expects the next real-time request one interval after the last, if the last two intervals were alike.

    Args:
        second: In what the clock counts, of which all times are: a simulation has one of its own.
    """

    def __init__(self, second: float = 1.0) -> None:
        self._second = second
        self._last = -math.inf
        self._interval = math.inf
        self._expected = math.inf

    def note(self, now: float) -> None:
        """Take down that a request has come."""
        interval, before = now - self._last, self._interval
        steady = interval <= _LONGEST_S * self._second and abs(interval - before) <= _STEADY * before
        self._expected = now + (interval + before) / 2 if steady else math.inf
        self._last, self._interval = now, interval

    def free_until(self, now: float, *, waiting: bool) -> float | None:
        """Tell until when the device should be kept free; None if it need not be.

        Args:
            now: The time.
            waiting: Whether a real-time request is there that has not begun.
        """
        ends = []
        if waiting:
            ends.append(self._last + _BEGIN_S * self._second)
        ahead = min(_AHEAD_S * self._second, _SHARE * self._interval)
        if self._expected - ahead <= now:
            ends.append(self._expected + min(_AFTER_S * self._second, ahead))
        end = max(ends, default=-math.inf)
        return end if now < end else None
