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
from typing import Any

import torch

from photonlite.device.base import Event, MarkDevice, MarkEvent, own
from photonlite.device.cores import set_threads


class CpuDevice(MarkDevice):
    """Three worker threads, which finish their work and end when the device is dropped, or with the program.

    The first exception that escapes from work is a bug, and is raised when the host next uses the device.
    """

    def __init__(self) -> None:
        self._escaped: list[BaseException] = []
        self.compute = CpuStream("compute", self._escaped)
        self.upload = CpuStream("upload", self._escaped)
        self.download = CpuStream("download", self._escaped)
        for copies in (self.upload, self.download):
            copies.run(lambda: set_threads(1))  # or each would keep threads of OpenMP beside those of `compute`

    def reach(self, mark: Any) -> None:
        mark.wait()
        _raise_escaped(self._escaped)

    def close(self) -> None:
        for stream in (self.compute, self.upload, self.download):
            stream.close()
        _raise_escaped(self._escaped)


class CpuStream:
    """A queue of work and the thread that does it, in inference mode."""

    def __init__(self, name: str, escaped: list[BaseException]) -> None:
        self._escaped = escaped
        self._worker = _Worker(name, escaped)
        self._put = self._worker.items.put
        # The worker has no reference to the stream, so that a dropped stream is collected, which ends its worker.
        self._stop = weakref.finalize(self, self._put, None)
        self._worker.start()

    def run(self, work: Callable[[], None]) -> None:
        _raise_escaped(self._escaped)
        self._give(work)

    def record(self, event: Event) -> None:
        mark = _Mark()
        self._give(mark.reach)
        own(event, MarkEvent).mark = mark

    def wait(self, event: Event) -> None:
        mark = own(event, MarkEvent).mark
        if mark is not None and not mark.passed:
            self._give(mark.wait)

    def close(self) -> None:
        """Wait until all work given so far is done and the thread has ended."""
        self._stop()
        self._worker.join()

    def _give(self, item: Callable[[], object]) -> None:
        if not self._stop.alive:
            raise RuntimeError("the device is closed")
        self._put(item)


class _Mark:
    """One recording, passed only once. Its lock is a turnstile at a tenth of the cost of `threading.Event`."""

    __slots__ = ("_lock", "passed", "time")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.passed = False
        self.time = 0.0

    def reach(self) -> None:
        self.time = time.perf_counter()
        self.passed = True
        self._lock.release()

    def wait(self) -> None:
        if not self.passed:
            with self._lock:
                pass


class _Worker(threading.Thread):
    """Runs the work in its queue, in inference mode, up to the first None."""

    def __init__(self, name: str, escaped: list[BaseException]) -> None:
        super().__init__(name=f"photonlite-{name}", daemon=True)
        self.items: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._escaped = escaped
        _workers.add(self)

    def run(self) -> None:
        with torch.inference_mode():
            while (item := self.items.get()) is not None:
                try:
                    item()
                except BaseException as error:
                    if not self._escaped:
                        self._escaped.append(error)
                # While this thread waits, it must not keep alive what the last work refers to.
                del item


_workers: "weakref.WeakSet[_Worker]" = weakref.WeakSet()


@atexit.register
def _end_workers() -> None:
    # A daemon thread that is inside torch when the interpreter goes away aborts the process.
    workers = list(_workers)
    for worker in workers:
        worker.items.put(None)
    for worker in workers:
        worker.join()


def _raise_escaped(escaped: list[BaseException]) -> None:
    if escaped:
        error = escaped.pop()
        raise RuntimeError(f"work on a stream raised {type(error).__name__}: it has to keep its errors") from error
