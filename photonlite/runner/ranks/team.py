"""The other ranks, as rank 0 uses them.

```
rank 0    start ─ load own share ─ connect ─ build ────── steps ────────── stop
            │ setup                  ↑         │ records    │ records        │ end of the socket
others    start ─ load own share ─ loaded ─ build ─────── steps ───────── exit
                                             └ collective operations ┘
```

Rank 0 sends the others a record of each operation, and all ranks perform it together. If a rank exits, or fails in the
middle of a step, the others would wait for it for ever: the engine ends. A new engine starts new processes.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from photonlite.device.collectives import RankGroup
from photonlite.device.cores import usable_cores
from photonlite.errors import EngineDiedError, SettingsError
from photonlite.models.families import FAMILIES
from photonlite.models.loading import ModelFiles
from photonlite.models.parallel import check_ranks
from photonlite.runner.memory import DeviceMemory
from photonlite.runner.ranks.memory import SharedMemory, gather_memory
from photonlite.runner.ranks.process import RankProcess, RankSetup, how_ended, record

_NOTICE_S: Final = 1.0  # seconds after a failed operation in which the end of the rank that caused it is noticed


class Team:
    """Ranks 1 to `count` - 1, which hold their shares of the same files; rank 0 is on `device`.

    Methods are called by one thread at a time, `stop` also by another. SettingsError where the checkpoint or the
    machine does not allow so many ranks.
    """

    def __init__(
        self, files: ModelFiles, count: int, device: torch.device, dtype: torch.dtype, max_context: int | None
    ) -> None:
        able = [entry.divisible for entry in FAMILIES.values() if entry.divisible is not None]
        check_ranks(count, files.family.rank_sizes(files.config), able)
        _check_devices(count, device)
        self.count = count
        self.ranks = RankGroup(0, count)
        self._files, self._device, self._dtype, self._max_context = files, device, dtype, max_context
        self._processes: list[RankProcess] = []
        self._watchers: list[threading.Thread] = []
        self._open: list[int] = []  # one to meet in, one with memory
        self._stopping = False
        self._process = os.getpid()
        self._lost: str | None = None
        self._noticed = threading.Event()
        self._on_loss: Callable[[EngineDiedError], None] | None = None

    @property
    def cpu_threads(self) -> int:
        """Threads of each rank on the CPU."""
        return max(1, usable_cores() // self.count)

    def start(self) -> None:
        """Start the processes, unless they run; they load their shares while this one loads its own."""
        if self._processes:
            return
        self._stopping, self._lost, self._on_loss = False, None, None
        self._noticed.clear()
        self._open = [os.memfd_create(name) for name in ("photonlite-store", "photonlite-slots")]
        try:
            for rank in range(1, self.count):
                self._processes.append(RankProcess(self._setup(rank)))
        except BaseException:
            self.stop()
            raise

    def connect(self) -> None:
        """Wait until every rank has loaded its share, and meet them."""
        for process in self._processes:
            process.wait_loaded()
        for process in self._processes:
            watcher = threading.Thread(
                target=self._watch, args=(process,), name=f"photonlite-rank-{process.rank}", daemon=True
            )
            watcher.start()
            self._watchers.append(watcher)
        try:
            self.ranks.connect(self._open[0], self._device)
        except Exception as cause:
            raise self._failed(cause) from cause

    @property
    def memory(self) -> SharedMemory:
        """New memory that all ranks map, for the slots of an engine."""
        return SharedMemory(self._open[1], page_lock=self._device.type == "cuda")

    def send(self, name: str, *arguments: Any) -> None:
        """Make the others call a method of `follower.Follower`; what it does must follow on this rank."""
        message = record(name, *arguments)
        for process in self._processes:
            process.send(message)

    @contextlib.contextmanager
    def leading(self, name: str, *arguments: Any) -> Iterator[None]:
        """Send a record and do the same here, in the block; EngineDiedError where either fails."""
        try:
            self.send(name, *arguments)
            yield
        except Exception as cause:
            raise self._failed(cause) from cause

    def gather_memory(self, memory: DeviceMemory, activation_bytes: int) -> list[tuple[DeviceMemory, int]]:
        """Return what `ranks.memory.gather_memory` does, given what this rank's card has."""
        with self.leading("gather_memory", memory.fraction):
            return gather_memory(self.ranks, self._device, memory, activation_bytes)

    def check(self) -> None:
        """Raise an EngineDiedError if a rank is lost: what the others have computed since is undefined."""
        if self._lost is not None:
            raise self._error()

    def watch(self, on_loss: Callable[[EngineDiedError], None]) -> None:
        """Call a function, on a thread of its own, once a rank is lost."""
        self._on_loss = on_loss
        if self._lost is not None:
            on_loss(self._error())

    def stop(self) -> None:
        """End all processes, those that are being started too, and wait for them; not in a forked process."""
        if os.getpid() != self._process:
            return  # its parent's ranks go on, and the locks of what watches them may be held for ever
        self._stopping = True
        processes, self._processes = self._processes, []
        for process in processes:
            if self._lost is not None:
                process.kill()
            process.end()
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.join()
        self._on_loss = None  # it keeps the engine, and with that the model, which keeps the team
        self.ranks.close()
        files, self._open = self._open, []
        for file in files:
            os.close(file)

    def _setup(self, rank: int) -> RankSetup:
        device = self._device
        if device.type == "cuda":
            device = torch.device("cuda", device.index + rank)
        store, memory = self._open
        return RankSetup(
            rank, self.count, self._files, device, self._dtype, self._max_context, self.cpu_threads, store,
            memory, os.getpid(),
        )  # fmt: skip

    def _watch(self, process: RankProcess) -> None:
        code = process.wait()
        if not self._stopping:
            self._lose(f"rank {process.rank} of {self.count} is lost, {how_ended(code)}")

    def _lose(self, reason: str) -> None:
        """Note that the ranks cannot go on, and end what waits for one of them."""
        self._lost = self._lost or reason
        self._noticed.set()
        for process in self._processes:
            process.kill()
        self.ranks.abort()
        if self._on_loss is not None:
            self._on_loss(self._error())

    def _failed(self, cause: Exception) -> EngineDiedError:
        if isinstance(cause, EngineDiedError):
            return cause
        if not self._noticed.wait(_NOTICE_S):
            self._lost = f"rank 0 of {self.count} failed in the middle of a step, {type(cause).__name__}"
        return self._error()

    def _error(self) -> EngineDiedError:
        return EngineDiedError(f"the engine has stopped: {self._lost}; call the model's restart()")


def _check_devices(count: int, device: torch.device) -> None:
    setting = f"engine setting 'tensor_parallel' is {count}"
    if not hasattr(os, "memfd_create"):
        raise SettingsError(f"{setting}, which takes Linux: leave it at 1")
    if device.type == "cuda":
        here = torch.cuda.device_count() - device.index
        if count > here:
            raise SettingsError(
                f"{setting}, but from {device} on this machine has {here} CUDA devices: give at most that"
            )
