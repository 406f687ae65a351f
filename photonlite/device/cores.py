"""Cores that this process may use, and those that other programs leave free."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

_WINDOW_S: Final = 0.1  # least time of a measurement: the system counts in hundredths of a second


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
