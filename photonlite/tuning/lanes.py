"""Lanes of a card: streams whose work runs at once, each fed by a host thread of its own.

```
thread 1 ── replay, replay, replay ──> lane 1   ■■■■ ■■■■ ■■■■ ■■■■
thread 2 ── replay, replay, replay ──> lane 2   ■■ ■■ ■■ ■■ ■■ ■■ ■■      both begin together
```

A lane covers the whole card or a part of it (`photonlite.device.parts`). Its thread has the lane's context current, so
that whatever PyTorch, cuBLAS or Triton set up at first use belongs to it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch

from photonlite.device.cuda import PRIORITY
from photonlite.device.parts import Part, divide
from photonlite.kernels.triton_utils import Counters, counting_in

Replay = Callable[[], None]
Ended = tuple[float, list[float]]  # when a queue began on the host's clock, and the seconds from then to each end

_WARM_UP = 2
_PATIENCE_S = 120.0  # until all lanes of a run are ready
AHEAD = 3
"""Replays of a lane that are queued at most: a launch into a full queue would block those of other lanes too."""


class Lane(Protocol):
    """A stream with SMs of its own or all of them."""

    @property
    def sms(self) -> int: ...
    def capture(self, work: Callable[[], object]) -> Replay:
        """Run work to warm it up, record it, and return what replays it on this lane."""

    def play(self, queue: Sequence[Replay], gate: threading.Barrier) -> "Future[Ended]":
        """Replay a queue once all others of the gate are ready."""

    def close(self) -> None:
        """End the thread."""


class Card(Protocol):
    """What has lanes."""

    @property
    def sms(self) -> int: ...
    def whole(self, *, first: bool = False) -> Lane:
        """Return a new lane over the whole card; if `first`, its kernels go before those of others."""

    def divided(self, sms: int) -> tuple[Lane, Lane]:
        """Return a lane over about `sms` multiprocessors and one over the rest; see `device.parts.divide`.

        A card may return the same lanes for the same size.
        """

    def run(self, queues: Sequence[tuple[Lane, Sequence[Replay]]]) -> list[list[float]]:
        """Replay queues at once; returns when each replay ended, in seconds from a common begin."""

    def close(self) -> None:
        """Close all lanes."""


class CudaCard:
    """A CUDA device. Its lanes last as long as it does: libraries keep what they made in the threads of lanes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lanes: list[CudaLane] = []
        self._parts: dict[int, tuple[CudaLane, CudaLane]] = {}
        self.sms = int(torch.cuda.get_device_properties(device).multi_processor_count)

    def whole(self, *, first: bool = False) -> "CudaLane":
        return self._add(None, PRIORITY if first else 0)

    def divided(self, sms: int) -> tuple["CudaLane", "CudaLane"]:
        if sms not in self._parts:
            first, second = divide(self._device, sms)
            self._parts[sms] = self._add(first), self._add(second)
        return self._parts[sms]

    def run(self, queues: Sequence[tuple[Lane, Sequence[Replay]]]) -> list[list[float]]:
        return play_together(queues)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()

    def _add(self, part: Part | None, priority: int = 0) -> "CudaLane":
        lane = CudaLane(self._device, self.sms if part is None else part.sms, part, priority)
        self._lanes.append(lane)
        return lane


class CudaLane:
    """A stream of a CUDA device, in a part of it or on the whole."""

    def __init__(self, device: torch.device, sms: int, part: Part | None, priority: int) -> None:
        self.sms = sms
        self._device = device
        self._counters: Counters = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="photonlite-lane")
        self._stream: torch.cuda.Stream = self._thread.submit(self._enter, part, priority).result()

    def capture(self, work: Callable[[], object]) -> Replay:
        torch.cuda.synchronize(self._device)  # the caller may still be writing what the work reads, on another stream
        return self._thread.submit(self._capture, work).result()

    def play(self, queue: Sequence[Replay], gate: threading.Barrier) -> "Future[Ended]":
        return self._thread.submit(self._play, queue, gate)

    def close(self) -> None:
        self._thread.shutdown()

    def _enter(self, part: Part | None, priority: int) -> torch.cuda.Stream:
        torch.cuda.set_device(self._device)
        stream = part.enter(self._device) if part is not None else _stream(self._device, priority)
        torch.cuda.set_stream(stream)
        return stream

    def _capture(self, work: Callable[[], object]) -> Replay:
        with torch.inference_mode(), counting_in(self._counters):
            for _ in range(_WARM_UP):
                work()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                work()
        return graph.replay

    def _play(self, queue: Sequence[Replay], gate: threading.Barrier) -> Ended:
        try:
            start, *ends = (_event() for _ in range(len(queue) + 1))
            gate.wait(_PATIENCE_S)
            begun = time.perf_counter()
            start.record(self._stream)
            for index, (replay, end) in enumerate(zip(queue, ends, strict=True)):
                if index >= AHEAD:
                    ends[index - AHEAD].synchronize()
                replay()
                end.record(self._stream)
            self._stream.synchronize()
        except BaseException:
            gate.abort()  # the other lanes must not wait for this one
            raise
        return begun, [start.elapsed_time(end) / 1e3 for end in ends]


def play_together(queues: Sequence[tuple[Lane, Sequence[Replay]]]) -> list[list[float]]:
    """Replay queues at once, each on the thread of its lane; see `Card.run`."""
    gate = threading.Barrier(len(queues))
    futures = [lane.play(queue, gate) for lane, queue in queues]
    failures = [error for future in futures if (error := future.exception()) is not None]
    if failures:  # the first cause, not the broken gate that it left to the others
        raise next((one for one in failures if not isinstance(one, threading.BrokenBarrierError)), failures[0])
    results = [future.result() for future in futures]
    first = min(begun for begun, _ in results)
    return [[begun - first + end for end in ends] for begun, ends in results]


def _stream(device: torch.device, priority: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
