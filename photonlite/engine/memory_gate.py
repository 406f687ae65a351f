"""Backpressure: bounds the bytes of decoded images that wait for the engine.

```
call ── request ──> there is room ──> decode ──> engine ──> first token, or the end ──> release
              └──> waits, before decoding ── another permit is released ──┘
```

Real-time calls have a quarter of the bytes to themselves and bulk calls the rest, so that neither waits for the other.
Each class is first come, first served. An image larger than the room of its class enters when that is
empty; a request whose images are larger together is refused.
"""

import queue
import threading
from collections import deque
from concurrent.futures import Future

from photonlite.errors import CapacityError

_REALTIME_SHARE = 4
"""Real-time calls have one part in so many."""


class MemoryPermit:
    """Room for the images of a request: held, or waited for through `granted`, None where there was room at once.

    A CapacityError is raised where several images together could never fit.
    """

    def __init__(self, lane: "GateLane", size: int, images: int = 1) -> None:
        lane.check(size, images)
        self.size = size
        self._images = images
        self.granted: Future[None] | None = None
        self.inside = False
        self.released = False
        self._lane = lane

    def resize(self, size: int) -> None:
        """Correct the number of bytes once images are decoded."""
        self._lane.check(size, self._images)
        with self._lane.lock:
            if self.inside:
                self._lane.held += size - self.size
            self.size = size
        self._lane.wake()

    def release(self) -> None:
        """Return the bytes, or stop waiting for them; any thread may call it, any number of times."""
        with self._lane.lock:
            self.released = True
            self.granted = None  # its callbacks hold an image and an engine; the permit may stay in the queue
            self.leave()
        self._lane.wake()

    def enter(self) -> None:
        self._lane.held += self.size
        self.inside = True
        if self.released:  # while it waited, or by garbage collection on the lines above
            self.leave()

    def leave(self) -> None:
        if self.inside:
            self.inside = False
            self._lane.held -= self.size


class GateLane:
    """The room of one class, in bytes; a thread grants permits while calls wait.

    `release` does not: garbage collection may drop a call on any line of any thread, whatever locks that thread holds.
    """

    def __init__(self, limit: int) -> None:
        self.held = 0
        self.lock = threading.RLock()
        self._limit = limit
        self._queue: deque[MemoryPermit] = deque()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._granting = False

    @property
    def waiting(self) -> int:
        return sum(not permit.released for permit in list(self._queue))

    def check(self, size: int, images: int) -> None:
        if images > 1 and size > self._limit:
            raise CapacityError(
                f"{images} images of the request take {size} bytes once decoded, over the limit of {self._limit} for "
                "several: send fewer or smaller ones, or raise max_prepared_bytes"
            )

    def request(self, size: int, *, images: int = 1) -> MemoryPermit:
        permit = MemoryPermit(self, size, images)
        with self.lock:
            if not self._queue and self._fits(permit):
                permit.enter()
                return permit
            permit.granted = Future()
            self._queue.append(permit)
            begins, self._granting = not self._granting, True
        if begins:
            try:
                threading.Thread(target=self._grant, name="photonlite-memory-gate", daemon=True).start()
            except BaseException:  # there is no thread left, or the caller is interrupted
                self._granting = False  # the next call that waits tries again
                permit.release()
                raise
        self.wake()  # room may have been released meanwhile
        return permit

    def wake(self) -> None:
        """Have waiting calls looked at: there may be room."""
        if self._granting:
            self._wakes.put(None)

    def _grant(self) -> None:
        while True:
            self._wakes.get()
            while (granted := self._next()) is not None:
                granted.set_result(None)
                granted = None
            with self.lock:
                if not self._queue:
                    self._granting = False
                    return

    def _next(self) -> "Future[None] | None":
        """Admit the oldest call that waits, if it fits; returns what it waits for."""
        with self.lock:
            while self._queue and (self._queue[0].released or self._fits(self._queue[0])):
                permit = self._queue.popleft()
                granted, permit.granted = permit.granted, None
                permit.enter()
                if granted is not None:  # else it was released
                    return granted
        return None

    def _fits(self, permit: MemoryPermit) -> bool:
        return not self.held or self.held + permit.size <= self._limit


class MemoryGate:
    """The room of both classes; `limit` bytes in all, more only for a single image that is larger."""

    def __init__(self, limit: int) -> None:
        self.realtime = GateLane(limit // _REALTIME_SHARE)
        self.bulk = GateLane(limit - limit // _REALTIME_SHARE)

    @property
    def held(self) -> int:
        return self.realtime.held + self.bulk.held

    @property
    def waiting(self) -> int:
        return self.realtime.waiting + self.bulk.waiting
