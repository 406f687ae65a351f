"""A device on a virtual clock, in one thread and without torch: work runs in any legal order, chosen by a seed.

Races depend on how far the device runs ahead of the host, so each seed draws a temper:

| temper  | runs ahead of the host          | finds                                                    |
|---------|---------------------------------|----------------------------------------------------------|
| late    | nothing                         | results read, or memory reused, without a wait           |
| early   | whatever is ready               | inputs that are filled in after the work that reads them |
| lagging | whatever is ready, on 2 streams | waits between streams that are missing                   |
| any     | a random share of what is ready | the rest                                                 |

When the host waits for a mark, the device does the work that the mark needs, and more only if it runs ahead.
"""

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from photonlite.device.base import Array

LONGEST_OPERATION = 1e-3
"""Virtual seconds that one operation takes at most."""


class Deadlock(AssertionError):  # noqa: N818
    """A stream or the host waits for a mark that can never be reached."""


class SimulatedDevice:
    """Five streams whose operations run when the host touches the device, one at a time.

    `seed` decides temper, order and durations: the same seed and the same calls give the same run. `now` is the
    virtual clock, in seconds. The stream of encodings may be the one that lags if `encodes_beside`.
    """

    def __init__(self, seed: int | Random, *, encodes_beside: bool = False) -> None:
        generator = seed if isinstance(seed, Random) else Random(seed)
        self._random = generator.random
        self.now = 0.0
        self.compute = SimulatedStream("compute", self)
        self.upload = SimulatedStream("upload", self)
        self.download = SimulatedStream("download", self)
        self.swap = SimulatedStream("swap", self)
        self.encode = SimulatedStream("encode", self)
        self._streams = [self.compute, self.upload, self.download, self.swap, self.encode]
        lagging = generator.choice(self._streams if encodes_beside else self._streams[:-1])
        self._ahead, self._eagerness = generator.choice(
            [
                ([], 0.0),
                (self._streams, 1.0),
                ([stream for stream in self._streams if stream is not lagging], 1.0),
                (self._streams, generator.random()),
            ]
        )

    @property
    def idle(self) -> bool:
        """Whether all work has run."""
        return not any(stream.ready or stream.queue for stream in self._streams)

    def step(self, streams: "Iterable[SimulatedStream] | None" = None) -> bool:
        """Run one operation that is ready, of any stream or of some; return whether there was one."""
        ready = [stream for stream in (self._streams if streams is None else streams) if stream.queue and stream.ready]
        if ready:
            self._advance(ready[int(self._random() * len(ready))] if len(ready) > 1 else ready[0])
        return bool(ready)

    def drift(self) -> None:
        """Let the device run ahead as far as its temper takes it; giving it work does this too."""
        while self._random() < self._eagerness and self.step(self._ahead):
            pass

    def drain(self) -> None:
        """Run everything; Deadlock where something waits for what never comes."""
        while self.step():
            pass
        if not self.idle:
            left = {stream.name: len(stream.queue) for stream in self._streams}
            raise Deadlock(f"nothing is ready, but these streams have operations left: {left}")

    def event(self) -> "SimulatedEvent":
        return SimulatedEvent(self)

    def time_of(self, event: Any) -> float:
        mark = event.mark
        if mark is None or not mark.passed:
            raise RuntimeError("the event was not recorded or has not passed")
        return float(mark.time)

    def rebase(self) -> None:
        """Do nothing: there is one clock."""

    def elapsed(self, start: Any, end: Any) -> float:
        return self.time_of(end) - self.time_of(start)

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        return np.zeros(shape, dtype)

    def reach(self, mark: "_Mark") -> None:
        """Run at least what a mark needs; Deadlock where it lies behind work that waits for it."""
        self.drift()
        while not mark.passed:
            self._advance(_first_needed(mark))
            self.drift()

    def close(self) -> None:
        self.drain()
        for stream in self._streams:
            stream.closed = True

    def _advance(self, stream: "SimulatedStream") -> None:
        self.now += LONGEST_OPERATION * (1.0 - self._random())
        operation = stream.queue.popleft()
        if isinstance(operation, _Mark):
            operation.time = self.now
            operation.passed = True
            return
        # Work may queue or await work: meanwhile nothing else of its stream runs.
        stream.busy = True
        try:
            operation()
        finally:
            stream.busy = False


class SimulatedStream:
    """Operations in order: work, marks to reach (its own) and marks to wait for (those of other streams)."""

    __slots__ = ("_device", "busy", "closed", "name", "queue")

    def __init__(self, name: str, device: SimulatedDevice) -> None:
        self.name = name
        self._device = device
        self.queue: deque[Callable[[], None] | _Mark] = deque()
        self.busy = False
        self.closed = False

    def run(self, work: Callable[[], None]) -> None:
        self._give(work)

    def record(self, event: Any) -> None:
        mark = _Mark(self)
        self._give(mark)
        event.mark = mark

    def wait(self, event: Any) -> None:
        mark = event.mark
        # What lies before a mark on this stream runs before later work anyway.
        if mark is not None and not mark.passed and mark.stream is not self:
            self._give(mark)

    @property
    def ready(self) -> bool:
        """Whether the next operation may run; waits that are over are dropped."""
        if self.busy:
            return False
        queue = self.queue
        while queue:
            head = queue[0]
            if not isinstance(head, _Mark) or head.stream is self:
                return True
            if not head.passed:
                return False
            queue.popleft()
        return False

    def _give(self, operation: "Callable[[], None] | _Mark") -> None:
        if self.closed:
            raise RuntimeError("the device is closed")
        self.queue.append(operation)
        self._device.drift()


class SimulatedEvent:
    __slots__ = ("_device", "mark")

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.mark: _Mark | None = None

    @property
    def done(self) -> bool:
        return self.mark is None or self.mark.passed

    def wait(self) -> None:
        if self.mark is not None:
            self._device.reach(self.mark)


class _Mark:
    """One recording: passed once and for good."""

    __slots__ = ("passed", "stream", "time")

    def __init__(self, stream: SimulatedStream) -> None:
        self.stream = stream
        self.passed = False
        self.time = 0.0


def _first_needed(mark: _Mark) -> SimulatedStream:
    # A stream waits only for marks that were recorded before, so this ends.
    stream = mark.stream
    while not stream.ready:
        if stream.busy:
            raise Deadlock(f"work on {stream.name} waits for a mark that lies behind this work")
        head = stream.queue[0]
        if not isinstance(head, _Mark):
            raise AssertionError(f"the head of {stream.name} is ready, but the stream says it is not")
        stream = head.stream
    return stream
