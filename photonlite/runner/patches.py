"""Images that are encoded as a whole: the patches of several go through the encoder in one launch.

```
patches ── upload ──> patches of the slot, image after image ── encode ──> embeddings by job
```
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from photonlite.batch import CropGroup, EncodeJob
from photonlite.image_inputs import UNIT_PATCHES, PatchImage
from photonlite.kernels.adapters import AdapterRows
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.base import PatchEncoder, PatchSpec
from photonlite.runner.buffers import CropBuffers, transfer


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


def _images(groups: Sequence[CropGroup]) -> list[PatchImage]:
    """Return the images of a launch, each of which takes all of its job."""
    images = []
    for group in groups:
        crops = group.job.crops
        if not isinstance(crops, PatchImage) or group.count != group.job.total:
            raise AssertionError(f"job {group.job.number} is not encoded as a whole")
        images.append(crops)
    return images
