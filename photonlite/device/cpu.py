"""The CPU as a device: one worker thread for each stream, so that queueing work returns at once and streams overlap.

```
host      run ─ record ─ run ──────────────────── wait │ mark
worker         [ work ] mark [ work ] ...               (a queue for each stream, in order)
```
"""

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable

import numpy.typing as npt
import torch

from photonlite.device.base import Array, Event, zeros
from photonlite.device.cores import set_threads


class CpuDevice:
    """Three worker threads.

    A device that is dropped without `close` ends its threads once they have done the work given to them; so does the
    end of the program, which waits for them.
    """

    def __init__(self) -> None:
        self._escaped = _Escaped()
        self.compute = CpuStream("compute", self._escaped)
        self.upload = CpuStream("upload", self._escaped)
        self.download = CpuStream("download", self._escaped)
        for copies in (self.upload, self.download):
            copies.run(lambda: set_threads(1))  # or each would keep threads of OpenMP beside those of `compute`

    def event(self) -> "CpuEvent":
        return CpuEvent(self._escaped)

    def time_of(self, event: Event) -> float:
        return _own(event).time

    def rebase(self) -> None:
        """Do nothing: there is one clock."""

    def elapsed(self, start: Event, end: Event) -> float:
        return _own(end).time - _own(start).time

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        return zeros(shape, dtype)

    def close(self) -> None:
        streams = (self.compute, self.upload, self.download)
        for stream in streams:
            stream.stop()
        for stream in streams:
            stream.join()
        self._escaped.raise_once()


class CpuStream:
    """A queue of work and the thread that does it, in inference mode.

    Args:
        name: For the thread's name.
        escaped: Where exceptions go that work should not have raised.
    """

    def __init__(self, name: str, escaped: "_Escaped") -> None:
        self._escaped = escaped
        self._worker = _Worker(name, escaped)
        self._put = self._worker.items.put
        # The worker has no reference to the stream, so that a dropped stream is collected, which ends its worker.
        self._stop = weakref.finalize(self, self._worker.stop)
        self._worker.start()

    def run(self, work: Callable[[], None]) -> None:
        self._escaped.raise_once()
        self._give(work)

    def record(self, event: Event) -> None:
        mark = _Mark()
        self._give(mark.reach)
        _own(event).mark = mark

    def wait(self, event: Event) -> None:
        mark = _own(event).mark
        if mark is not None and not mark.passed:
            self._give(mark.wait)

    def stop(self) -> None:
        """Let the thread end behind all work given so far."""
        self._stop()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._worker.join()

    def _give(self, item: Callable[[], object]) -> None:
        if not self._stop.alive:
            raise RuntimeError("the device is closed")
        self._put(item)


class CpuEvent:
    """A mark on a stream; recording it again gives it a new one.

    Args:
        escaped: Where exceptions went that work should not have raised.
    """

    __slots__ = ("_escaped", "mark")

    def __init__(self, escaped: "_Escaped") -> None:
        self._escaped = escaped
        self.mark: _Mark | None = None

    @property
    def done(self) -> bool:
        return self.mark is None or self.mark.passed

    @property
    def time(self) -> float:
        """When the mark was reached."""
        if self.mark is None or not self.mark.passed:
            raise RuntimeError("the event was not recorded or has not passed")
        return self.mark.time

    def wait(self) -> None:
        if self.mark is not None:
            self.mark.wait()
        self._escaped.raise_once()


class _Mark:
    """One recording, passed only once. Its lock is a turnstile at a tenth of the cost of `threading.Event`."""

    __slots__ = ("_lock", "passed", "time")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.passed = False
        self.time = 0.0

    def reach(self) -> None:
        """Release all waiting threads."""
        self.time = time.perf_counter()
        self.passed = True
        self._lock.release()

    def wait(self) -> None:
        if not self.passed:
            with self._lock:
                pass


class _Escaped:
    """The first exception that escaped from work: a bug, raised when the host next uses the device."""

    __slots__ = ("_error",)

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def remember(self, error: BaseException) -> None:
        """Keep the first."""
        if self._error is None:
            self._error = error

    def raise_once(self) -> None:
        """Raise and drop the exception, if there is one."""
        if self._error is not None:
            error, self._error = self._error, None
            raise RuntimeError(f"work on a stream raised {type(error).__name__}: it has to keep its errors") from error


class _Worker(threading.Thread):
    """Runs the work in its queue, in inference mode, until it is stopped."""

    def __init__(self, name: str, escaped: _Escaped) -> None:
        super().__init__(name=f"photonlite-{name}", daemon=True)
        self.items: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._escaped = escaped
        _workers.add(self)

    def stop(self) -> None:
        """End behind all that is in the queue."""
        self.items.put(None)

    def run(self) -> None:
        with torch.inference_mode():
            while (item := self.items.get()) is not None:
                try:
                    item()
                except BaseException as error:
                    self._escaped.remember(error)
                # While this thread waits, it must not keep alive what the last work refers to.
                del item


_workers: "weakref.WeakSet[_Worker]" = weakref.WeakSet()


@atexit.register
def _end_workers() -> None:
    # A daemon thread that is inside torch when the interpreter goes away aborts the process.
    workers = list(_workers)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.join()


def _own(event: Event) -> CpuEvent:
    if not isinstance(event, CpuEvent):
        raise TypeError(f"a {type(event).__name__} is no event of a CPU device")
    return event
