"""Images that are encoded as a whole: the patches of several go through the encoder in one launch.

```
patches ── upload ──> patches of the slot, image after image ── encode ──> embeddings by job
```
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from photonlite.batch import CropGroup, EncodeJob
from photonlite.kernels.adapters import AdapterRows
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.base import PatchEncoder, PatchSpec
from photonlite.runner.buffers import Buffers, transfer
from photonlite.runner.graphs import Capturer, GraphReport, measured, try_capture
from photonlite.sequence import UNIT_PATCHES, PatchImage

_logger = logging.getLogger("photonlite")

Grid = tuple[int, int]  # rows and columns of patches of an image

CAMERAS = ((640, 480), (1280, 720), (1920, 1080))
"""Width and height of images whose graphs are captured at start: no frame of such a camera waits for that."""

MOST_PATCHES = 8192
"""Patches of the largest graph: kernels of larger images take longer than their launches."""

MOST_GRAPHS = 8
"""Graphs that are kept: each holds what follows from its size, up to 20 MB, in memory planned for workspaces."""

SIGHTINGS = 16
"""How often a size comes before it is captured: a capture takes about as long as so many replays save."""

_REMEMBERED = 64  # sizes whose sightings are counted


class PatchImages:
    """Encodes the patches of several images at once; see `runner.images.Images`.

    `max_units` and `longest` limit a launch: units of patches, and positions of one image.
    """

    def __init__(self, encoder: PatchEncoder, spec: PatchSpec, *, max_units: int, longest: int) -> None:
        self._encoder = encoder
        self._spec = spec
        # A single image that is larger than a launch goes alone.
        self._largest = min(spec.most_patches, longest * spec.position_patches)
        self.input_shape: tuple[int, ...] = (max(max_units * UNIT_PATCHES, self._largest), spec.patch_bytes)
        self._embeddings: dict[int, Tensor] = {}

    def upload(self, buffers: Buffers, groups: Sequence[CropGroup]) -> None:
        begin = 0
        for image in _images(groups):
            end = begin + len(image.patches)
            transfer(buffers.crops[begin:end], image.patches)
            begin = end

    def encode(self, buffers: Buffers, groups: Sequence[CropGroup], bank: AdapterBank | None = None) -> None:
        images = _images(groups)
        sizes = [len(image.patches) for image in images]
        patches, grids = buffers.crops[: sum(sizes)], [image.grid for image in images]
        if bank is None:
            found = self._encoder.encode(patches, grids)
        else:
            # Of each embedding, whose patches follow each other in every layer.
            counts = [size // self._spec.position_patches for size in sizes]
            slots = [group.adapter_slot for group in groups]
            with bank.running(AdapterRows.of(slots, counts, patches.device)) as model:
                found = cast(PatchEncoder, model.vision).encode(patches, grids)
        begin = 0
        for group, size in zip(groups, sizes, strict=True):
            end = begin + size // self._spec.position_patches
            if not group.job.failed:
                # A copy: the embeddings of one image must not keep those of others.
                self._embeddings[group.job.number] = found[:, begin:end].clone()
            begin = end

    def work(self, groups: Sequence[CropGroup]) -> int:
        return sum(len(image.patches) for image in _images(groups))

    def embeddings(self, job: int) -> Tensor | None:
        return self._embeddings.get(job)

    def forget(self, job: EncodeJob) -> None:
        self._embeddings.pop(job.number, None)

    def encode_most(self, buffers: Buffers, images: int) -> list[Tensor]:
        rows = self._spec.merge
        grid = rows, len(buffers.crops) // self._spec.position_patches * rows
        found = self._encoder.encode(buffers.crops[: grid[0] * grid[1]], [grid])
        positions = images * (self._largest // self._spec.position_patches)
        return [torch.empty(len(found), positions, found.shape[2], dtype=found.dtype, device=found.device)]


class _Graph(NamedTuple):
    replay: Callable[[], None]
    encoding: Callable[[Tensor], Tensor]  # holds what the graph reads


class GraphedPatches:
    """An encoder of whole images that encodes single ones of sizes that come often as CUDA graphs.

    ```
    patches [P, bytes] ── copy ──> patches ── graph of the size ──> embeddings, until the next launch
                                   (fixed)                         (fixed)
    ```

    From Python the launches of a small image's kernels take longer than the kernels. A graph is captured at start for
    the `CAMERAS`, and while others wait for a size that has come `SIGHTINGS` times; the one that was not needed for
    longest gives way. Methods are called in inference mode.
    """

    def __init__(self, encoder: PatchEncoder, spec: PatchSpec, capturer: Capturer, device: torch.device) -> None:
        self._encoder, self._spec, self._capturer = encoder, spec, capturer
        self._patches = torch.zeros(
            min(MOST_PATCHES, spec.most_patches), spec.patch_bytes, dtype=torch.uint8, device=device
        )
        self._found = torch.empty(0, device=device)
        self._graphs: OrderedDict[Grid, _Graph | None] = OrderedDict()  # the latest at the end; None: it has failed
        self._sightings: OrderedDict[Grid, int] = OrderedDict()

    def encode(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Encode as the encoder does; what is returned is overwritten by the next call."""
        graph = self._graph_of(grids[0]) if len(grids) == 1 and len(patches) <= len(self._patches) else None
        if graph is None:
            return self._encoder.encode(patches, grids)
        self._patches[: len(patches)].copy_(patches)
        graph.replay()
        return self._found[:, : len(patches) // self._spec.position_patches]

    def encoding(self, grids: Sequence[Grid]) -> Callable[[Tensor], Tensor]:
        return self._encoder.encoding(grids)

    def capture(self) -> GraphReport:
        """Capture the sizes of cameras, the largest first, so that smaller ones find its memory in the pool."""
        with torch.inference_mode(), measured(self._capturer) as report:
            found = self._encoder.encode(*self._largest())
            self._found = torch.zeros_like(found)
            del found
            for grid in sorted(self._grids_of_cameras(), key=_area, reverse=True):
                self._capture(grid)
            return report(sum(graph is not None for graph in self._graphs.values()))

    def _largest(self) -> tuple[Tensor, list[Grid]]:
        rows = self._spec.merge
        columns = len(self._patches) // self._spec.position_patches * rows
        return self._patches[: rows * columns], [(rows, columns)]

    def _grids_of_cameras(self) -> set[Grid]:
        grids = {
            (rows * self._spec.merge, columns * self._spec.merge)
            for rows, columns in map(self._spec.positions_of, CAMERAS)
        }
        return {grid for grid in grids if _area(grid) <= len(self._patches)}

    def _graph_of(self, grid: Grid) -> _Graph | None:
        if grid not in self._graphs:
            seen = self._sightings[grid] = self._sightings.pop(grid, 0) + 1
            if seen < SIGHTINGS:
                if len(self._sightings) > _REMEMBERED:
                    self._sightings.popitem(last=False)
                return None
            del self._sightings[grid]
            with measured(self._capturer) as report:
                self._capture(grid)
                _logger.info(
                    "Images of %d x %d patches are encoded by a CUDA graph, captured in %.2f s",
                    *grid,
                    report(1).seconds,
                )
        self._graphs.move_to_end(grid)
        return self._graphs[grid]

    def _capture(self, grid: Grid) -> None:
        encoding, patches = self._encoder.encoding([grid]), self._patches[: _area(grid)]
        target = self._found[:, : len(patches) // self._spec.position_patches]

        def encode() -> None:
            target.copy_(encoding(patches))

        replay = try_capture(self._capturer, encode, f"images of {grid[0]} x {grid[1]} patches are encoded")
        self._graphs[grid] = None if replay is None else _Graph(replay, encoding)
        if len(self._graphs) > MOST_GRAPHS:  # the card has done all that was launched: a capture waits for it
            self._graphs.popitem(last=False)


def _area(grid: Grid) -> int:
    return grid[0] * grid[1]


def _images(groups: Sequence[CropGroup]) -> list[PatchImage]:
    """Return the images of a launch, each of which takes all of its job."""
    images = []
    for group in groups:
        crops = group.job.crops
        if not isinstance(crops, PatchImage) or group.count != group.job.total:
            raise AssertionError(f"job {group.job.number} is not encoded as a whole")
        images.append(crops)
    return images
