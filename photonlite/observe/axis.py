"""The time axis of a timeline: where times lie, and round times along it."""

import math
from typing import NamedTuple

_TICK_PIXELS = 150


class Axis(NamedTuple):
    """Times from `start` to `end`, in seconds, on `pixels` columns from the column `left` on."""

    start: float
    end: float
    left: int
    pixels: int

    def offset(self, seconds: float) -> float:
        """Columns from `left` to a time; outside [0, `pixels`] for what is not shown."""
        return (seconds - self.start) / (self.end - self.start) * self.pixels

    def ticks(self) -> list[tuple[float, str]]:
        """Columns from `left` and labels of round times since the start, in one unit."""
        extent = self.end - self.start
        least = extent * _TICK_PIXELS / self.pixels
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * 0.999)
        scale, unit = (1e6, "us") if extent < 1e-3 else (1e3, "ms") if extent < 1 else (1.0, "s")
        decimals = max(0, -math.floor(math.log10(step * scale) + 1e-9))
        # A hair more than the extent, so that a round end gets its tick whatever the rounding.
        count = math.floor(extent / step * (1 + 1e-9))
        return [
            (index * step / extent * self.pixels, f"{index * step * scale:.{decimals}f} {unit}")
            for index in range(count + 1)
        ]
