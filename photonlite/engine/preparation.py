"""From a call to the engine: room is waited for, the image is prepared, the request handed in.

```
here   the thread that asks waits for room, at most until the deadline, and prepares
on     a thread of the pool reads the header; it prepares at once if there is room, else another one when there is
```

A request whose grammar is being compiled is handed in when that is done; until then its image is encoded:

```
compile ───────────────────────────> bind ─┐
room ─> prepare ─> encode beside ──────────┴─> engine
```
"""

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from photonlite.engine.delivery import Delivery, Submitter
from photonlite.engine.window import Lane, Place
from photonlite.grammar.automata.tables import Automaton
from photonlite.images.pool import PreparedImage
from photonlite.request import Request, Token
from photonlite.sequence import Sequence


class Threads(Protocol):
    """What is used of an `ImagePool`."""

    def submit(self, job: Callable[[], None]) -> Future[Any]:
        """Have something done."""
        ...

    def hurry(self, job: Callable[[], None]) -> None:
        """Have it done before all that waits."""
        ...


@dataclass(frozen=True)
class Binding:
    """What gives a request its grammar.

    Attributes:
        bind: Makes the whole request, given what was compiled for it; on the thread that hands it in.
        automaton: What is being compiled; None where nothing has to be.
        meanwhile: What asks for the image's encoding until that is done; None where encoding it would serve nobody.
    """

    bind: Callable[[Automaton | None], Request]
    automaton: "Future[Automaton] | None" = None
    meanwhile: Request | None = None

    @property
    def ready(self) -> bool:
        """Whether nobody needs to wait for it."""
        return self.automaton is None or self.automaton.done()

    def request(self) -> Request:
        """Make the request, once it is ready; raises why its grammar cannot be had."""
        return self.bind(None if self.automaton is None else self.automaton.result(timeout=0))


class Preparation:
    """What brings one request to the engine, once.

    It knows the delivery and not the generation: dropping that one also stops what has not begun.

    Args:
        delivery: Of the request.
        engine: Takes it.
        lane: The room for its class.
        measure: Tells how many bytes the image will take; None where nothing is decoded.
        prepare: Gives the image.
        binding: Gives the request its grammar; None where it has one.
    """

    def __init__(
        self,
        delivery: Delivery,
        engine: Submitter,
        lane: Lane,
        measure: Callable[[], int] | None,
        prepare: Callable[[], PreparedImage | None],
        binding: Binding | None = None,
    ) -> None:
        self._delivery = delivery
        self._engine = engine
        self._lane = lane
        self._measure = measure
        self._prepare = prepare
        self._binding = binding
        if binding is not None and binding.automaton is not None:
            delivery.when_computed(partial(_cancel, binding.automaton))  # where the request ends before it is there

    def here(self) -> None:
        """Wait for room and prepare on this thread; what goes wrong ends the request."""
        room, delivery = threading.Event(), self._delivery
        try:
            place = self._enter(lambda _: room.set())
            if place is not None and place.waits:
                delivery.when_computed(room.set)  # a request that another thread cancels gets no room
                if not room.wait(delivery.remaining):
                    delivery.expire()
            if self._prepared(place):
                self._await_grammar()
        except BaseException:
            delivery.cancel()
            raise
        self._hand_in()

    def on(self, threads: Threads) -> None:
        """The same on threads that never wait for room; returns at once."""
        # A thread that hurries does so in front of another call's work, which must not suffer from it; and what is
        # raised on any of them would be heard by nobody.
        begin = partial(self._delivery.guard, partial(self._begin, threads))
        if self._delivery.request.realtime:
            threads.hurry(begin)
        else:
            threads.submit(begin)

    def _begin(self, threads: Threads) -> None:
        place = self._enter(partial(self._go_on, threads))
        if place is None or not place.waits:
            self._submit(threads, place)

    def _go_on(self, threads: Threads, place: Place) -> None:
        self._do(threads, partial(self._submit, threads, place))

    def _do(self, threads: Threads, work: Callable[[], None]) -> None:
        """Have something done on one of the threads; what goes wrong ends the request."""
        delivery = self._delivery
        do = threads.hurry if delivery.request.realtime else threads.submit
        delivery.guard(partial(do, partial(delivery.guard, work)))

    def _enter(self, go: Callable[[Place], None]) -> Place | None:
        """Take a place for the image; None where it needs none."""
        delivery = self._delivery
        if self._measure is None or delivery.has_ended():
            return None
        place = self._lane.enter(self._measure(), go)
        delivery.when_computed(place.leave)
        return place

    def _submit(self, threads: Threads, place: Place | None) -> None:
        """Prepare, and hand in: at once, or on one of the threads when the grammar is there."""
        if not self._prepared(place):
            return
        automaton = None if self._binding is None or self._binding.ready else self._binding.automaton
        if automaton is None:
            self._hand_in()
        else:
            self._encode_meanwhile()
            # A future keeps its callbacks when it is done: this one then knows neither the engine nor, in a circle, it.
            go = [partial(self._do, threads, self._hand_in)]
            automaton.add_done_callback(lambda _: go.pop()())

    def _prepared(self, place: Place | None) -> bool:
        """Prepare the image on this thread; tells whether the request goes on."""
        return self._delivery.prepare(self._prepare if place is None else partial(self._fill, place))

    def _await_grammar(self) -> None:
        if self._binding is None or self._binding.ready:
            return
        self._encode_meanwhile()
        ends: list[Future[Any]] = [self._delivery.future, *filter(None, [self._binding.automaton])]
        done, _ = concurrent.futures.wait(ends, self._delivery.remaining, concurrent.futures.FIRST_COMPLETED)
        if not done:
            self._delivery.expire()

    def _hand_in(self) -> None:
        self._delivery.hand_in(self._engine, None if self._binding is None else self._binding.request)

    def _encode_meanwhile(self) -> None:
        delivery, binding = self._delivery, self._binding
        if binding is None or binding.meanwhile is None or delivery.image is None:
            return
        delivery.guard(partial(self._encode, binding.meanwhile))

    def _encode(self, request: Request) -> None:
        delivery = self._delivery
        sequence = delivery.submit_beside(self._engine, request, _Encoded(delivery))
        delivery.when_computed(partial(self._engine.cancel, sequence))

    def _fill(self, place: Place) -> PreparedImage | None:
        image = self._prepare()
        if image is not None:
            place.fill(3 * image.size[0] * image.size[1])  # headers of some sources cannot be read twice
        return image


def _cancel(automaton: "Future[Automaton]") -> None:
    automaton.cancel()


class _Encoded:
    """Takes the end of an encoding: whatever becomes of it, the request itself finds out."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def on_token(self, token: Token) -> None:
        """Take a token: there is none."""

    def on_finish(self, sequence: Sequence) -> None:
        """Take the end, and what it cost."""
        self._delivery.encoded_s += sequence.times.encode_s
