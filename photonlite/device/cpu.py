"""The CPU as a device: one worker thread for each stream, so that queueing work returns at once and streams overlap.

```
host      run ─ record ─ run ──────────────────── wait │ mark
worker         [ work ] mark [ work ] ...               (a queue for each stream, in order)

a few rows ──────────────────────────────────────────────────────────> 1 thread
crops, long prompts ─ at most cpu_threads ─ at most the spare cores ─> n threads of OpenMP, for this launch
```

PyTorch splits an operation into equal parts, one for each thread of OpenMP, and a finished thread spins until the
others are done. When another program uses one of the cores, the part there is late, and spinning keeps the other cores
busy: measured on two cores, everything took 4 to 18 times as long. OpenMP can sleep instead, but only by environment
variables for the whole process; the number of threads can be set at any time, for the calling thread alone.
"""

import atexit
import contextlib
import ctypes
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from photonlite.device.base import Array
from photonlite.device.cores import SpareCores, idle_seconds, usable_cores

_T = TypeVar("_T")
_TOLERANCE: Final = 0.25  # share of a core that other programs may use while it still counts as spare
WORTH: Final = 2**22  # multiplications in a product from which threads pay off: about 0.1 ms on one core
_LIBRARIES: Final = ("libtorch_cpu.so", "libtorch_cpu.dylib", "libiomp5md.dll")  # which link to PyTorch's OpenMP


_START_S: Final = 5.0  # seconds in which a thread begins to run
_LOOK_S: Final = 0.2  # a signal that comes just before a wait is seen when it ends


class CpuDevice:
    """Five worker threads, which finish their work and end when the device is dropped, or with the program.

    The first exception that escapes from work is a bug, and is raised when the host next uses the device.
    """

    def __init__(self) -> None:
        self._escaped: list[BaseException] = []
        self.compute = CpuStream("compute", self._escaped)
        self.upload = CpuStream("upload", self._escaped)
        self.download = CpuStream("download", self._escaped)
        self.swap = CpuStream("swap", self._escaped)
        self.encode = CpuStream("encode", self._escaped)
        for copies in (self.upload, self.download, self.swap):
            copies.run(lambda: set_threads(1))  # or each would keep threads of OpenMP beside those of `compute`

    def event(self) -> "CpuEvent":
        return CpuEvent(self._escaped)

    def time_of(self, event: Any) -> float:
        mark = event.mark
        if mark is None or not mark.passed:
            raise RuntimeError("the event was not recorded or has not passed")
        return float(mark.time)

    def rebase(self) -> None:
        """Do nothing: marks have the host's time."""

    def elapsed(self, start: Any, end: Any) -> float:
        return self.time_of(end) - self.time_of(start)

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        return np.zeros(shape, dtype)

    def close(self) -> None:
        for stream in (self.compute, self.upload, self.download, self.swap, self.encode):
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

    def record(self, event: Any) -> None:
        mark = _Mark()
        self._give(mark.reach)
        event.mark = mark

    def wait(self, event: Any) -> None:
        mark = event.mark
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


class CpuEvent:
    """An event that gets a new mark with each recording: streams that wait for an earlier one are not affected."""

    __slots__ = ("_escaped", "mark")

    def __init__(self, escaped: list[BaseException]) -> None:
        self._escaped = escaped
        self.mark: _Mark | None = None

    @property
    def done(self) -> bool:
        return self.mark is None or self.mark.passed

    def wait(self) -> None:
        if self.mark is not None:
            self.mark.wait()
            _raise_escaped(self._escaped)


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


def compute_threads(most: int | None = None) -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """Return `spread` for an engine: at most `most`; None for PyTorch's own number, or fewer usable cores."""
    return partial(spread, most=most or min(torch.get_num_threads(), usable_cores()))


@contextlib.contextmanager
def spread(
    multiplications: int, *, most: int, spare: SpareCores | None = None, wide: set[object] | None = None
) -> Iterator[None]:
    """Run a block on as many threads, at most `most`, as pay off for about so many multiplications in one product.

    The setting is that of the calling thread, which runs one block at a time. `wide` are the blocks that share the
    spare cores now; by default those of all models in this process.
    """
    block, wide = object(), _wide if wide is None else wide
    try:
        if multiplications < WORTH or most == 1:
            set_threads(1)
        else:
            wide.add(block)
            cores = min(most, (spare or _spare).count() + _TOLERANCE)
            set_threads(max(1, int(cores / len(wide))))
        yield
    finally:
        wide.discard(block)


def in_passing(work: Callable[[], _T]) -> _T:
    """Run one-time work, such as loading weights, on a thread that ends with it; return or raise what it does.

    Where the caller is interrupted, so is the work, before its next line of Python.

    OpenMP keeps a team of threads for every live thread that has ever computed in parallel. When all teams together
    have more threads than the machine has cores, GNU's OpenMP lets them sleep between operations, and each takes
    longer. So the engine's thread must have the only team; images that are encoded beside the steps bring a second one.
    """
    outcome: Future[_T] = Future()
    begun: Future[int] = Future()

    def run() -> None:
        try:
            begun.set_result(threading.get_ident())  # an interrupt may end the work from here on
            with compute_threads()(WORTH):
                outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="photonlite-start", daemon=True)
    try:
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_S)
    except KeyboardInterrupt:
        with contextlib.suppress(TimeoutError):  # the interrupt may have come before there was a thread
            number = begun.result(_START_S)
            # A thread that is inside torch when the interpreter goes away aborts the process.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(number), ctypes.py_object(SystemExit))
            wait([outcome])  # Python 3.11 counts a thread as ended when a join was interrupted
        raise
    return outcome.result()


def set_threads(count: int) -> None:
    """Use so many threads in the calling thread; `torch.set_num_threads` would also change other, later threads."""
    torch.get_num_threads()  # the first use in a thread sets the number to PyTorch's own
    for function in _setters:
        function(count)


def _find_setters() -> tuple[Callable[[int], object], ...]:
    folder = Path(torch.__file__).parent / "lib"
    for name in _LIBRARIES:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.PyDLL(str(folder / name))
            found = [library.omp_set_num_threads]
            with contextlib.suppress(AttributeError):
                # For processes that were given MKL_NUM_THREADS.
                found.append(library.MKL_Set_Num_Threads_Local)
            return tuple(found)
    return ()


_setters: Final = _find_setters()
_wide: Final[set[object]] = set()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_wide.clear)  # the threads that run these blocks stayed in the parent
_spare: Final = SpareCores(idle_seconds)
