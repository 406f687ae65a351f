"""The interface of a device: three streams, events that tie them together, and host memory that copies can read.

```
upload    ── copy meta ──●                      ── copy masks ──●
compute                  └─ forward ────────────────────────────└─ finalize ──●
download                                                                      └─ copy results ──● host waits here
```

Work on one stream runs in order; streams synchronise only at events. After `close`, streams raise RuntimeError; so do
times of events that were not recorded or have not passed.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_Event = TypeVar("_Event")


class Event(Protocol):
    """A mark on a stream; recording it again moves it."""

    @property
    def done(self) -> bool:
        """Whether all work before the mark has run; True before the first recording."""

    def wait(self) -> None:
        """Block the calling thread until all work before the mark has run."""


class Stream(Protocol):
    """A queue of work that runs in order."""

    def run(self, work: Callable[[], None]) -> None:
        """Queue work; on CUDA it runs now and queues kernels, elsewhere it runs later and must not raise."""

    def record(self, event: Event) -> None:
        """Put the mark behind all work queued so far."""

    def wait(self, event: Event) -> None:
        """Start later work on this stream only after all work before the event's current mark."""


class Device(Protocol):
    """One device and its streams: all forward passes in order, copies to the device, copies to the host."""

    @property
    def compute(self) -> Stream: ...
    @property
    def upload(self) -> Stream: ...
    @property
    def download(self) -> Stream: ...
    def event(self) -> Event: ...

    def time_of(self, event: Event) -> float:
        """Return when a recorded and passed event was reached, in seconds of `time.perf_counter`."""

    def rebase(self) -> None:
        """Synchronise the clock of `time_of` with the host's for events recorded from now on; waits for no work."""

    def elapsed(self, start: Event, end: Event) -> float:
        """Return the seconds between two recorded and passed events, more exactly than two times differ."""

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Allocate zeros on the host that copies read without waiting: page-locked for CUDA."""

    def close(self) -> None:
        """Wait for all work and end the streams; closing twice is allowed."""


class MarkEvent:
    """An event of a `MarkDevice`: each recording gives it a new mark, with `passed` and `time`; None before."""

    __slots__ = ("_reach", "mark")

    def __init__(self, reach: Callable[[Any], None]) -> None:
        self._reach = reach
        self.mark: Any = None

    @property
    def done(self) -> bool:
        return self.mark is None or self.mark.passed

    def wait(self) -> None:
        if self.mark is not None:
            self._reach(self.mark)


class MarkDevice:
    """The part that the CPU and the simulation of the tests share: one clock, and pageable host memory."""

    def reach(self, mark: Any) -> None:
        """Block the calling thread until a mark has passed."""
        raise NotImplementedError

    def event(self) -> MarkEvent:
        return MarkEvent(self.reach)

    def time_of(self, event: Event) -> float:
        mark = own(event, MarkEvent).mark
        if mark is None or not mark.passed:
            raise RuntimeError("the event was not recorded or has not passed")
        return float(mark.time)

    def rebase(self) -> None:
        """Do nothing: there is one clock."""

    def elapsed(self, start: Event, end: Event) -> float:
        return self.time_of(end) - self.time_of(start)

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        return np.zeros(shape, dtype)


def own(event: Event, kind: type[_Event]) -> _Event:
    """Return an event of a device as one of its kind; TypeError for an event of another device."""
    if not isinstance(event, kind):
        raise TypeError(f"a {type(event).__name__} is no event of a device that records {kind.__name__}s")
    return event
