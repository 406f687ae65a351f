"""Capturing CUDA graphs: what makes them, what they take, and a garbage collector that does not interfere."""

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch

_logger = logging.getLogger("photonlite")


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The number of captured graphs, the seconds that took, and the bytes of device memory."""

    graphs: int
    seconds: float
    bytes: int

    def __add__(self, other: "GraphReport") -> "GraphReport":
        return GraphReport(self.graphs + other.graphs, self.seconds + other.seconds, self.bytes + other.bytes)


class Capturer(Protocol):
    """Makes graphs of work."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run work once to warm it up, record it, and return what replays it; raise if no graph can hold it."""
        ...

    def used_bytes(self) -> int:
        """Return the device memory in use, by any process."""
        ...


class CudaCapturer:
    """Captures CUDA graphs on one stream into one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.stream(self._stream):
            work()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, which page-lock memory for images, must not invalidate the capture.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                work()
        except Exception:
            # The allocator keeps treating the old pool as being recorded to, and takes no other capture.
            self._pool = torch.cuda.graph_pool_handle()
            raise
        return graph.replay

    def used_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free


def try_capture(capturer: Capturer, work: Callable[[], None], what: str) -> Callable[[], None] | None:
    """Capture work; log a warning and return None if that fails, so that the work runs without a graph."""
    try:
        return capturer.capture(work)
    except Exception as error:
        _logger.warning("%s without a CUDA graph, because capturing failed: %s: %s", what, type(error).__name__, error)
        return None


@contextlib.contextmanager
def measured(capturer: Capturer) -> Iterator[Callable[[int], GraphReport]]:
    """Stop the garbage collector inside; yield a function that reports what capturing so many graphs took so far."""
    begun, before = perf_counter(), capturer.used_bytes()
    with frozen_garbage():
        yield lambda graphs: GraphReport(graphs, perf_counter() - begun, max(0, capturer.used_bytes() - before))


@contextlib.contextmanager
def frozen_garbage() -> Iterator[None]:
    """Stop the garbage collector: an object that it frees in the middle of a capture invalidates that.

    Each capture runs a collection itself, which is fast when all existing objects are frozen.
    """
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
        if not frozen:
            gc.unfreeze()
