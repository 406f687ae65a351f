"""The tier in host memory, up to a number of bytes: what saves least time a byte and was not used for long goes first.

It is the algorithm GreedyDual-Size (Cao and Irani, "Cost-aware WWW proxy caching algorithms", 1997): an entry's rank is
its value added to the rank of the last one that went, and is set anew when it is used. With equal values it is a
least-recently-used list.
"""

import threading
from collections import OrderedDict

from photonlite.image_inputs import HostTensor


class MemoryTier:
    """Numbers by key; all methods may be called from any thread."""

    def __init__(self, limit: int) -> None:
        self.bytes = 0
        self.evictions = 0
        self.limit = limit
        # Rank, value and numbers, those used last at the end.
        self._entries: OrderedDict[str, tuple[float, float, HostTensor]] = OrderedDict()
        self._floor = 0.0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> HostTensor | None:
        with self._lock:
            if (entry := self._entries.pop(key, None)) is None:
                return None
            self._entries[key] = (self._floor + entry[1], *entry[1:])
            return entry[2]

    def put(self, key: str, tensor: HostTensor, value: float = 1.0) -> None:
        """Keep numbers, unless they are larger than the tier; `value` is the time that a byte of them saves."""
        size = tensor.data.nbytes
        if size > self.limit:
            return
        with self._lock:
            if (old := self._entries.pop(key, None)) is not None:
                self.bytes -= old[2].data.nbytes
            self._entries[key] = self._floor + value, value, tensor
            self.bytes += size
            while self.bytes > self.limit:
                self._evict()

    def evict(self) -> bool:
        """Drop what is worth least; False where there is nothing."""
        with self._lock:
            if self._entries:
                self._evict()
                return True
            return False

    def _evict(self) -> None:
        # Of equal ranks the first is that which was not used for longest.
        key = min(self._entries, key=lambda key: self._entries[key][0])
        self._floor, _, tensor = self._entries.pop(key)
        self.bytes -= tensor.data.nbytes
        self.evictions += 1
