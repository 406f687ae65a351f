"""A CUDA card as a device: work given to a stream runs at once on the host and queues kernels and copies there."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from photonlite.device.base import Array

PRIORITY = -1
"""Stream priority of forward passes: their kernels are scheduled before others. Copies use copy engines."""

_BASE_TRIES = 5


class CudaDevice:
    """Five CUDA streams, which wait for no other stream; the constructor waits for all earlier work.

    `encode`, where given, is the stream of encodings; that of a green context confines what is launched on it.
    """

    def __init__(self, device: torch.device, encode: torch.cuda.Stream | None = None) -> None:
        self._device = device
        torch.cuda.synchronize(device)
        self.compute = CudaStream(_make_stream(device, PRIORITY))
        self.upload = CudaStream(_make_stream(device))
        self.download = CudaStream(_make_stream(device))
        self.swap = CudaStream(_make_stream(device))
        self.encode = CudaStream(encode or _make_stream(device))
        # Nothing else runs here, so that the base is reached as soon as it is recorded, whatever the others do.
        self._clock = _make_stream(device)
        self.rebase()

    def event(self) -> "CudaEvent":
        return CudaEvent()

    def time_of(self, event: Any) -> float:
        base, at = self._base
        return at + _seconds(base, event.inner)

    def elapsed(self, start: Any, end: Any) -> float:
        """Return the seconds between two recorded and passed events, to about 0.5 µs."""
        return _seconds(start.inner, end.inner)

    def rebase(self) -> None:
        tries = [self._record_base() for _ in range(_BASE_TRIES)]
        before, after, base = min(tries, key=lambda entry: entry[1] - entry[0])
        self._base = base, (before + after) / 2

    def host_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        number_type = torch.from_numpy(np.empty(0, dtype)).dtype
        with torch.cuda.device(self._device):
            tensor = torch.zeros(shape, dtype=number_type, pin_memory=True)
        # The array's base is the tensor.
        array: Array = tensor.numpy()
        return array

    def close(self) -> None:
        for stream in (self.compute, self.upload, self.download, self.swap, self.encode):
            stream.close()

    def _record_base(self) -> tuple[float, float, torch.cuda.Event]:
        # The card reaches the event between the two readings of the host's clock.
        base = _make_event()
        before = time.perf_counter()
        base.record(self._clock)
        base.synchronize()
        return before, time.perf_counter(), base


class CudaStream:
    """A CUDA stream and the way to run work on it."""

    def __init__(self, inner: torch.cuda.Stream) -> None:
        self._inner = inner
        self._closed = False

    def run(self, work: Callable[[], None]) -> None:
        self._check_open()
        with torch.inference_mode():
            # Changing the stream and back takes longer than asking for it; work may give more work to its own stream.
            if torch.cuda.current_stream() == self._inner:
                work()
            else:
                with torch.cuda.stream(self._inner):
                    work()

    def record(self, event: Any) -> None:
        self._check_open()
        event.inner.record(self._inner)

    def wait(self, event: Any) -> None:
        self._check_open()
        self._inner.wait_event(event.inner)

    def close(self) -> None:
        self._closed = True
        self._inner.synchronize()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the device is closed")


class CudaEvent:
    """A CUDA event with its time. Waiting spins: it takes a core, but notices the end some 20 µs sooner."""

    __slots__ = ("inner",)

    def __init__(self) -> None:
        self.inner = _make_event()

    @property
    def done(self) -> bool:
        return bool(self.inner.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.inner.synchronize()


def _make_stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


def _make_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _seconds(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    try:
        return float(start.elapsed_time(end)) / 1000
    except ValueError as cause:
        raise RuntimeError("the event was not recorded") from cause
