"""How much work one launch may hold: fixed limits, and a time budget that measured rates turn into counts."""

import math
import sys
from dataclasses import dataclass

from photonlite.batch import Plan, Step

_NEWEST = 0.2
"""The share of the newest measurement in a running mean: follows a change of clocks within some ten launches."""

MAX_JOBS = 8
"""Pictures whose features are on the device at a time."""

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
        max_jobs: Pictures whose features are on the device at a time.
        max_picture_bytes: Of the pictures that one launch copies to the device, to make crops of them there; a single
            larger one goes alone.
        launch_budget_s: Seconds that encode and prefill launches may take between two decode steps, while no more
            sequences wait than are decoded.
        max_pause_s: The same, however many wait; where it is less than `launch_budget_s`, that holds.
        max_positions: Positions of the longest sequence: what a page table has room for.
    """

    max_batch: int
    pending_rows: int
    max_prefill_tokens: int
    max_crops: int
    max_jobs: int = MAX_JOBS
    max_picture_bytes: int = sys.maxsize
    launch_budget_s: float = 0.004
    max_pause_s: float = 0.035
    max_positions: int = sys.maxsize

    def pause_s(self, waiting: int, decoding: int) -> float:
        """Give the seconds that encode and prefill launches may take between two decode steps.

        The more sequences wait for each that is made to wait, the longer: large launches, and decode steps of many
        rows, cost the device less, which serves all of them.

        Args:
            waiting: Sequences that are not admitted.
            decoding: Sequences that have tokens to come.
        """
        return max(self.launch_budget_s, min(self.max_pause_s, self.launch_budget_s * waiting / decoding))


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

    def cost(self, plan: Plan) -> float:
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
    """

    def __init__(self) -> None:
        self.per_unit: float | None = None
        # Running means of the size, the seconds, the square of the size, and the product of both.
        self._means: tuple[float, float, float, float] | None = None

    def observe(self, size: int, seconds: float) -> None:
        """Learn what a launch of some size took."""
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

    def within(self, seconds: float) -> int:
        """Give the units that a time has room for: at least one, and one as long as nothing was measured."""
        return max(1, int(seconds / self.per_unit)) if self.per_unit else 1


class Pause:
    """How long encode and prefill launches have held up those that are decoded, and how long they still may.

    Args:
        limits: Say how long at all.
        rates: Say what launches take.

    Attributes:
        left_s: Seconds that the next launch may take; infinite while nobody is decoded.
        fresh: Whether that launch is the first, which goes however long it takes: a crop or a prompt cannot be split.
        over: Whether it is the turn of a decode step.
    """

    def __init__(self, limits: Limits, rates: Rates) -> None:
        self.left_s = math.inf
        self.fresh = True
        self.over = False
        self._limits = limits
        self._rates = rates
        self._held_s = 0.0

    def consider(self, waiting: int, decoding: int) -> None:
        """Find out what may be launched now that so many wait, and so many are decoded."""
        if not decoding:
            self.left_s, self.fresh, self.over = math.inf, True, False
            return
        allowed = self._limits.pause_s(waiting, decoding)
        self.over = self._held_s >= allowed
        self.fresh = self.over or self._held_s == 0
        self.left_s = allowed if self.over else allowed - self._held_s

    def book(self, plan: Plan) -> None:
        """Note what is launched; launches before anybody is decoded count too: whoever comes out of them goes on."""
        self._held_s = 0.0 if plan.kind == "decode" else self._held_s + self._rates.cost(plan)
