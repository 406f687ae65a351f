"""Images that are encoded as a whole: the patches of several go through the encoder in one launch.

```
patches ── upload ──> patches of the slot, image after image ── encode ──> embeddings by job
```
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from photonlite.batch import CropGroup, EncodeJob
from photonlite.kernels.adapters import AdapterRows
from photonlite.kernels.autotune import fastest
from photonlite.kernels.triton_utils import Counters, counting_in
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.base import PatchEncoder, PatchSpec
from photonlite.runner.buffers import CropBuffers, transfer
from photonlite.runner.graphs import Capturer, GraphReport, capture_fastest, measured
from photonlite.sequence import UNIT_PATCHES, PatchImage

Grid = tuple[int, int]  # rows and columns of patches of an image

CAMERAS = ((640, 480), (800, 600), (1024, 768), (1280, 720), (1024, 1024), (1920, 1080))
"""Width and height of single images that are encoded by CUDA graphs."""

MOST_PATCHES = 8192
"""Patches of the largest graph: kernels of larger images take longer than their launches."""


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

    def upload(self, buffers: CropBuffers, groups: Sequence[CropGroup]) -> None:
        begin = 0
        for image in _images(groups):
            end = begin + len(image.patches)
            transfer(buffers.crops[begin:end], image.patches)
            begin = end

    def encode(self, buffers: CropBuffers, groups: Sequence[CropGroup], bank: AdapterBank | None = None) -> None:
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

    def encode_most(self, buffers: CropBuffers, images: int) -> list[Tensor]:
        rows = self._spec.merge
        grid = rows, len(buffers.crops) // self._spec.position_patches * rows
        found = self._encoder.encode(buffers.crops[: grid[0] * grid[1]], [grid])
        positions = images * (self._largest // self._spec.position_patches)
        return [torch.empty(len(found), positions, found.shape[2], dtype=found.dtype, device=found.device)]


class GraphedPatches:
    """An encoder of whole images that encodes single ones as CUDA graphs if they are of the size of a camera.

    ```
    patches [P, bytes] ── copy ──> patches ── graph of the size ──> embeddings, until the next launch
                                   (fixed)                         (fixed)
    ```

    From Python the launches of a small image's kernels take longer than the kernels. All graphs are captured at start:
    a capture stops the whole card, and fails where another thread waits for it. Each is captured with every attention,
    and the fastest is kept: cuDNN's is half again as fast for large images. Methods are called in inference mode.

    Attributes:
        in_part: Whether graphs of a part of the card are replayed, where there are some.
    """

    def __init__(self, encoder: PatchEncoder, spec: PatchSpec, device: torch.device) -> None:
        self._encoder, self._spec = encoder, spec
        most = min(MOST_PATCHES, spec.most_patches)
        self._patches = torch.zeros(most, spec.patch_bytes, dtype=torch.uint8, device=device)
        self._found = torch.empty(0, device=device)
        self._replays: dict[tuple[Grid, bool], Callable[[], None]] = {}
        self.in_part = False
        self._encodings: list[Callable[[Tensor], Tensor]] = []  # hold what the graphs read
        self._counters: Counters = {}  # of the graphs: other kernels may run at the same time

    def encode(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Encode as the encoder does; what is returned is overwritten by the next call."""
        keys = ((grids[0], self.in_part), (grids[0], False)) if len(grids) == 1 else ()
        replay = next((self._replays[key] for key in keys if key in self._replays), None)
        if replay is None:
            return self._encoder.encode(patches, grids)
        self._patches[: len(patches)].copy_(patches)
        replay()
        return self._found[:, : len(patches) // self._spec.position_patches]

    def encoding(self, grids: Sequence[Grid]) -> Callable[[Tensor], Tensor]:
        return self._encoder.encoding(grids)

    def capture(
        self,
        capturer: Capturer,
        choose: Callable[[Sequence[Callable[[], None]]], int] = fastest,
        *,
        in_part: bool = False,
    ) -> GraphReport:
        """Capture the sizes of cameras, largest first: later ones find its memory in the pool.

        It may be done once for the whole card, and once `in_part`: both are replayed on one stream.
        """
        with torch.inference_mode(), measured(capturer) as report, counting_in(self._counters):
            grids = sorted(self._grids_of_cameras(), key=_area, reverse=True)
            if grids and not len(self._found):
                largest = self._encoder.encode(self._patches[: _area(grids[0])], grids[:1])
                self._found = torch.zeros_like(largest)
                del largest
            for grid in grids:
                encoding = self._encoder.encoding([grid])
                what = f"images of {grid[0]} x {grid[1]} patches are encoded"
                if replay := capture_fastest(capturer, partial(self._run, grid, encoding), what, choose):
                    self._replays[grid, in_part] = replay
                    self._encodings.append(encoding)
            return report(sum(place == in_part for _, place in self._replays))

    def _run(self, grid: Grid, encoding: Callable[[Tensor], Tensor]) -> None:
        found = encoding(self._patches[: _area(grid)])
        self._found[:, : found.shape[1]].copy_(found)

    def _grids_of_cameras(self) -> set[Grid]:
        merge = self._spec.merge
        grids = {(rows * merge, columns * merge) for rows, columns in map(self._spec.positions_of, CAMERAS)}
        return {grid for grid in grids if _area(grid) <= len(self._patches)}


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
