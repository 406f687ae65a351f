"""What launches cost on this device, learned from measured steps."""

import math

from photonlite.batch import ScheduledBatch, Step

_NEWEST = 0.2
"""The share of the newest measurement in a running mean: follows a change of clocks within some ten launches."""

_LEAST_SPREAD = 0.01
"""Sizes must differ by a tenth or so before a line is fitted to them."""


class Slope:
    """Seconds per unit: the slope of a line through measurements, of which old ones fade."""

    def __init__(self) -> None:
        self.per_unit: float | None = None  # None before the first measurement; an even share while all have one size
        self.observed = 0  # measurements so far
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
        """Return the seconds that a launch takes, its fixed part included; infinite while nothing was measured."""
        if not self.per_unit:
            return math.inf
        fixed = self._means[1] - self._means[0] * self.per_unit if self._means else 0.0
        return max(0.0, fixed) + size * self.per_unit

    def least(self, size: int) -> float:
        """Return the seconds that units take in any launch; 0 while nothing was measured."""
        return size * (self.per_unit or 0.0)

    def within(self, seconds: float) -> int:
        """Return the units that fit into a time: at least one, and one while nothing was measured."""
        return max(1, int(seconds / self.per_unit)) if self.per_unit else 1


class Rates:
    """Seconds for each further crop or prefilled position.

    A launch has a fixed cost, which no choice of its size can change: what a time budget can choose is the rest, so
    rates are slopes.
    """

    def __init__(self) -> None:
        self.crops = Slope()
        self.positions = Slope()

    def observe(self, step: Step) -> None:
        """Learn from a collected encode or prefill step."""
        if step.kind == "encode":
            self.crops.observe(step.plan.crops, step.device_s)
        elif step.kind == "prefill":
            self.positions.observe(sum(row.count for row in step.rows), step.device_s)

    def cost(self, batch: ScheduledBatch) -> float:
        """Estimate the seconds of an encode or prefill launch."""
        if batch.kind == "encode":
            return self.crops.cost(batch.crops)
        return self.positions.cost(sum(row.count for row in batch.rows))
