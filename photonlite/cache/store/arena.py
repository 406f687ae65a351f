"""Memory of one size, allocated once, from which arrays of any size are taken. No torch.

Page-locking memory takes milliseconds, during which the driver launches nothing: it is done once for all entries.
"""

import threading
import weakref
from bisect import insort
from collections import deque

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 512


class HostArena:
    """Arrays from one piece of memory; each returns to it when its last reference goes. Any thread may take one."""

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self.size = memory.size
        # Arrays refer to views of it: NumPy would give a slice of an array the array itself as its base.
        self._memory = memory.data
        self._free = [(0, memory.size)]  # ranges, begin and end, in order
        self._returned: deque[tuple[int, int]] = deque()  # by finalizers, which must take no lock
        self._lock = threading.Lock()

    def take(self, size: int) -> npt.NDArray[np.uint8] | None:
        """Return uninitialised memory; None while no free range is as long."""
        room = -(-size // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            self._collect()
            for place, (begin, end) in enumerate(self._free):
                if end - begin >= size:
                    taken = begin, min(begin + room, end)
                    self._free[place : place + 1] = [(taken[1], end)] if taken[1] < end else []
                    break
            else:
                return None
        array = np.frombuffer(self._memory[begin : begin + size], np.uint8)
        weakref.finalize(array, self._returned.append, taken).atexit = False
        return array

    def _collect(self) -> None:
        """Join returned ranges with their neighbours."""
        while self._returned:
            insort(self._free, self._returned.popleft())
        joined: list[tuple[int, int]] = []
        for begin, end in self._free:
            if joined and joined[-1][1] == begin:
                begin = joined.pop()[0]
            joined.append((begin, end))
        self._free = joined
