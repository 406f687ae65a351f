"""CUDA graphs of packed prompts: captured at start for a ladder of lengths, replayed with one call.

```
length    16  32  64  128  192  256  384  512  640 | 736  752  768  784 | 896 ... 2048  2304 ... 4096
                                                    an image and a few words
```

Work is cut into 128 positions by most products, so that finer steps gain little but where most launches are. Only one
set of graphs is there for both slots: a launch copies its inputs into the set's own buffers, on the compute stream.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from photonlite.kernels.columns import QUERY_TILE
from photonlite.runner.graphs import Capturer, GraphReport, frozen_garbage

LONGEST = 4096
"""Beyond this a launch takes so long that its kernels are launched meanwhile."""

_FEW = (16, 32, 64, 128, 192, 256)
_FINE, _COARSE = 16, 128

_logger = logging.getLogger("photonlite")


def prefill_sizes(prefix_length: int, positions: int) -> tuple[int, ...]:
    """Choose the lengths that are captured, ascending.

    Args:
        prefix_length: Positions of BOS and an image, which most prompts are a little longer than.
        positions: Of a launch at most.
    """
    image = -(-prefix_length // _FINE) * _FINE
    sizes = {*_FEW, *range(image, image + 4 * _FINE, _FINE)}
    sizes |= {*range(384, 2048, _COARSE), *range(2048, LONGEST + 1, 2 * _COARSE)}
    longest = min(positions, LONGEST)
    return tuple(sorted({size for size in sizes if size < longest} | {longest}))


def tiles_for(size: int, rows: int) -> int:
    """Choose how many tiles a graph of so many positions has: enough for all rows, or for rows of 32 positions."""
    return -(-size // QUERY_TILE) + min(rows, max(8, size // 32))


class PrefillGraphs:
    """The graphs of a body's prompts, by length.

    Args:
        sizes: Lengths to capture, ascending.
        rows: Rows of a launch at most.
    """

    def __init__(self, sizes: tuple[int, ...], rows: int) -> None:
        self._wanted = sizes
        self._rows = rows
        self._replays: dict[int, Callable[[], None]] = {}

    def size_for(self, positions: int, tiles: int) -> int | None:
        """Give the length of the graph that runs so many positions in so many tiles; None where none is near enough."""
        for size in self._wanted:
            if size >= positions and size in self._replays and tiles_for(size, self._rows) >= tiles:
                return size if size <= 2 * positions + QUERY_TILE else None
        return None

    def replay(self, size: int) -> None:
        """Replay a graph on the current stream."""
        self._replays[size]()

    def capture(self, capturer: Capturer, forward: Callable[[int, int], None]) -> GraphReport:
        """Capture every length, largest first: the pool's memory then serves every smaller one.

        Args:
            capturer: Makes the graphs.
            forward: Runs a number of positions and tiles, from and to fixed buffers.
        """
        begun, before = time.perf_counter(), capturer.used_bytes()
        with frozen_garbage():
            for size in reversed(self._wanted):
                try:
                    self._replays[size] = capturer.capture(partial(forward, size, tiles_for(size, self._rows)))
                except Exception as error:
                    _logger.warning(
                        "prompts of %d positions run without a CUDA graph, because capturing failed: %s: %s",
                        size, type(error).__name__, error,
                    )  # fmt: skip
        taken = max(0, capturer.used_bytes() - before)
        return GraphReport(len(self._replays), time.perf_counter() - begun, taken)
