"""How many copies the tiers may make: few where no image is asked about again.

```
earned   2 % of what computing takes + what images save that are found, or would be if all were kept
spent    COPY_S for each copy
```

An image would be found if it were among the last ones that host memory has room for: only their keys are kept.
"""

import threading
from collections import OrderedDict
from typing import Final

COPY_S: Final = 1.5e-4
"""Seconds for which a copy from a card to the host holds up the engine's thread, about."""

_SHARE: Final = 0.02
_MOST_S: Final = 100 * COPY_S
"""That may be left over, so that copies end soon after images no longer repeat."""


class CopyBudget:
    """Decides which images are copied to a host memory of so many bytes; all methods may be called from any thread."""

    def __init__(self, memory_bytes: int) -> None:
        self._room = memory_bytes
        self._left_s = 0.0
        self._seen: OrderedDict[str, tuple[int, bool]] = OrderedDict()  # bytes, and whether they were copied
        self._lock = threading.Lock()

    def allows(self, image: str, size: int, computing_s: float | None) -> bool:
        """Whether embeddings that were computed are copied; `computing_s` is None while it is unknown."""
        with self._lock:
            again = self._forget(image)
            if computing_s is not None:
                self._earn(computing_s if again else _SHARE * computing_s)
            allowed = computing_s is None or self._left_s >= COPY_S
            self._left_s -= allowed * COPY_S
            self._seen[image] = size, allowed
            self._room -= size
            while self._room < 0:
                self._forget(next(iter(self._seen)))
            return allowed

    def allows_pages(self, image: str, computing_s: float) -> bool:
        """Whether pages are copied, which are of use with the embeddings only."""
        with self._lock:
            self._earn(_SHARE * computing_s)
            allowed = self._seen.get(image, (0, True))[1]
            self._left_s -= allowed * COPY_S
            return allowed

    def note_found(self, image: str, saved_s: float) -> None:
        """Note that an image was found in memory."""
        with self._lock:
            self._earn(saved_s)
            if image in self._seen:
                self._seen.move_to_end(image)

    def _earn(self, seconds: float) -> None:
        self._left_s = min(self._left_s + seconds, _MOST_S)

    def _forget(self, image: str) -> bool:
        size, _ = self._seen.pop(image, (0, False))
        self._room += size
        return size > 0
