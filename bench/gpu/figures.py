"""Rows of figures: what was measured beside the aim, the floor and the reference implementation."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from bench.bubble.report import table
from bench.gpu.samples import Sample


@dataclass(frozen=True, slots=True)
class Figure:
    """One row.

    Attributes:
        what: Name of the row.
        sample: Seconds, or events per second; None where measuring failed.
        aim: For the median, in the unit of the sample; None where there is none.
        aim_p99: For the 99th percentile of a latency.
        bound: Least seconds, or most events per second, that the device allows; None where it was not measured.
        reference: Of the reference implementation, in the unit of the sample; None where there is none.
        rate: Whether the sample counts events per second.
        latency: Whether the 99th percentile is shown.
    """

    what: str
    sample: Sample | None
    aim: float | None = None
    aim_p99: float | None = None
    bound: float | None = None
    reference: float | None = None
    rate: bool = False
    latency: bool = False

    @property
    def share(self) -> float:
        """Share of the device's limit that was reached; NaN where either is unknown."""
        if self.sample is None or self.bound is None:
            return math.nan
        return self.sample.median / self.bound if self.rate else self.bound / self.sample.median

    @property
    def reached(self) -> bool | None:
        """Whether all aims were reached; None where there are none, or nothing was measured."""
        if self.sample is None or self.aim is None:
            return None
        if self.rate:
            return self.sample.median >= self.aim
        return self.sample.median <= self.aim and (self.aim_p99 is None or self.sample.p99 <= self.aim_p99)

    def cells(self) -> list[str]:
        """Write the row."""
        verdict = {None: "", True: "reached", False: "MISSED"}[self.reached]
        sample = self.sample
        measured = spread = "-"
        if sample is not None:
            measured = self._text(sample.median, sample.p99 if self.latency else None)
            spread = f"{self._text(sample.low)} to {self._text(sample.high)} ({len(sample.values)})"
        share = "-" if math.isnan(self.share) else f"{self.share:.0%}"
        aim = self._text(self.aim, self.aim_p99)
        return [self.what, measured, spread, aim, verdict, self._text(self.bound), share, self._text(self.reference)]

    def _text(self, value: float | None, p99: float | None = None) -> str:
        if value is None:
            return "-"
        text = f"{value:.1f}/s" if self.rate else _milliseconds(value)
        return text if p99 is None else f"{text} / {_milliseconds(p99)}"


def figures_table(figures: Iterable[Figure], bound: str = "floor") -> str:
    """Write rows as a table.

    Args:
        figures: The rows, in milliseconds or events per second.
        bound: What bounds are called.
    """
    head = ["what (ms)", "measured", "least to most (runs)", "aim", "", bound, "share of it", "reference"]
    return table(head, [figure.cells() for figure in figures])


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1e-3 else f"{1e3 * seconds:.2f}"
