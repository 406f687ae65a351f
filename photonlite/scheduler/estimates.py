"""Whether a waiting request can still meet its deadline, by measured rates, and how far these are believed."""

from dataclasses import dataclass

from photonlite.scheduler.rates import Rates

_GIVEN_UP = 3
"""Requests that are given up by the same measurements; then one is tried: only work renews the rates."""


@dataclass(frozen=True, slots=True)
class Need:
    """Work in front of a first token: crops to encode and positions to prefill."""

    crops: int
    positions: int

    def least_s(self, rates: Rates) -> float:
        """Return the seconds that it takes at the least if nothing else runs, as far as that was measured."""
        return rates.crops.least(self.crops) + rates.positions.least(self.positions)


class EstimateGuard:
    """Counts how many requests were given up by the same measurements.

    If the device was slow for a moment, and everything is hopeless by what was measured then, nothing would ever be
    measured again.
    """

    def __init__(self) -> None:
        self._left = _GIVEN_UP
        self._crops = self._positions = -1

    def may_give_up(self, rates: Rates, need: Need) -> bool:
        """Whether a request may be given up by these rates; counts it if so."""
        encoded, prefilled = rates.crops.observed, rates.positions.observed
        if prefilled != self._positions and (encoded != self._crops or not need.crops):
            self._left, self._crops, self._positions = _GIVEN_UP, encoded, prefilled
        if not self._left:
            return False
        self._left -= 1
        return True
