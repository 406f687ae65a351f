"""Whether a series of samples grows: a slope, and its confidence interval."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

_DRAWS: Final = 1000
_LEVEL: Final = 0.95

Series = npt.NDArray[np.float64]


class Slope(NamedTuple):
    """A slope per unit of time, and the ends of its confidence interval of 95 %."""

    value: float
    low: float
    high: float

    def is_flat(self, negligible: float) -> bool:
        """Whether it cannot be told from 0, or is at most `negligible`."""
        return self.low <= 0 or self.value <= negligible


def theil_sen(times: Series, values: Series) -> float:
    """Return the median of the slopes between all pairs of samples (Theil 1950, Sen 1968)."""
    first, second = np.triu_indices(len(times), k=1)
    return float(np.median((values[second] - values[first]) / (times[second] - times[first])))


def slope(times: Series, values: Series, seed: int = 0) -> Slope:
    """Estimate a slope; its interval comes from a moving-block bootstrap of the residuals (Künsch 1989).

    Neighbouring samples of memory resemble each other: blocks of n^(1/2) keep that. At least 8 samples.
    """
    count = len(times)
    if count < 8:
        raise ValueError(f"{count} samples are too few for a slope: 8 are the least")
    value = theil_sen(times, values)
    trend = value * times + np.median(values - value * times)
    residuals = values - trend
    length = max(2, round(count**0.5))
    chance = np.random.default_rng(seed)
    starts = chance.integers(0, count - length + 1, (_DRAWS, -(-count // length), 1))
    picked = (starts + np.arange(length)).reshape(_DRAWS, -1)[:, :count]
    centred = times - times.mean()
    draws = (trend + residuals[picked]) @ centred / (centred @ centred)  # [_DRAWS], least squares
    low, high = np.quantile(draws, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Slope(value, min(value, float(low)), max(value, float(high)))
