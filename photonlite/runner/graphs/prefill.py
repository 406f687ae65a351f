"""CUDA graphs of packed prompts: captured at start for a ladder of lengths, replayed with one call.

```
length    16  32  64  128  192  256  384  512  640 | 736  752  768  784 | 896 ... 2048  2304 ... 4096
                                                    an image and a few words
```

Most products cut work into 128 positions, so that finer steps gain little except where most launches are. Both slots
share one set of graphs: a launch copies its inputs into the set's own buffers, on the compute stream.
"""

from collections.abc import Callable
from functools import partial

from photonlite.kernels.columns import QUERY_TILE
from photonlite.runner.graphs.capture import Capturer, GraphReport, measured, try_capture

LONGEST = 4096
"""Beyond this a launch takes so long that its kernels are launched meanwhile."""

_FEW = (16, 32, 64, 128, 192, 256)
_FINE, _COARSE = 16, 128


def prefill_sizes(prefix_length: int, positions: int) -> tuple[int, ...]:
    """Choose the lengths to capture, ascending, for launches of at most so many positions.

    Most prompts are a little longer than the `prefix_length` positions of BOS and an image.
    """
    image = -(-prefix_length // _FINE) * _FINE
    sizes = {*_FEW, *range(image, image + 4 * _FINE, _FINE)}
    sizes |= {*range(384, 2048, _COARSE), *range(2048, LONGEST + 1, 2 * _COARSE)}
    longest = min(positions, LONGEST)
    return tuple(sorted({size for size in sizes if size < longest} | {longest}))


def tiles_for(size: int, rows: int) -> int:
    """Choose the number of tiles of a graph of so many positions: enough for all rows, or for rows of 32 positions."""
    return -(-size // QUERY_TILE) + min(rows, max(8, size // 32))


class PrefillGraphs:
    """The graphs of prompts, by length (`sizes` ascending), for launches of at most `rows` rows."""

    def __init__(self, sizes: tuple[int, ...], rows: int) -> None:
        self._wanted = sizes
        self._rows = rows
        self._replays: dict[int, Callable[[], None]] = {}

    def size_for(self, positions: int, tiles: int) -> int | None:
        """Return the length of the graph that runs so many positions in so many tiles; None if none is close enough."""
        for size in self._wanted:
            if size >= positions and size in self._replays and tiles_for(size, self._rows) >= tiles:
                return size if size <= 2 * positions + QUERY_TILE else None
        return None

    def replay(self, size: int) -> None:
        """Replay a graph on the current stream."""
        self._replays[size]()

    def capture(self, capturer: Capturer, forward: Callable[[int, int], None]) -> GraphReport:
        """Capture every length, largest first: the pool's memory then serves every smaller one.

        `forward` runs a number of positions and tiles, from and to fixed buffers.
        """
        with measured(capturer) as report:
            for size in reversed(self._wanted):
                work = partial(forward, size, tiles_for(size, self._rows))
                if replay := try_capture(capturer, work, f"prompts of {size} positions run"):
                    self._replays[size] = replay
            return report(len(self._replays))
