"""Whether bulk images still run beside real-time requests, in a part of the card; times in seconds."""

import logging
import math

_LOOKED_AT, _MOST_LATE = 16, 1
"""Real-time requests that are looked at, the last ones; more late ones than that among them end a trial."""

_MARGIN_S = 2e-3
"""A request that ends so shortly before its deadline counts as late: its client's clock begins earlier and ends later
than the engine's."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 640.0

_logger = logging.getLogger("photonlite")


class PartTrial:
    """Lets bulk images run beside real-time requests until two of the last sixteen are late.

    Work beside a request makes it slower: one that takes most of its deadline alone is late often then, where with
    images in turn it would be late now and then. A control loop can bear little of that: of requests at 30 Hz, each
    hundredth of which is late for reasons of its own, two meet within sixteen in some twenty seconds, of thousandths
    in half an hour. After a pause the part is tried again; the next pause is twice as long if the trial was shorter
    than the last one. `second` is in the unit of the clock.
    """

    def __init__(self, second: float = 1.0) -> None:
        self._second = second
        self._late = dict[float, bool]()  # by deadline: whether one of these requests was late; the last ones
        self._pause_s = 0.0  # the last one; none yet
        self._begins = -math.inf  # the trial, perhaps still to come

    def holds(self, now: float) -> bool:
        """Whether bulk images may run beside real-time requests."""
        return now >= self._begins

    def note_end(self, now: float, deadline: float, *, late: bool) -> None:
        """Take note of a real-time request that has ended while bulk work ran in the part.

        Requests of one deadline are parts of one question, such as about several names, and count once.
        """
        if not self.holds(now):
            return
        late = late or now >= deadline - _MARGIN_S * self._second
        self._late[deadline] = self._late.get(deadline, False) or late
        if len(self._late) > _LOOKED_AT:
            del self._late[next(iter(self._late))]
        if sum(self._late.values()) <= _MOST_LATE:
            return
        self._late.clear()
        brief = now - self._begins < self._pause_s * self._second
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S) if brief else _FIRST_PAUSE_S
        self._begins = now + self._pause_s * self._second
        _logger.warning(
            "real-time requests are late beside bulk images: these take turns for %g s; a smaller encode_sms or "
            "longer deadlines may help",
            self._pause_s,
        )
