"""From a call to the engine: room is waited for, the picture is prepared, the request handed in.

```
here   the thread that asks waits for room, at most until the deadline, and prepares
on     a thread of the pool reads the header; it prepares at once if there is room, else another one when there is
```
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from photonlite.engine.generation import Delivery, Submitter
from photonlite.engine.window import Lane, Place
from photonlite.images.pool import PreparedImage


class Threads(Protocol):
    """What is used of an `ImagePool`."""

    def submit(self, job: Callable[[], None]) -> Future[Any]:
        """Have something done."""
        ...

    def hurry(self, job: Callable[[], None]) -> None:
        """Have it done before all that waits."""
        ...


class Preparation:
    """What brings one request to the engine, once.

    It knows the delivery and not the generation: dropping that one also stops what has not begun.

    Args:
        delivery: Of the request.
        engine: Takes it.
        lane: The room for its class.
        measure: Tells how many bytes the picture will take; None where nothing is decoded.
        prepare: Gives the picture.
    """

    def __init__(
        self,
        delivery: Delivery,
        engine: Submitter,
        lane: Lane,
        measure: Callable[[], int] | None,
        prepare: Callable[[], PreparedImage | None],
    ) -> None:
        self._delivery = delivery
        self._engine = engine
        self._lane = lane
        self._measure = measure
        self._prepare = prepare

    def here(self) -> None:
        """Wait for room and prepare on this thread; what goes wrong ends the request."""
        room, delivery = threading.Event(), self._delivery
        try:
            place = self._enter(lambda _: room.set())
            if place is not None and place.waits and not room.wait(delivery.remaining):
                delivery.expire()
        except BaseException:
            delivery.cancel()
            raise
        self._submit(place)

    def on(self, threads: Threads) -> None:
        """The same on threads that never wait for room; returns at once."""
        if self._delivery.request.realtime:
            # A thread that hurries does so in front of another call's work, which must not suffer from it.
            threads.hurry(partial(self._delivery.guard, partial(self._begin, threads)))
        else:
            threads.submit(partial(self._begin, threads))

    def _begin(self, threads: Threads) -> None:
        place = self._enter(partial(self._go_on, threads))
        if place is None or not place.waits:
            self._submit(place)

    def _go_on(self, threads: Threads, place: Place) -> None:
        delivery = self._delivery
        work = partial(delivery.guard, partial(self._submit, place))
        delivery.guard(partial(threads.hurry if delivery.request.realtime else threads.submit, work))

    def _enter(self, go: Callable[[Place], None]) -> Place | None:
        """Take a place for the picture; None where it needs none."""
        delivery = self._delivery
        if self._measure is None or delivery.has_ended():
            return None
        place = self._lane.enter(self._measure(), go)
        delivery.when_computed(place.leave)
        return place

    def _submit(self, place: Place | None) -> None:
        prepare = self._prepare if place is None else partial(self._fill, place)
        self._delivery.submit(self._engine, prepare)

    def _fill(self, place: Place) -> PreparedImage | None:
        picture = self._prepare()
        if picture is not None:
            place.fill(3 * picture.size[0] * picture.size[1])  # headers of some sources cannot be read twice
        return picture
