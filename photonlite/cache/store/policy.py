"""What is worth keeping where: by the time that a byte saves, from measured rates.

```
saved per byte = seconds to compute a byte anew - seconds to read it from a tier
```

Embeddings of an image are few bytes that take long to compute; its keys and values are many that take less. On a fast
card neither pays from a disk, or only the former; on a CPU both do.
"""

import math
import threading
from collections.abc import Callable, Mapping
from typing import Final, Literal

Kind = Literal["embeddings", "pages"]
Tier = Literal["memory", "disk"]

_RESTORE_S: Final = 2.5e-4
"""Seconds in which a card's engine puts pages of an image back, beside the copy: some ten launches."""

_NEWEST: Final = 0.2  # share of the newest measurement in a running mean
_FORGOTTEN: Final = 0.01  # share of a tier's time that is forgotten each time it is refused


class TierPolicy:
    """Decides by rates: `unit_costs` returns the seconds that a crop and a position take now, None while unknown.

    What was not measured yet is taken to be worth it, but for pages if `copies`: where keeping takes copies on a card.
    """

    def __init__(
        self, unit_costs: Callable[[], tuple[float | None, float | None]], *, pages: bool = True, copies: bool = False
    ) -> None:
        self.unit_costs = unit_costs
        self._pages = pages
        self._copies = copies
        self._lock = threading.Lock()
        self._units: dict[Kind, float] = {}  # crops or positions in a byte
        self._size: float | None = None  # bytes of an image's pages
        self._reading: dict[Tier, float] = {}  # seconds to read a byte, page-locked memory and checksums included

    @property
    def rates(self) -> Mapping[Tier, float]:
        """Bytes a second of each tier that was measured."""
        return {tier: 1 / seconds for tier, seconds in self._reading.items()}

    def note_units(self, kind: Kind, units: int, size: int) -> None:
        """Note how many crops or positions so many bytes stand for."""
        with self._lock:
            self._units[kind] = _mean(self._units.get(kind), units / size)
            if kind == "pages":
                self._size = _mean(self._size, size)

    def note_read(self, tier: Tier, size: int, seconds: float) -> None:
        """Note a measurement of a tier, from start or of what was read since."""
        with self._lock:
            self._reading[tier] = _mean(self._reading.get(tier), seconds / size)

    def forget_read(self, tier: Tier) -> None:
        """Forget a little of what was measured of a tier that was refused, so that it is tried again."""
        with self._lock:
            if tier in self._reading:
                self._reading[tier] *= 1 - _FORGOTTEN

    def computing(self, kind: Kind) -> float | None:
        """Return the seconds that a byte takes to compute; None before all of that was measured."""
        cost = self.unit_costs()[kind == "pages"]
        units = self._units.get(kind)
        return None if cost is None or units is None else cost * units

    def saved(self, kind: Kind, tier: Tier) -> float:
        """Return the seconds that a byte in a tier saves; infinite while that is unknown."""
        computing = self.computing(kind)
        restoring = _RESTORE_S / self._size if kind == "pages" and self._copies and self._size else 0.0
        return math.inf if computing is None else computing - self._reading.get(tier, 0.0) - restoring

    def pays(self, kind: Kind, tier: Tier) -> bool:
        """Whether reading from a tier is quicker than computing."""
        return (kind != "pages" or self._pages) and self.saved(kind, tier) > 0

    def repays(self, kind: Kind, tier: Tier) -> bool:
        """Whether reading it once saves more than keeping it costs, which is a copy as well."""
        if kind == "pages" and self._copies and self.computing(kind) is None:
            return False
        return self.pays(kind, tier) and self.saved(kind, tier) > self._reading.get(tier, 0.0)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _NEWEST * (new - old)
