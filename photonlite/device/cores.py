"""How many threads an operation on the CPU uses: as many as pay off, and no more than there are spare cores.

```
a few rows ──────────────────────────────────────────────────────────> 1 thread
crops, long prompts ─ at most cpu_threads ─ at most the spare cores ─> n threads of OpenMP, for this launch
```

PyTorch splits an operation into equal parts, one for each thread of OpenMP, and a finished thread spins until the
others are done. When another program uses one of the cores, the part there is late, and spinning keeps the other cores
busy: measured on two cores, everything took 4 to 18 times as long. OpenMP can sleep instead, but only by environment
variables for the whole process; the number of threads can be set at any time, for the calling thread alone.
"""

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar

import psutil
import torch

_T = TypeVar("_T")
_WINDOW_S: Final = 0.1  # least time of a measurement: the system counts in hundredths of a second
_TOLERANCE: Final = 0.25  # share of a core that other programs may use while it still counts as spare
WORTH: Final = 2**22  # multiplications in a product from which threads pay off: about 0.1 ms on one core
_LIBRARIES: Final = ("libtorch_cpu.so", "libtorch_cpu.dylib", "libiomp5md.dll")  # which link to PyTorch's OpenMP


class SpareCores:
    """Cores that other programs leave free, from the seconds that all cores were idle and that this process used."""

    def __init__(
        self,
        idle: Callable[[], float | None],
        used: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._idle, self._used, self._clock = idle, used, clock
        self._last = clock(), idle(), used()
        self._spare = float("inf")

    def count(self) -> float:
        """Return the spare cores, measured at most every 0.1 s; infinite before the first time, or if unreported."""
        then, idle_then, used_then = self._last
        now = self._clock()
        if now - then >= _WINDOW_S:
            self._last = _, idle, used = now, self._idle(), self._used()
            if idle is not None and idle_then is not None:
                self._spare = (idle - idle_then + used - used_then) / (now - then)
        return self._spare


class ComputeThreads:
    """Sets how many threads operations of the calling thread use, for one block at a time, at most `most`.

    `wide` are the blocks that share the spare cores now; by default those of all models in this process.
    """

    def __init__(self, most: int, spare: SpareCores | None = None, wide: set[object] | None = None) -> None:
        self._most = most
        self._spare = _spare if spare is None else spare
        self._wide = _wide if wide is None else wide

    @contextlib.contextmanager
    def spread(self, multiplications: int) -> Iterator[None]:
        """Run a block on as many threads as pay off for about so many multiplications in one product."""
        block = object()
        try:
            if multiplications < WORTH or self._most == 1:
                set_threads(1)
            else:
                self._wide.add(block)
                cores = min(self._most, self._spare.count() + _TOLERANCE)
                set_threads(max(1, int(cores / len(self._wide))))
            yield
        finally:
            self._wide.discard(block)


def compute_threads(most: int | None = None) -> ComputeThreads:
    """Return thread counts for an engine: at most `most`; None for PyTorch's own number, or fewer usable cores."""
    return ComputeThreads(most or min(torch.get_num_threads(), usable_cores()))


def in_passing(work: Callable[[], _T]) -> _T:
    """Run one-time work, such as loading weights, on a thread that ends with it; return or raise what it does.

    OpenMP keeps a team of threads for every live thread that has ever computed in parallel. When all teams together
    have more threads than the machine has cores, GNU's OpenMP lets them sleep between operations, and each takes
    longer. So the engine's thread must have the only team.
    """
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            with compute_threads().spread(WORTH):
                outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="photonlite-start", daemon=True)
    thread.start()
    thread.join()
    return outcome.result()


def set_threads(count: int) -> None:
    """Use so many threads in the calling thread; `torch.set_num_threads` would also change other, later threads."""
    torch.get_num_threads()  # the first use in a thread sets the number to PyTorch's own
    for function in _setters:
        function(count)


def usable_cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many cores this process may use: those it is bound to, at most the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no control groups, or no quota
        quota, period = quota_file.read_text().split()  # microseconds of CPU time or "max", period
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def idle_seconds() -> float | None:
    """Return the idle seconds of this process's cores, all together; None where the system does not report them."""
    try:
        times = psutil.cpu_times(percpu=True)
        bound = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(times))
        cores = [times[core] for core in bound]
    except (OSError, IndexError, RuntimeError):
        return None
    if not any(sum(core) for core in cores):  # some sandboxes report only zeros
        return None
    return sum(core.idle + getattr(core, "iowait", 0.0) for core in cores)


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
_spare: Final = SpareCores(idle_seconds)
