"""CUDA graphs of prompts and decode steps: captured at start, largest first, replayed with one call.

```
prompts    for length in 4096 ... 16
decode     for size in 64, 48, ... 1     for slot in 0, 1
               forward                   ends at the raw hidden states, in the slot's buffers
               finalize                  text, coordinate, size, decide, mixed; each greedy and sampled
```

All graphs share one memory pool and one stream: they are replayed one after the other, and what outlives a replay
(hidden states, results, the pending table) is outside the pool. Work that cannot be captured runs without a graph.
Graphs of images that are encoded beside the steps have a pool and a stream of their own (`engine.build`), and so have
those of the encoder's part of the card, of images and the prompts behind them; those of decoding's part have a pool.
"""

import contextlib
import gc
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Protocol, get_args

import torch
from torch.nn.attention import SDPBackend
from tqdm import tqdm

from photonlite.device.parts import PartThread
from photonlite.kernels.autotune import BACKENDS, fastest, only_backend
from photonlite.kernels.columns import QUERY_TILE
from photonlite.runner.sampling_params import WITH_SCORES, Variant

_logger = logging.getLogger("photonlite")

VARIANTS: tuple[Variant, ...] = tuple(variant for variant in get_args(Variant) if variant not in WITH_SCORES)
"""Captured variants: those with scores and penalties are rare, and run without a graph."""

WORD_VARIANTS: tuple[Variant, ...] = ("text", "scored")
"""The same for a model without coordinates and sizes: the digits of its places are scored."""

PLACE_VARIANTS: tuple[Variant, ...] = tuple(variant for variant in VARIANTS if variant not in ("size", "mixed"))
"""The same for a model with coordinates, and without sizes."""

LONGEST = 4096
"""Positions of the longest graph of prompts: a longer launch takes so long that its kernels are launched meanwhile."""

_FEW = (16, 32, 64, 128, 192, 256)
_FINE, _COARSE = 16, 128
_RUNS = 512  # positions of the longest launch whose rows may all be forced runs: 8 in each of 64 rows


@dataclass(frozen=True, slots=True)
class GraphReport:
    graphs: int
    seconds: float
    bytes: int

    def __add__(self, other: "GraphReport") -> "GraphReport":
        return GraphReport(self.graphs + other.graphs, self.seconds + other.seconds, self.bytes + other.bytes)


class Capturer(Protocol):
    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run work once to warm it up, record it, and return what replays it; raise if no graph can hold it."""
        ...

    def used_bytes(self) -> int:
        """Return the device memory in use, by any process."""
        ...


class CudaCapturer:
    """Captures on a stream of its own, whose priority the kernels of its graphs keep on whichever stream they run.

    Given a part of the card, it captures in that part's thread and on its stream: the kernels run on its SMs.
    """

    def __init__(self, device: torch.device, priority: int = 0, part: PartThread | None = None) -> None:
        self._device = device
        self._part = part
        self._stream: torch.cuda.Stream = (
            torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
            if part is None
            else part.stream
        )
        self._pool = torch.cuda.graph_pool_handle()  # memory of a pool is reused on one stream only

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        if self._part is None:
            return self._capture(work)
        torch.cuda.synchronize(self._device)  # the caller may still be writing what the work reads
        return self._part.run(partial(self._capture_inferring, work))

    def _capture_inferring(self, work: Callable[[], None]) -> Callable[[], None]:
        with torch.inference_mode():  # a mode of the thread
            return self._capture(work)

    def _capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))  # it may have written what the work reads
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


def capture_fastest(
    capturer: Capturer,
    work: Callable[[], None],
    what: str,
    choose: Callable[[Sequence[Callable[[], None]]], int] = fastest,
) -> Callable[[], None] | None:
    """Capture work with every attention and return what replays the fastest, which `choose` picks.

    As `try_capture`, it logs a warning and returns None if all fail.
    """
    names, replays, reasons = [], [], []
    for backend in BACKENDS:
        try:
            replays.append(capturer.capture(partial(_attend_with, backend, work)))
            names.append(backend.name)
        except Exception as error:
            reasons.append(f"{backend.name}: {type(error).__name__}: {error}")
    if not replays:
        reason = "because capturing failed with every attention"
        _logger.warning("%s without a CUDA graph, %s: %s", what, reason, "; ".join(reasons))
        return None
    best = choose(replays)
    _logger.debug("%s with %s, the fastest of %s", what, names[best], ", ".join(names))
    return replays[best]


def _attend_with(backend: SDPBackend, work: Callable[[], None]) -> None:
    with only_backend(backend):
        work()


@contextlib.contextmanager
def measured(capturer: Capturer) -> Iterator[Callable[[int], GraphReport]]:
    """Yield a function that reports what capturing so many graphs took so far; stops the garbage collector meanwhile.

    An object freed during a capture invalidates it. A capture collects first, which is fast when all is frozen.
    """
    begun, before = perf_counter(), capturer.used_bytes()
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield lambda graphs: GraphReport(graphs, perf_counter() - begun, max(0, capturer.used_bytes() - before))
    finally:
        if enabled:
            gc.enable()
        if not frozen:
            gc.unfreeze()


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """Batch sizes to capture, and whether a batch may be padded to the next larger size; else sizes must be equal."""

    sizes: tuple[int, ...]
    padding: bool = True


def sizes_within(sizes: Iterable[int], most: int) -> set[int]:
    """Return batch sizes of at most `most` rows; larger ones stand for that, so that the largest batch has a graph."""
    return {min(size, most) for size in sizes}


class DecodeGraphs:
    """Graphs by slot and size, of a finalize also by variant and whether a row draws; for `max_rows` rows at most."""

    def __init__(self, options: GraphOptions, *, depth: int, max_rows: int) -> None:
        self._padding = options.padding
        self._slots = range(depth)
        self._wanted = sorted(sizes_within(options.sizes, max_rows), reverse=True)
        self._sizes: list[int] = []  # captured, ascending
        self._replays: dict[tuple[object, ...], Callable[[], None]] = {}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes that are captured, ascending."""
        return tuple(self._sizes)

    def size_for(self, rows: int) -> int | None:
        for size in self._sizes:
            if size == rows or (self._padding and size > rows):
                return size
        return None

    def replay(self, slot: int, size: int, *finalize: object) -> bool:
        """Replay a graph on the current stream; return whether there is one."""
        run = self._replays.get((slot, size, *finalize))
        if run is None:
            return False
        run()
        return True

    def capture(
        self,
        capturer: Capturer,
        forward: Callable[[int, int], None],
        finalize: Callable[[int, int, Variant, bool], None],
        variants: Sequence[Variant] = VARIANTS,
        place: str = "",
    ) -> GraphReport:
        """Capture `forward` of each slot and size, and `finalize` also of each variant, sampled or greedy.

        `place` is for the progress bar: where on the card, unless on all of it.
        """
        total = len(self._wanted) * len(self._slots) * (1 + 2 * len(variants))
        with (
            measured(capturer) as report,
            tqdm(total=total, desc=f"capturing CUDA graphs{place}", unit="graph", disable=None) as bar,
        ):

            def capture(work: Callable[..., None], what: str, *key: object) -> None:
                if replay := try_capture(capturer, partial(work, *key), f"the {what} of {key[1]} rows runs"):
                    self._replays[key] = replay
                bar.update()

            for size in self._wanted:
                for slot in self._slots:
                    capture(forward, "forward pass", slot, size)
                if all((slot, size) in self._replays for slot in self._slots):
                    self._sizes.insert(0, size)
                else:
                    for slot in self._slots:
                        self._replays.pop((slot, size), None)
                for slot, variant, sampled in itertools.product(self._slots, variants, (False, True)):
                    capture(finalize, f"{variant} finalize", slot, size, variant, sampled)
            result = report(len(self._replays))
            bar.set_postfix_str(f"{result.bytes / 2**20:.0f} MiB")
        return result


def prefill_sizes(prefix_length: int | None, positions: int) -> tuple[int, ...]:
    """Choose the lengths of prompts to capture, ascending, for launches of at most so many positions.

    ```
    16  32  64  128  192  256  384  512  640 | 736  752  768  784 | 896 ... 2048  2304 ... 4096
                                              an image and a few words
    ```

    Products cut work into 128 positions: finer steps pay only just above `prefix_length`, where most launches are.
    """
    sizes = set(_FEW)
    if prefix_length is not None:
        image = -(-prefix_length // _FINE) * _FINE
        sizes |= {*range(image, image + 4 * _FINE, _FINE)}
    sizes |= {*range(384, 2048, _COARSE), *range(2048, LONGEST + 1, 2 * _COARSE)}
    longest = min(positions, LONGEST)
    return tuple(sorted({size for size in sizes if size < longest} | {longest}))


def tiles_for(size: int, rows: int, *, mixed: bool = False) -> int:
    """Choose the number of tiles of a graph of so many positions: enough for all rows, or for rows of 32 positions.

    In a mixed launch most rows have one position, and in a short launch forced runs have a few.
    """
    return -(-size // QUERY_TILE) + min(rows, size if mixed or size <= _RUNS else size // 32)


class PromptGraphs:
    """The graphs of prompts, by length (`sizes` ascending), for launches of at most `rows` rows."""

    def __init__(self, sizes: tuple[int, ...], rows: int, *, mixed: bool = False) -> None:
        self._wanted = sizes
        self._tiles = partial(tiles_for, rows=rows, mixed=mixed)
        self._replays: dict[int, Callable[[], None]] = {}

    def size_for(self, positions: int, tiles: int) -> int | None:
        """Return the length of the graph that runs so many positions in so many tiles; None if none is close enough."""
        for size in self._replays:
            if size >= positions and self._tiles(size) >= tiles:
                return size if size <= 2 * positions + QUERY_TILE else None
        return None

    def replay(self, size: int) -> None:
        self._replays[size]()

    def capture(self, capturer: Capturer, forward: Callable[[int, int], None]) -> GraphReport:
        """Capture every length; `forward` runs a number of positions and tiles, from and to fixed buffers."""
        with measured(capturer) as report:
            for size in reversed(self._wanted):
                work = partial(forward, size, self._tiles(size))
                if replay := try_capture(capturer, work, f"prompts of {size} positions run"):
                    self._replays = {size: replay} | self._replays  # ascending
            return report(len(self._replays))
