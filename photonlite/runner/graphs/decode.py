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

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import get_args

from tqdm import tqdm

from photonlite.runner.graphs.capture import Capturer, GraphReport, measured, try_capture
from photonlite.runner.sampling_params import Variant

VARIANTS: tuple[Variant, ...] = tuple(variant for variant in get_args(Variant) if variant != "scored")
"""Captured variants: the one with scores runs without a graph."""

Forward = Callable[[int, int], None]
"""Runs the forward pass of a slot and a size."""

Finalize = Callable[[int, int, Variant, bool], None]
"""Runs the finalize of a slot, a size and a variant, sampled or greedy."""


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """Batch sizes to capture, and whether a batch may be padded to the next larger size; else sizes must be equal."""

    sizes: tuple[int, ...]
    padding: bool = True


@dataclass(frozen=True, slots=True)
class GraphKey:
    """Names a graph: whose buffers it uses and its rows; of a finalize also variant and whether a row draws."""

    slot: int
    size: int
    variant: Variant | None = None
    sampled: bool = False


class GraphSet:
    """The graphs of decode steps, by slot, size and variant; sizes above `max_rows` are left out."""

    def __init__(self, options: GraphOptions, *, depth: int, max_rows: int) -> None:
        self._padding = options.padding
        self._slots = range(depth)
        self._wanted = sorted({size for size in options.sizes if size <= max_rows}, reverse=True)
        self._sizes: list[int] = []  # captured, ascending
        self._replays: dict[GraphKey, Callable[[], None]] = {}

    def size_for(self, rows: int) -> int | None:
        """Return the size of the graph that runs so many rows, or None."""
        for size in self._sizes:
            if size == rows or (self._padding and size > rows):
                return size
        return None

    def replay(self, key: GraphKey) -> bool:
        """Replay a graph on the current stream; return whether there is one."""
        run = self._replays.get(key)
        if run is None:
            return False
        run()
        return True

    def capture(self, capturer: Capturer, forward: Forward, finalize: Finalize) -> GraphReport:
        """Capture everything, largest size first; the work reads and writes fixed buffers.

        A progress bar is shown if stderr is a terminal; at the end it shows the memory of all graphs.
        """
        total = len(self._wanted) * len(self._slots) * (1 + 2 * len(VARIANTS))
        with (
            measured(capturer) as report,
            tqdm(total=total, desc="capturing CUDA graphs", unit="graph", disable=None) as bar,
        ):
            for size in self._wanted:
                self._capture_size(capturer, size, forward, finalize, bar.update)
            result = report(len(self._replays))
            bar.set_postfix_str(f"{result.bytes / 2**20:.0f} MiB")
        return result

    def _capture_size(
        self, capturer: Capturer, size: int, forward: Forward, finalize: Finalize, advance: Callable[[], object]
    ) -> None:
        """Capture one size for every slot; if one forward pass fails, keep none of them."""
        keys = [GraphKey(slot, size) for slot in self._slots]
        for key in keys:
            self._capture_one(capturer, key, partial(forward, key.slot, size))
            advance()
        if any(key not in self._replays for key in keys):
            for key in keys:
                self._replays.pop(key, None)
        else:
            self._sizes.insert(0, size)
        for slot, variant, sampled in itertools.product(self._slots, VARIANTS, (False, True)):
            key = GraphKey(slot, size, variant, sampled)
            self._capture_one(capturer, key, partial(finalize, slot, size, variant, sampled))
            advance()

    def _capture_one(self, capturer: Capturer, key: GraphKey, work: Callable[[], None]) -> None:
        what = "forward pass" if key.variant is None else f"{key.variant} finalize"
        if replay := try_capture(capturer, work, f"the {what} of {key.size} rows runs"):
            self._replays[key] = replay
