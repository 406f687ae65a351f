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
"""A request that has come should be ready for its first launch after so long: its image is being cut."""
_MOST_S = _AHEAD_S + _AFTER_S + _BEGIN_S
"""Bulk work that waits is held back no longer before its next launch: enough for one request that comes late."""


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
        self._reserve = Reserve(_MOST_S * second)

    def note(self, now: float) -> None:
        """Take down that a request has come."""
        interval, before = now - self._last, self._interval
        steady = interval <= _LONGEST_S * self._second and abs(interval - before) <= _STEADY * before
        self._expected = now + (interval + before) / 2 if steady else math.inf
        self._last, self._interval = now, interval

    def launched(self, *, realtime: bool) -> None:
        """Note an encode or prefill launch: for real-time requests, or for bulk ones."""
        self._reserve.launched(realtime=realtime)

    def free_until(self, now: float, *, waiting: bool, bulk_waits: bool) -> float | None:
        """Tell until when the device should be kept free; None if it need not be, or has been for too long.

        Args:
            now: The time.
            waiting: Whether a real-time request is there that has not begun.
            bulk_waits: Whether bulk work is held back meanwhile.
        """
        ends = []
        if waiting:
            ends.append(self._last + _BEGIN_S * self._second)
        ahead = min(_AHEAD_S * self._second, _SHARE * self._interval)
        if self._expected - ahead <= now:
            ends.append(self._expected + min(_AFTER_S * self._second, ahead))
        return self._reserve.until(now, max(ends, default=-math.inf), bulk_waits=bulk_waits)


class Reserve:
    """Bounds the time for which the device is kept free while bulk work waits.

    What was spent comes back with a bulk launch, if a real-time request has been launched since it came back last: so
    bulk work waits no longer than this for each of its launches, and only once for requests that never become ready.

    Args:
        limit: In the unit of the clock.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._spent = 0.0
        self._kept: tuple[float, float] | None = None  # since when, and until when at most
        self._served = False

    def until(self, now: float, end: float, *, bulk_waits: bool) -> float | None:
        """Return until when the device is kept free, where that is wanted until `end`; None if not at all."""
        if self._kept is not None:
            since, kept_until = self._kept
            self._spent += min(now, kept_until) - since
            self._kept = None
        if now >= end:
            return None
        if not bulk_waits:
            return end
        end = min(end, now + self._limit - self._spent)
        if end <= now:
            return None
        self._kept = now, end
        return end

    def launched(self, *, realtime: bool) -> None:
        """Note an encode or prefill launch of a class."""
        if realtime:
            self._served = True
        elif self._served:
            self._served = False
            self._spent = 0.0
            self._kept = None
