"""How much work one launch may hold: fixed limits, and a time budget that measured rates turn into counts."""

import math
import sys
from dataclasses import dataclass

from photonlite.batch import ScheduledBatch, Step

_NEWEST = 0.2
"""The share of the newest measurement in a running mean: follows a change of clocks within some ten launches."""

MAX_JOBS = 8
"""Images whose features are on the device at a time."""

REALTIME_JOBS = 2
"""Places for images of real-time requests beside these, so that none waits until bulk work gives one back."""

_LAUNCHES_PER_MORE = 32
"""Launches that go well before one may hold one crop or prompt more; more than an image has crops, so that an image
which had to start again gets through."""

_LEAST_SPREAD = 0.01
"""Sizes must differ by a tenth or so before a line is drawn through them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What launches may hold.

    Attributes:
        max_batch: Sequences that run at a time, and rows of a launch.
        pending_rows: Sequences that may have a row of the pending table, zombies among them.
        max_prefill_tokens: Positions of a prefill launch; a single longer prompt goes alone.
        max_crops: Crops of an encode launch.
        max_jobs: Images of bulk requests whose features are on the device at a time; those of real-time requests may
            take `REALTIME_JOBS` places more.
        max_image_bytes: Of the images that one launch copies to the device, to make crops of them there; a single
            larger one goes alone.
        launch_budget_s: Seconds that encode and prefill launches may take between two decode steps, while no more
            sequences wait than are decoded.
        max_pause_s: The same, however many wait; where it is less than `launch_budget_s`, that holds.
        max_positions: Positions of the longest sequence: what a page table has room for.
        vocab_size: Ids that a prompt may have.
    """

    max_batch: int
    pending_rows: int
    max_prefill_tokens: int
    max_crops: int
    max_jobs: int = MAX_JOBS
    max_image_bytes: int = sys.maxsize
    launch_budget_s: float = 0.004
    max_pause_s: float = 0.035
    max_positions: int = sys.maxsize
    vocab_size: int = 2**31

    def pause_s(self, waiting: int, decoding: int) -> float:
        """Give the seconds that encode and prefill launches may take between two decode steps.

        The more sequences wait for each that is made to wait, the longer: large launches, and decode steps of many
        rows, cost the device less, which serves all of them.

        Args:
            waiting: Sequences that are not admitted.
            decoding: Sequences that have tokens to come.
        """
        return max(self.launch_budget_s, min(self.max_pause_s, self.launch_budget_s * waiting / decoding))


class Allowance:
    """How many crops or prompts one launch may hold: half as many as memory was short for, then slowly more again.

    Args:
        most: Where memory was never short.

    Attributes:
        now: At least 1.
    """

    def __init__(self, most: int) -> None:
        self.now = most
        self._most = most
        self._launches = 0

    def shrink(self, tried: int) -> None:
        """Memory was short for a launch of so many."""
        self.now = max(1, tried // 2)
        self._launches = 0

    def book(self) -> None:
        """A launch has gone well."""
        self._launches += 1
        if self._launches % _LAUNCHES_PER_MORE == 0:
            self.now = min(self._most, self.now + 1)


class Rates:
    """Seconds that one crop more, or one prefilled position more, takes on this device, from what was measured.

    A launch costs something before its first position, which no choice of its size can change: what a time budget can
    choose is the rest, so rates are slopes.
    """

    def __init__(self) -> None:
        self.crops = Slope()
        self.positions = Slope()

    def observe(self, step: Step) -> None:
        """Learn from a collected step."""
        if step.kind == "encode":
            self.crops.observe(sum(group.count for group in step.plan.groups), step.device_s)
        elif step.kind == "prefill":
            self.positions.observe(sum(row.count for row in step.rows), step.device_s)

    def cost(self, plan: ScheduledBatch) -> float:
        """Give the seconds that an encode or prefill launch is going to take, about."""
        if plan.kind == "encode":
            return self.crops.cost(sum(group.count for group in plan.groups))
        return self.positions.cost(sum(row.count for row in plan.rows))

    def crops_within(self, seconds: float) -> int:
        """Give the crops that can be encoded in a time: at least one, and one as long as nothing was measured."""
        return self.crops.within(seconds)

    def positions_within(self, seconds: float) -> int:
        """Give the positions that can be prefilled in a time; 1 lets a single sequence through."""
        return self.positions.within(seconds)


class Slope:
    """Seconds per unit: the slope of a line through what was measured, in which old measurements fade.

    Attributes:
        per_unit: Seconds; None before the first measurement. As long as all had one size, its cost shared evenly.
        observed: Measurements so far.
    """

    def __init__(self) -> None:
        self.per_unit: float | None = None
        self.observed = 0
        # Running means of the size, the seconds, the square of the size, and the product of both.
        self._means: tuple[float, float, float, float] | None = None

    def observe(self, size: int, seconds: float) -> None:
        """Learn what a launch of some size took."""
        self.observed += 1
        new = (float(size), seconds, float(size * size), size * seconds)
        old = self._means or new
        x, y, xx, xy = self._means = (
            old[0] + _NEWEST * (new[0] - old[0]),
            old[1] + _NEWEST * (new[1] - old[1]),
            old[2] + _NEWEST * (new[2] - old[2]),
            old[3] + _NEWEST * (new[3] - old[3]),
        )
        spread = xx - x * x
        slope = (xy - x * y) / spread if spread > _LEAST_SPREAD * xx else 0.0
        # Noise may turn the line over; no unit costs more than its even share of a launch.
        self.per_unit = slope if 0 < slope < y / x else y / x

    def cost(self, size: int) -> float:
        """Give the seconds that a launch takes, what comes before its first unit included.

        Never less than its units alone; infinite as long as nothing was measured.
        """
        if not self.per_unit:
            return math.inf
        before = self._means[1] - self._means[0] * self.per_unit if self._means else 0.0
        return max(0.0, before) + size * self.per_unit

    def least(self, size: int) -> float:
        """Give the seconds that units take wherever they are launched; 0 as long as nothing was measured."""
        return size * (self.per_unit or 0.0)

    def within(self, seconds: float) -> int:
        """Give the units that a time has room for: at least one, and one as long as nothing was measured."""
        return max(1, int(seconds / self.per_unit)) if self.per_unit else 1


@dataclass(frozen=True, slots=True)
class Room:
    """What a pause has time for.

    Attributes:
        left_s: Seconds that the next launch may take; infinite where nobody is held up.
        fresh: Whether that launch is the first, which goes however long it takes: a crop or a prompt cannot be split.
        over: Whether it is the turn of a decode step.
    """

    left_s: float = math.inf
    fresh: bool = True
    over: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """Who holds up whom.

    Attributes:
        waiting: Sequences that are not admitted.
        decoding: Sequences that have tokens to come.
        realtime_decoding: The real-time ones among these.
        realtime_near: Whether real-time requests are open, or come again within a second or so.
        realtime_soon: Whether one will be ready to run in a moment.
    """

    waiting: int
    decoding: int
    realtime_decoding: int = 0
    realtime_near: bool = False
    realtime_soon: bool = False


class Pause:
    """How long encode and prefill launches have held up those that are decoded, and how long they still may.

    ```
    launches for       while bulk alone is decoded        while real-time requests are   while nobody is decoded
    bulk               `Limits.pause_s`                   at its turn: launch_budget_s   as long as they like
    bulk, near         launch_budget_s                    at its turn: launch_budget_s   launch_budget_s each
    bulk, soon         nothing                            at its turn: launch_budget_s   nothing
    real-time          max_pause_s                        launch_budget_s                as long as they like
    ```

    Near means that real-time requests are open or come again and again, soon that one is about to be ready: nothing
    that has been launched can be called back, so launches are short before one arrives, and the last one is left out.

    Args:
        limits: Say how long at all.
        rates: Say what launches take.

    Attributes:
        bulk: What there is time for on behalf of bulk requests.
        realtime: The same for real-time ones.
    """

    def __init__(self, limits: Limits, rates: Rates) -> None:
        self.bulk = Room()
        self.realtime = Room()
        self._limits = limits
        self._rates = rates
        self._held_s = 0.0

    def consider(self, load: Load) -> None:
        """Find out what may be launched under a load."""
        short = self._limits.launch_budget_s
        soon = Room(0.0, fresh=False, over=True)
        if not load.decoding:
            self.bulk = soon if load.realtime_soon else Room(short if load.realtime_near else math.inf)
            self.realtime = Room()
            return
        grown = self._limits.pause_s(load.waiting, load.decoding)
        if load.realtime_soon:
            self.bulk = soon
        elif load.realtime_decoding:
            self.bulk = Room(short, over=True)
        else:
            self.bulk = self._room(short if load.realtime_near else grown)
        self.realtime = self._room(short if load.realtime_decoding else max(short, self._limits.max_pause_s))

    def book(self, plan: ScheduledBatch) -> None:
        """Note what is launched; launches before anybody is decoded count too: whoever comes out of them goes on."""
        self._held_s = 0.0 if plan.kind == "decode" else self._held_s + self._rates.cost(plan)

    def _room(self, allowed_s: float) -> Room:
        over = self._held_s >= allowed_s
        return Room(allowed_s if over else allowed_s - self._held_s, over or self._held_s == 0, over)
