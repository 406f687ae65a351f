"""The face of a device: three streams, events that tie them together, and host memory that copies can read.

```
upload    ── copy meta ──●                      ── copy masks ──●
compute                  └─ forward ────────────────────────────└─ finalize ──●
download                                                                      └─ copy results ──● host waits here
```

Work on one stream runs in the order in which it was given; streams meet only at events. Three bodies have this face:
CUDA streams, one worker thread for each stream on the CPU, and a simulation on a virtual clock.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Event(Protocol):
    """A mark on a stream; recording it again moves it."""

    @property
    def done(self) -> bool:
        """Whether all work before the mark has run; True before the first recording."""
        ...

    def wait(self) -> None:
        """Let the calling thread wait until all work before the mark has run."""
        ...


class Stream(Protocol):
    """A queue of work that runs in order."""

    def run(self, work: Callable[[], None]) -> None:
        """Give work to the stream; on CUDA it runs now and queues kernels, elsewhere it runs later.

        Args:
            work: Must not raise where the device runs it later: the caller guards it.
        """
        ...

    def record(self, event: Event) -> None:
        """Put the mark behind all work given so far."""
        ...

    def wait(self, event: Event) -> None:
        """Let later work on this stream begin only when all work before the event's present mark has run."""
        ...


class Device(Protocol):
    """One device and its three streams."""

    @property
    def compute(self) -> Stream:
        """All forward passes, in order."""
        ...

    @property
    def upload(self) -> Stream:
        """Copies from host to device."""
        ...

    @property
    def download(self) -> Stream:
        """Copies from device to host."""
        ...

    def event(self) -> Event:
        """Make an event."""
        ...

    def time_of(self, event: Event) -> float:
        """Tell when a recorded and passed event was reached, in seconds of `time.perf_counter`, in float precision."""
        ...

    def rebase(self) -> None:
        """Tie the clock of `time_of` to the host's anew, for events recorded from now on; waits for no work."""
        ...

    def elapsed(self, start: Event, end: Event) -> float:
        """Tell the seconds between two recorded and passed events: finer than the difference of two times."""
        ...

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Allocate zeros on the host where the device's copies need not wait: page-locked for CUDA."""
        ...

    def close(self) -> None:
        """Wait for all work and end the streams."""
        ...


def zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Allocate plain host memory, for devices that read it as it is."""
    return np.zeros(shape, dtype)
