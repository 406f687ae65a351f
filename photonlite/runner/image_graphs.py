"""Encoders of images as CUDA graphs: from Python, the launches of a few crops' kernels take longer than the kernels.

```
crops, patches ── copy ──> given ── graph of the size ──> found ── the caller's
                          (fixed)                        (fixed)
```

All graphs are captured at start: a capture stops the whole card, and fails where another thread waits for it. Each is
captured with every attention, and the fastest is kept: cuDNN's is half again as fast for large images.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from photonlite.kernels.autotune import fastest, plan_free_attention
from photonlite.kernels.triton_utils import Counters, counting_in
from photonlite.models.base import CropEncoder, PatchEncoder, PatchSpec
from photonlite.runner.graphs import Capturer, GraphReport, capture_fastest, measured

Grid = tuple[int, int]  # rows and columns of patches of an image

CAMERAS = ((640, 480), (800, 600), (1024, 768), (1280, 720), (1024, 1024), (1920, 1080))
"""Width and height of single images that are encoded by CUDA graphs."""

MOST_PATCHES = 8192
"""Patches of the largest graph: kernels of larger images take longer than their launches."""


@dataclass(eq=False, slots=True)
class GraphSet:
    """Graphs of the whole card or of a part, and all that they touch: those of the other set may run meanwhile."""

    given: Tensor
    found: Tensor  # empty until the largest size is known
    replays: dict[Hashable, Callable[[], None]] = field(default_factory=dict)
    counters: Counters = field(default_factory=dict)


class GraphedEncoder(ABC):
    """An image encoder with a graph for some sizes of launches. Methods are called in inference mode.

    Attributes:
        in_part: Whether graphs of a part of the card are replayed, else those of all of it.
    """

    def __init__(self, *given: int, device: torch.device) -> None:
        self.in_part = False
        self._given, self._device = given, device
        self._sets: dict[bool, GraphSet] = {}

    def capture(
        self,
        capturer: Capturer,
        choose: Callable[[Sequence[Callable[[], None]]], int] = fastest,
        *,
        in_part: bool = False,
    ) -> GraphReport:
        """Capture all sizes, largest first: later ones find its memory in the pool. `choose` picks the fastest replay.

        It may be done once for the whole card, and once `in_part`: each set is replayed on one stream.
        """
        with torch.inference_mode():
            given = torch.zeros(self._given, dtype=torch.uint8, device=self._device)
            graphs = self._sets[in_part] = GraphSet(given, torch.empty(0, device=self._device))
            with measured(capturer) as report, counting_in(graphs.counters):
                for size, what, work in self._launches(graphs):
                    if replay := capture_fastest(capturer, work, what, choose):
                        graphs.replays[size] = replay
                return report(len(graphs.replays))

    @abstractmethod
    def _launches(self, graphs: GraphSet) -> Iterator[tuple[Hashable, str, Callable[[], None]]]:
        """Yield each size, what is encoded then, and what does it from `given` to `found`."""

    def _replay(self, size: Hashable, given: Tensor) -> Tensor | None:
        """Encode with the graph of a size, and return what all sizes write to; None where there is no such graph."""
        graphs = self._sets.get(self.in_part)
        if graphs is None or (replay := graphs.replays.get(size)) is None:
            return None
        graphs.given[: len(given)].copy_(given)
        replay()
        return graphs.found


class GraphedCrops(GraphedEncoder):
    """An encoder of crops with a graph for each number of them; see `models.base.CropEncoder`."""

    def __init__(self, encoder: CropEncoder, *, crop_size: int, max_crops: int, device: torch.device) -> None:
        super().__init__(max_crops, crop_size, crop_size, 3, device=device)
        self._encoder = encoder

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode crops, uint8 ``[n, C, C, 3]``, to new features ``[n, P, D]``; numbers not captured run eagerly."""
        if (found := self._replay(len(pixels), pixels)) is None:
            return self._encoder.encode(pixels)
        return found[: len(pixels)].clone()  # the next replay overwrites them

    def project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Map features to embeddings, eagerly: it is a handful of kernels."""
        return self._encoder.project(features, tiling)

    def _launches(self, graphs: GraphSet) -> Iterator[tuple[Hashable, str, Callable[[], None]]]:
        graphs.given.random_(0, 256)  # the time of a product depends on the numbers, a little
        graphs.found = torch.zeros_like(self._encoder.encode(graphs.given))
        for tiling, crops in (((1, 1), 1), ((1, 2), 3)):  # warmed up
            self._encoder.project(graphs.found.new_zeros(crops, *graphs.found.shape[1:]), tiling)
        for count in range(len(graphs.given), 0, -1):
            yield count, f"{count} crops are encoded", partial(self._run, graphs, count)

    def _run(self, graphs: GraphSet, count: int) -> None:
        graphs.found[:count].copy_(self._encoder.encode(graphs.given[:count]))


class GraphedPatches(GraphedEncoder):
    """An encoder of whole images with a graph for single ones of each camera's size; see `models.base.PatchEncoder`."""

    def __init__(self, encoder: PatchEncoder, spec: PatchSpec, device: torch.device) -> None:
        super().__init__(min(MOST_PATCHES, spec.most_patches), spec.patch_bytes, device=device)
        self._encoder, self._spec = encoder, spec
        self._encodings: list[Callable[[Tensor], Tensor]] = []  # hold what the graphs read

    def encode(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Encode as the encoder does; what is returned is overwritten by the next call."""
        found = self._replay(grids[0], patches) if len(grids) == 1 else None
        if found is None:
            return self._encoder.encode(patches, grids)
        return found[:, : len(patches) // self._spec.position_patches]

    def encoding(self, grids: Sequence[Grid]) -> Callable[[Tensor], Tensor]:
        return self._encoder.encoding(grids)

    def _launches(self, graphs: GraphSet) -> Iterator[tuple[Hashable, str, Callable[[], None]]]:
        merge = self._spec.merge
        sizes = {(rows * merge, columns * merge) for rows, columns in map(self._spec.positions_of, CAMERAS)}
        for grid in sorted(sizes, key=_area, reverse=True):
            if _area(grid) > len(graphs.given):
                continue
            if not len(graphs.found):
                with plan_free_attention(self._device):
                    graphs.found = torch.zeros_like(self._encoder.encode(graphs.given[: _area(grid)], [grid]))
            encoding = self._encoder.encoding([grid])
            self._encodings.append(encoding)
            what = f"images of {grid[0]} x {grid[1]} patches are encoded"
            yield grid, what, partial(self._run, graphs, grid, encoding)

    def _run(self, graphs: GraphSet, grid: Grid, encoding: Callable[[Tensor], Tensor]) -> None:
        found = encoding(graphs.given[: _area(grid)])
        graphs.found[:, : found.shape[1]].copy_(found)


def _area(grid: Grid) -> int:
    return grid[0] * grid[1]
