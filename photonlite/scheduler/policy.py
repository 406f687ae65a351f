"""How much work one launch may hold: fixed limits, and a time budget that measured rates turn into counts."""

import sys
from dataclasses import dataclass

from photonlite.batch import Step

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
        launch_budget_s: Seconds that an encode or prefill launch may take while sequences are decoded.
        max_positions: Positions of the longest sequence: what a page table has room for.
    """

    max_batch: int
    pending_rows: int
    max_prefill_tokens: int
    max_crops: int
    max_jobs: int = MAX_JOBS
    launch_budget_s: float = 0.004
    max_positions: int = sys.maxsize


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

    def within(self, seconds: float) -> int:
        """Give the units that a time has room for: at least one, and one as long as nothing was measured."""
        return max(1, int(seconds / self.per_unit)) if self.per_unit else 1
