"""Whether bulk images still run beside real-time requests, in a part of the card; times in seconds."""

import logging
import math

_MORE_LATE = 4
"""So many more late requests than ones in time end a trial."""

_IN_TIME = 8
"""Requests in time, one after the other, after which the next pause is the first one again."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 640.0

_logger = logging.getLogger("photonlite")


class PartTrial:
    """Lets bulk images run beside real-time requests until more than half of these are late.

    Work beside a request makes it slower. One that takes most of its deadline alone is late every time then, where with
    images in turn it would be late now and then. After a pause the part is tried again; each pause is twice as long
    as the last one, until requests are in time. `second` is in the unit of the clock.
    """

    def __init__(self, second: float = 1.0) -> None:
        self._second = second
        self._late = 0  # how many more were late than in time, since they were last as many
        self._in_time = 0  # in a row
        self._pause_s = _FIRST_PAUSE_S
        self._resumes = -math.inf

    def holds(self, now: float) -> bool:
        """Whether bulk images may run beside real-time requests."""
        return now >= self._resumes

    def note_end(self, now: float, *, late: bool) -> None:
        """Take note of a real-time request with a deadline that has ended while bulk ones waited."""
        if not self.holds(now):
            return
        self._late = max(0, self._late + (1 if late else -1))
        self._in_time = 0 if late else self._in_time + 1
        if self._in_time == _IN_TIME:
            self._pause_s = _FIRST_PAUSE_S
        if self._late < _MORE_LATE:
            return
        _logger.warning(
            "real-time requests are late beside bulk images: these take turns for %g s; a smaller encode_sms or longer "
            "deadlines may help",
            self._pause_s,
        )
        self._late = 0
        self._resumes = now + self._pause_s * self._second
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
