"""Host memory that all ranks map: rank 0 fills the arrays of its slots there, and the others copy from them.

A slot's arrays are rewritten only after its step was committed. By then every rank has copied them: the forward pass
that follows the copy adds up over all ranks, so that rank 0's does not end before.
"""

import contextlib
import dataclasses
import math
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from photonlite.device.base import Array, Device
from photonlite.device.collectives import RankGroup
from photonlite.runner.memory import DeviceMemory


class SharedMemory:
    """Arrays of zeros in a file without a name; each rank asks for the same ones in the same order, rank 0 first."""

    def __init__(self, file: int, *, page_lock: bool) -> None:
        self._file = file
        self._page_lock = page_lock
        self._end = 0
        self._locked: list[int] = []

    def array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        wanted = np.dtype(dtype)
        size = max(1, math.prod(shape)) * wanted.itemsize
        begin = self._end
        self._end += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        if os.fstat(self._file).st_size < self._end:
            os.ftruncate(self._file, self._end)
        mapped = mmap.mmap(self._file, size, offset=begin)  # freed with the last array that uses it
        array: Array = np.frombuffer(mapped, wanted, math.prod(shape)).reshape(shape)
        if self._page_lock:
            torch.cuda.check_error(_runtime().cudaHostRegister(array.ctypes.data, size, 0))
            self._locked.append(array.ctypes.data)
        return array

    def close(self) -> None:
        """Let the operating system have the memory back once the arrays are gone; no copy may be under way."""
        for address in self._locked:
            with contextlib.suppress(RuntimeError):
                torch.cuda.check_error(_runtime().cudaHostUnregister(address))
        self._locked.clear()


def gather_memory(
    ranks: RankGroup, device: torch.device, memory: DeviceMemory, activation_bytes: int
) -> list[tuple[DeviceMemory, int]]:
    """Return the memory of each rank's card, and the bytes of the largest launch on it; every rank calls it."""
    own = torch.tensor([memory.total, memory.free, memory.weights, activation_bytes], device=device)
    found = []
    for total, free, weights, activations in ranks.concat(own).view(ranks.count, -1).tolist():
        found.append((dataclasses.replace(memory, total=total, free=free, weights=weights), activations))
    return found


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class SharedDevice:
    """A device whose host arrays are in shared memory; see `device.base.Device`."""

    def __init__(self, device: Device, memory: SharedMemory) -> None:
        self._device = device
        self._memory = memory
        self.compute, self.upload, self.download = device.compute, device.upload, device.download
        self.swap, self.encode = device.swap, device.encode
        self.event, self.time_of, self.rebase, self.elapsed = (
            device.event, device.time_of, device.rebase, device.elapsed,
        )  # fmt: skip

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        return self._memory.array(shape, dtype)

    def close(self) -> None:
        try:
            self._device.close()
        finally:
            self._memory.close()
