"""The interface of a device: streams, events that tie them together, and host memory that copies can read.

```
upload    ── copy meta ──●                      ── copy masks ──●
compute                  └─ forward ────────────────────────────└─ finalize ──●
download                                                                      └─ copy results ──● host waits here
swap      ── copy pages of sequences that no step carries ──● the host asks now and then
encode    ── images, where they are encoded beside the steps ──● the host asks now and then
```

Work on one stream runs in order; streams synchronise only at events, those of their own device. After `close`, streams
raise RuntimeError; so do times of events that were not recorded or have not passed.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy.typing as npt

Array = npt.NDArray[Any]


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
    """One device and its streams: forward passes in order, copies to the device and to the host, swaps, encodings."""

    @property
    def compute(self) -> Stream: ...
    @property
    def upload(self) -> Stream: ...
    @property
    def download(self) -> Stream: ...
    @property
    def swap(self) -> Stream: ...
    @property
    def encode(self) -> Stream: ...
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
