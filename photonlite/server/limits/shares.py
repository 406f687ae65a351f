"""Division of one resource between callers: places, bytes, sockets, connections."""

from typing import Final

from photonlite.server.limits.callers import Caller

_GREED: Final = 7
"""A caller may hold so many times what stays free: alone, seven eighths of the resource."""


def may_hold(held: int, free: int, weight: float = 1.0) -> bool:
    """Return whether a caller may hold so much while so much stays free for others.

    This is the rule of dynamic thresholds (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
    packet switches", 1998). One caller alone uses nearly everything. With every further caller less stays free, so what
    each may hold shrinks: a greedy caller gets nothing new until it holds no more than its share.

    Args:
        held: What it would hold, in units of the resource.
        free: What nobody would hold then.
        weight: Of the caller, as a part of the largest weight among those that hold something.
    """
    return held <= _GREED * weight * free


class Shares:
    """One resource, and how much of it each caller holds.

    Args:
        name: Of the resource, for errors.
        capacity: Units in all.

    Attributes:
        name: Of the resource, for errors.
        capacity: Units in all.
        used: Units that callers hold.
    """

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        self.used = 0
        self._held: dict[str, int] = {}
        self._weights: dict[str, float] = {}

    def held(self, caller: Caller) -> int:
        """Return how much a caller holds."""
        return self._held.get(caller.id, 0)

    def has_room(self, caller: Caller, size: int = 1, own: int = 0) -> bool:
        """Return whether a caller may take more.

        Args:
            caller: Who asks.
            size: Units wanted.
            own: Units that the same request holds already. A caller's only request may use all that is free.
        """
        free = self.capacity - self.used - size
        held = self.held(caller)
        if held == own:
            return free >= 0
        largest = max(caller.weight, max(self._weights.values()))
        return may_hold(held + size, free, caller.weight / largest)

    def take(self, caller: Caller, size: int = 1, own: int = 0) -> bool:
        """Take units if the caller may have them; returns whether it may. The arguments are those of `has_room`."""
        if not self.has_room(caller, size, own):
            return False
        if size:
            self._held[caller.id] = self.held(caller) + size
            self._weights[caller.id] = caller.weight
            self.used += size
        return True

    def give(self, caller: Caller, size: int = 1) -> None:
        """Give units back."""
        self.used -= size
        left = self.held(caller) - size
        if left:
            self._held[caller.id] = left
        else:
            self._held.pop(caller.id, None)
            self._weights.pop(caller.id, None)
