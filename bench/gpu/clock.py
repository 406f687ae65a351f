"""Times work on a device: events around CUDA work, replayed as a graph where asked for; the host's clock elsewhere."""

import time
from collections.abc import Callable

import torch

from bench.gpu.samples import Sample

WARM_UP = 3


class Clock:
    """Times work on one device, on its default stream.

    Args:
        device: Where the work runs.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cuda = device.type == "cuda"

    @torch.inference_mode()
    def measure(self, work: Callable[[], object], *, rounds: int = 10, graphed: bool = False) -> Sample:
        """Time work again and again.

        Args:
            work: Runs once a round, and `WARM_UP` times before.
            rounds: Measurements.
            graphed: Whether a CUDA graph is made of it, so that the host's launches do not count.

        Returns:
            Seconds on the device; on a CPU, of the call.
        """
        for _ in range(WARM_UP):
            work()
        self.synchronize()
        if not self._cuda:
            return Sample.of(self._called(work) for _ in range(rounds))
        run = _graph(work) if graphed else work
        run()
        marks = [(_event(), _event()) for _ in range(rounds)]
        for start, end in marks:
            start.record()
            run()
            end.record()
        self.synchronize()
        return Sample.of(start.elapsed_time(end) / 1e3 for start, end in marks)

    def measure_call(self, work: Callable[[], object], *, rounds: int = 10) -> Sample:
        """Time calls on the host, each until the device is done."""
        for _ in range(WARM_UP):
            work()
        return Sample.of(self._called(work) for _ in range(rounds))

    def synchronize(self) -> None:
        """Wait for the device."""
        if self._cuda:
            torch.cuda.synchronize(self.device)

    def _called(self, work: Callable[[], object]) -> float:
        self.synchronize()
        start = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - start


def _graph(work: Callable[[], object]) -> Callable[[], None]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    # An idle engine in this process still has running threads.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph.replay


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
