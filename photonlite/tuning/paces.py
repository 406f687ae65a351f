"""How fast work repeats: alone, beside other work, and taking turns with it.

```
lane 1   ■■■■|■■■■|■■■■|■■■■|■■■■          intervals between ends, inside the window in which both lanes are busy
lane 2   ■■|■■|■■|■■|■■|■■|■■|■■|■■
             └────── window ─────┘         the first intervals of each are left out: they still start up
```

Side by side, each gets a share of the speed that it has alone on the whole card. Taking turns gives shares whose sum is
1, so the sum says what running side by side is worth.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from photonlite.errors import SettingsError
from photonlite.tuning.lanes import Card, Lane, Replay

SKIPPED = 2  # first intervals
FEWEST = 5  # intervals of a pace
SECONDS = 0.4  # that a measurement takes
_ATTEMPTS = 7  # the last one is 64 times as long as the first


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds from one end to the next.

    Attributes:
        mean: Of all intervals.
        p99: The 99th percentile; the longest of few.
        count: Intervals.
    """

    mean: float
    p99: float
    count: int

    @classmethod
    def of(cls, intervals: Sequence[float]) -> "Pace":
        """Summarise intervals; SettingsError without any."""
        if not intervals:
            raise SettingsError("no interval lies in the window in which all lanes were busy: measure for longer")
        p99 = statistics.quantiles(intervals, n=100, method="inclusive")[98] if len(intervals) > 1 else intervals[0]
        return cls(statistics.fmean(intervals), p99, len(intervals))


def intervals_until(ends: Sequence[float], stop: float = math.inf) -> list[float]:
    """Return the seconds between ends up to `stop`, without the first ones."""
    kept = [end for end in ends if end <= stop]
    return [later - earlier for earlier, later in pairwise(kept)][SKIPPED - 1 :]


def alone(card: Card, lane: Lane, replay: Replay, seconds: float = SECONDS) -> Pace:
    """Measure work that has the card, or its part of it, for itself."""
    [ends] = card.run([(lane, [replay] * (SKIPPED + FEWEST))])
    pace = Pace.of(intervals_until(ends))
    count = math.ceil(seconds / pace.mean)
    if count <= FEWEST:
        return pace
    [ends] = card.run([(lane, [replay] * (SKIPPED + count))])
    return Pace.of(intervals_until(ends))


def beside(
    card: Card, first: tuple[Lane, Replay, Pace], second: tuple[Lane, Replay, Pace], seconds: float = SECONDS
) -> tuple[Pace, Pace]:
    """Measure two works at once; each comes with its lane and with its pace alone there.

    A window with few intervals of one of them, as on a busy machine, is measured again, each time twice as long.
    """
    found: list[list[float]] = []
    for attempt in range(_ATTEMPTS):
        queues = []
        for lane, replay, pace in (first, second):
            # The lane that ends first leaves the card to the other one, whose later intervals are not counted.
            count = max(2 * FEWEST, math.ceil(seconds / pace.mean)) << attempt
            queues.append((lane, [replay] * (SKIPPED + count)))
        ends = card.run(queues)
        stop = min(one[-1] for one in ends)
        found = [intervals_until(of_lane, stop) for of_lane in ends]
        if min(map(len, found)) >= FEWEST:
            break
    one, other = map(Pace.of, found)
    return one, other


def turns(
    card: Card, lane: Lane, short: tuple[Replay, Pace], long: tuple[Replay, Pace], seconds: float = SECONDS
) -> tuple[Pace, Pace]:
    """Measure two works that take turns on one lane: a long one, and short ones for about as long."""
    count = max(1, round(long[1].mean / short[1].mean))
    rounds = max(FEWEST, math.ceil(seconds / (2 * long[1].mean)))
    [ends] = card.run([(lane, [long[0], *[short[0]] * count] * rounds)])
    of_long = ends[:: count + 1]
    of_short = [end for index, end in enumerate(ends) if index % (count + 1)]
    return Pace.of(intervals_until(of_short)), Pace.of(intervals_until(of_long))
