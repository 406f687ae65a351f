"""How far measured rates are believed when they say that a request is hopeless."""

from photonlite.scheduler.policy import Rates
from photonlite.scheduler.readiness import Need

_GIVEN_UP = 3
"""Requests that are given up by the same measurements; then one is tried: only work renews the rates."""


class Trust:
    """Counts what was given up by the same measurements.

    If a device was slow for a moment, and everything is hopeless by what was measured then, nothing would ever be
    measured again.
    """

    def __init__(self) -> None:
        self._left = _GIVEN_UP
        self._crops = self._positions = -1

    def spend(self, rates: Rates, need: Need) -> bool:
        """Tell whether a request may be given up by these rates, and count it if so."""
        encoded, prefilled = rates.crops.observed, rates.positions.observed
        if prefilled != self._positions and (encoded != self._crops or not need.crops):
            self._left, self._crops, self._positions = _GIVEN_UP, encoded, prefilled
        if not self._left:
            return False
        self._left -= 1
        return True
