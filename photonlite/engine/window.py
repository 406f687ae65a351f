"""Room for decoded images that wait for the engine: bounded bytes, in which calls take their places in turn.

```
call ── enter ──> there is room ──> decode ──> engine ──> first token, or the end ──> leave
            └──> waits, in front of decoding ── somebody leaves ──┘
```

Real-time calls have a quarter of the room to themselves and bulk ones the rest, so that neither ever waits for the
other. Each class goes first come, first served. An image larger than the room of its class enters when that is empty.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable

_REALTIME_SHARE = 4
"""Real-time calls have one part in so many."""


class Place:
    """A call's place in the window.

    Args:
        lane: Of its class.
        size: Bytes of its image.
        go: Called once with the place when there is room, on a thread of its own; not where there was room at once. It
            must not raise.

    Attributes:
        waits: Whether there was no room at once.
        inside: Whether its bytes count.
        left: Whether it has been given back.
    """

    def __init__(self, lane: "Lane", size: int, go: Callable[["Place"], None]) -> None:
        self.size = size
        self.waits = False
        self.inside = False
        self.left = False
        self._lane = lane
        self._go: Callable[[Place], None] | None = go

    def go(self) -> None:
        """Tell the call that there is room, and know it no more: it holds an image and an engine."""
        go, self._go = self._go, None
        if go is not None:
            go(self)

    def forget(self) -> None:
        """Drop the call: there was room at once, or it has left, which others may have to wait for in the queue."""
        self._go = None

    def fill(self, size: int) -> None:
        """Say how many bytes the image has, now that it is decoded."""
        self._lane.fill(self, size)

    def leave(self) -> None:
        """Give the place back, or stop waiting for it; from any thread at any moment, any number of times."""
        self._lane.leave(self)


class Lane:
    """The room of one class.

    While calls wait, a thread lets them in. Those who leave do not: a collection of garbage may drop a call on any line
    of any thread, whatever locks that thread has.

    Args:
        limit: Bytes.

    Attributes:
        held: Bytes of those inside.
    """

    def __init__(self, limit: int) -> None:
        self.held = 0
        self._limit = limit
        self._queue: deque[Place] = deque()
        self._lock = threading.RLock()
        self._nobody_waits = threading.Condition(self._lock)
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ushered = False

    @property
    def waiting(self) -> int:
        """Calls that wait for room."""
        return sum(not place.left for place in list(self._queue))

    def enter(self, size: int, go: Callable[[Place], None]) -> Place:
        """Take a place for so many bytes: at once, or as soon as there is room, of which `go` is told."""
        place = Place(self, size, go)
        with self._lock:
            if not self._queue and self._fits(place):
                self._take(place)
                place.forget()
                return place
            place.waits = True
            self._queue.append(place)
            begins, self._ushered = not self._ushered, True
        if begins:
            threading.Thread(target=self._usher, name="photonlite-window", daemon=True).start()
        self._wakes.put(None)  # somebody may have left meanwhile
        return place

    def fill(self, place: Place, size: int) -> None:
        """See `Place.fill`."""
        with self._lock:
            if place.inside:
                self.held += size - place.size
            place.size = size
        if self._ushered:
            self._wakes.put(None)

    def leave(self, place: Place) -> None:
        """See `Place.leave`."""
        with self._lock:
            place.left = True
            place.forget()
            self._uncount(place)
        if self._ushered:
            self._wakes.put(None)

    def settle(self) -> bool:
        """Wait until nobody waits; returns whether anybody did."""
        with self._nobody_waits:
            waited = self._ushered
            self._nobody_waits.wait_for(lambda: not self._ushered)
        return waited

    def _usher(self) -> None:
        while True:
            self._wakes.get()
            while (place := self._next()) is not None:
                place.go()
            with self._nobody_waits:
                if not self._queue:
                    self._ushered = False
                    self._nobody_waits.notify_all()
                    return

    def _next(self) -> Place | None:
        """Let the oldest in for whom there is room."""
        with self._lock:
            while self._queue and (self._queue[0].left or self._fits(self._queue[0])):
                place = self._queue.popleft()
                if not place.left:
                    self._take(place)
                    return place
        return None

    def _fits(self, place: Place) -> bool:
        return not self.held or self.held + place.size <= self._limit

    def _take(self, place: Place) -> None:
        self.held += place.size
        place.inside = True
        if place.left:  # a collection of garbage on the lines above has dropped it
            self._uncount(place)

    def _uncount(self, place: Place) -> None:
        if place.inside:
            place.inside = False
            self.held -= place.size


class Window:
    """The room of both classes.

    Args:
        limit: Bytes in all; more only for a single image that is larger.

    Attributes:
        realtime: Of real-time calls.
        bulk: Of all others.
    """

    def __init__(self, limit: int) -> None:
        self.realtime = Lane(limit // _REALTIME_SHARE)
        self.bulk = Lane(limit - limit // _REALTIME_SHARE)

    @property
    def held(self) -> int:
        """Bytes of images inside."""
        return self.realtime.held + self.bulk.held

    @property
    def waiting(self) -> int:
        """Calls that wait for room."""
        return self.realtime.waiting + self.bulk.waiting

    def settle(self) -> bool:
        """Wait until nobody waits for room; returns whether anybody did."""
        return self.realtime.settle() | self.bulk.settle()
