"""When the next real-time request is expected, and how long the device is kept idle for it; times in seconds."""

import math

_LONGEST_INTERVAL_S = 1.0
"""Loops with longer intervals are not waited for."""

_AHEAD_S, _AFTER_S = 4e-3, 2e-3
"""How long the device is kept idle before an expected request, which is what a short launch takes, and after it."""

_SHARE = 0.25
"""Largest part of an interval for which the device is kept idle ahead of a request."""

_STEADY = 0.2
"""Intervals that differ by no more than this part are a rhythm."""

_READY_S = 3e-3
"""Time from a request's arrival to its first launch: its image is being cut."""

_MOST_S = _AHEAD_S + _AFTER_S + _READY_S
"""Longest time that waiting bulk work is held back before its next launch: enough for one request that comes late."""

_NEAR_S = 1.0
"""After a real-time request has ended, the next one is expected within so many seconds: loops come again and again."""


class ArrivalPredictor:
    """Expects the next real-time request one interval after the last, if the last two intervals were alike.

    A launch cannot be recalled, so the device is kept idle for such a request. While bulk work waits, that is bounded:
    a bulk launch restores the time that may be spent, if a real-time request has been launched since it was last
    restored. So bulk work waits no longer than this for each of its launches, and only once for requests that never
    become ready. `second` is in the unit of the clock: a simulation has its own.
    """

    def __init__(self, second: float = 1.0) -> None:
        self._second = second
        self._last = -math.inf
        self._interval = math.inf
        self._expected = math.inf
        self._near_until = -math.inf
        self._spent = 0.0  # of the time for which bulk work may be held back
        self._kept: tuple[float, float] | None = None  # idle since when, and until when at most
        self._served = False

    def note_arrival(self, now: float) -> None:
        interval, before = now - self._last, self._interval
        steady = interval <= _LONGEST_INTERVAL_S * self._second and abs(interval - before) <= _STEADY * before
        self._expected = now + (interval + before) / 2 if steady else math.inf
        self._last, self._interval = now, interval

    def note_end(self, now: float) -> None:
        self._near_until = now + _NEAR_S * self._second

    def note_launch(self, *, realtime: bool) -> None:
        if realtime:
            self._served = True
        elif self._served:
            self._served = False
            self._spent = 0.0
            self._kept = None

    def is_near(self, now: float) -> bool:
        """Whether a request ended so short a time ago that the next one may come."""
        return now < self._near_until

    def idle_until(self, now: float, *, waiting: bool, bulk_waits: bool) -> float | None:
        """Return until when to keep the device idle, else None; a `waiting` real-time request has not begun."""
        end = -math.inf
        if waiting:
            end = self._last + _READY_S * self._second
        ahead = min(_AHEAD_S * self._second, _SHARE * self._interval)
        if self._expected - ahead <= now:
            end = max(end, self._expected + min(_AFTER_S * self._second, ahead))
        return self.bound_idle(now, end, bulk_waits=bulk_waits)

    def bound_idle(self, now: float, end: float, *, bulk_waits: bool) -> float | None:
        """Return until when the device is kept idle, where that is wanted until `end`; None if not at all."""
        if self._kept is not None:
            since, kept_until = self._kept
            self._spent += min(now, kept_until) - since
            self._kept = None
        if now >= end:
            return None
        if not bulk_waits:
            return end
        end = min(end, now + _MOST_S * self._second - self._spent)
        if end <= now:
            return None
        self._kept = now, end
        return end
