"""CUDA graphs of decode steps: captured at start for each slot and batch size, replayed with one call.

```
for size in 64, 48, ... 1            largest first: the pool's memory then serves every smaller size
    for slot in 0, 1
        forward                      ends at the raw hidden states, in the slot's buffers
        finalize                     text, coordinate, size, decide, mixed; each greedy and sampled
```

All graphs share one memory pool and are captured on one stream, to which the pool belongs. That is sound because they
are replayed one after the other on one stream, and because what outlives a replay (hidden states, results, the pending
table) was allocated before, outside the pool. A size whose forward pass cannot be captured runs without a graph.
"""

import contextlib
import gc
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, get_args

import torch
from tqdm import tqdm

from photonlite.runner.choices import Variant

VARIANTS: tuple[Variant, ...] = tuple(variant for variant in get_args(Variant) if variant != "scored")
"""Those that are captured: what gives probabilities runs as it is."""

Forward = Callable[[int, int], None]
"""Runs the forward pass of a slot and a size."""

Finalize = Callable[[int, int, Variant, bool], None]
"""Runs the finalize of a slot, a size and a variant, sampled or greedy."""

Progress = Callable[[int, int], None]
"""Is told how many graphs are done, of how many."""

_logger = logging.getLogger("photonlite")


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """What is captured.

    Attributes:
        sizes: Batch sizes; those beyond the largest batch are left out.
        padding: Whether a batch may run in the next larger size; else only exact sizes replay.
        compile: Whether the forward pass goes through `torch.compile` first.
    """

    sizes: tuple[int, ...]
    padding: bool = True
    compile: bool = False


@dataclass(frozen=True, slots=True)
class GraphReport:
    """What capturing took.

    Attributes:
        graphs: How many there are.
        seconds: Of start-up.
        bytes: Of device memory.
    """

    graphs: int
    seconds: float
    bytes: int

    def __add__(self, other: "GraphReport") -> "GraphReport":
        """Give what both took together."""
        return GraphReport(self.graphs + other.graphs, self.seconds + other.seconds, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class GraphKey:
    """Names a graph.

    Attributes:
        slot: Whose buffers it uses.
        size: Rows.
        variant: Of a finalize; None for a forward pass.
        sampled: Of a finalize.
    """

    slot: int
    size: int
    variant: Variant | None = None
    sampled: bool = False


class Capturer(Protocol):
    """Makes graphs of work."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run work once to warm it up, record it, and give what replays it.

        Raises:
            Exception: Work raised, or did what no graph can hold.
        """
        ...

    def used_bytes(self) -> int:
        """Give the device memory that is taken, by whomever."""
        ...


class CudaCapturer:
    """Captures CUDA graphs on one stream into one memory pool.

    Args:
        device: Which card.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Warm up, record, and give what replays; see :class:`Capturer`."""
        with torch.cuda.stream(self._stream):
            work()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, which page-lock memory for images, must not spoil the capture.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                work()
        except Exception:
            # The allocator believes from now on that the old pool is being recorded to, and takes no other capture.
            self._pool = torch.cuda.graph_pool_handle()
            raise
        return graph.replay

    def used_bytes(self) -> int:
        """Give the device memory that is taken, by whomever."""
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free


class GraphSet:
    """The graphs of a body, by slot, size and variant.

    Args:
        options: Which sizes, and whether batches are padded to them.
        depth: Slots.
        max_rows: Rows of the largest batch.
    """

    def __init__(self, options: GraphOptions, *, depth: int, max_rows: int) -> None:
        self._padding = options.padding
        self._slots = range(depth)
        self._wanted = sorted({size for size in options.sizes if size <= max_rows}, reverse=True)
        self._sizes: list[int] = []  # captured, ascending
        self._replays: dict[GraphKey, Callable[[], None]] = {}

    def can_run(self, rows: int) -> bool:
        """Tell whether a graph runs a decode step of so many rows."""
        return self.size_for(rows) is not None

    def size_for(self, rows: int) -> int | None:
        """Give the size of the graph that runs so many rows; None where none does."""
        for size in self._sizes:
            if size == rows or (self._padding and size > rows):
                return size
        return None

    def replay(self, key: GraphKey) -> bool:
        """Replay a graph on the current stream; False where there is none."""
        run = self._replays.get(key)
        if run is None:
            return False
        run()
        return True

    def capture(
        self, capturer: Capturer, forward: Forward, finalize: Finalize, progress: Progress | None = None
    ) -> GraphReport:
        """Capture everything, largest size first.

        Args:
            capturer: Makes the graphs.
            forward: Runs the forward pass of a slot and a size, from and to fixed buffers.
            finalize: Runs the finalize of a slot, a size and a variant, likewise.
            progress: Is told how many graphs are done, of how many; None shows a bar where stderr is a terminal.
        """
        begun, before = time.perf_counter(), capturer.used_bytes()
        total = len(self._wanted) * len(self._slots) * (1 + 2 * len(VARIANTS))
        with frozen_garbage(), _shown(capturer, progress, total) as advance:
            for size in self._wanted:
                self._capture_size(capturer, size, forward, finalize, advance)
        taken = max(0, capturer.used_bytes() - before)
        return GraphReport(len(self._replays), time.perf_counter() - begun, taken)

    def _capture_size(
        self, capturer: Capturer, size: int, forward: Forward, finalize: Finalize, advance: Callable[[], None]
    ) -> None:
        """Capture one size for every slot: all of it, or no forward pass."""
        keys = [GraphKey(slot, size) for slot in self._slots]
        for key in keys:
            self._try(capturer, key, partial(forward, key.slot, size))
            advance()
        if any(key not in self._replays for key in keys):
            for key in keys:
                self._replays.pop(key, None)
        else:
            self._sizes.insert(0, size)
        for slot, variant, sampled in itertools.product(self._slots, VARIANTS, (False, True)):
            key = GraphKey(slot, size, variant, sampled)
            self._try(capturer, key, partial(finalize, slot, size, variant, sampled))
            advance()

    def _try(self, capturer: Capturer, key: GraphKey, work: Callable[[], None]) -> None:
        try:
            self._replays[key] = capturer.capture(work)
        except Exception as error:
            what = "forward pass" if key.variant is None else f"{key.variant} choice"
            _logger.warning(
                "the %s of %d rows runs without a CUDA graph, because capturing it failed: %s: %s",
                what, key.size, type(error).__name__, error,
            )  # fmt: skip


@contextlib.contextmanager
def frozen_garbage() -> Iterator[None]:
    """Keep the garbage collector still: what it frees in the middle of a capture spoils it.

    Each capture asks for a collection of its own, which is quick when everything that lived before is frozen.
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


@contextlib.contextmanager
def _shown(capturer: Capturer, progress: Progress | None, total: int) -> Iterator[Callable[[], None]]:
    """Give what counts one graph more; at the end the bar tells the memory that they take."""
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is None:
            bar.update()
        else:
            progress(done, total)

    # `disable=None` means: unless stderr is a terminal.
    with tqdm(
        total=total, desc="capturing CUDA graphs", unit="graph", disable=None if progress is None else True
    ) as bar:
        before = capturer.used_bytes()
        yield advance
        bar.set_postfix_str(f"{max(0, capturer.used_bytes() - before) / 2**20:.0f} MiB")
