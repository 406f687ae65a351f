"""Images on the device: crops are copied or cut, encoded in batches, and kept as embeddings until their prompt ran.

```
cut on the host    upload: crops ───────────────────────────────────> crops of the slot ─┐
uncut, at once     upload: image ─> compute: resize ────────────────> crops of the slot ─┼─> features ─> embeddings
uncut, in parts    upload: image ─> compute: resize ─> kept by job ─> crops of the slot ─┘   by job
```

An image is copied and resized by the launch of its first crop, and its buffer is free when the slot of that step is:
crops of later launches are kept in separate memory, which only the stream of the image's launches touches.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor

from photonlite.batch import CropGroup, EncodeJob
from photonlite.image_inputs import PatchImage, StoredImage, UncutImage
from photonlite.images.crops import CropSpec
from photonlite.images.packing import pack_image
from photonlite.kernels.adapters import AdapterRows
from photonlite.kernels.reference.vision import Filters
from photonlite.kernels.resize import cut_image
from photonlite.models.adapters.layers import AdapterBank
from photonlite.models.base import CropEncoder
from photonlite.runner.buffers import CropBuffers, transfer


class Images(Protocol):
    """Images of encode launches on the device: copied there, encoded, and kept by job until forgotten."""

    input_shape: tuple[int, ...]  # of the bytes that one launch encodes, at most

    def upload(self, buffers: CropBuffers, groups: Sequence[CropGroup]) -> None: ...

    def encode(self, buffers: CropBuffers, groups: Sequence[CropGroup], bank: AdapterBank | None = None) -> None:
        """Encode the groups' parts of images; with a bank some have adapters, and the bank's model encodes."""

    def work(self, groups: Sequence[CropGroup]) -> int:
        """Return about how many patches a launch encodes."""

    def embeddings(self, job: int) -> Tensor | None:
        """Return an image's embeddings ``[levels, n, dim]``; None where some part of it was not encoded."""

    def forget(self, job: EncodeJob) -> None: ...

    def encode_most(self, buffers: CropBuffers, images: int) -> list[Tensor]:
        """Encode the largest launch, and allocate what is kept of so many largest images, to measure memory."""


class ImageEncoder:
    """Encodes crops of several images at once, and cuts uncut ones; keeps intermediate results by job.

    Launches may run on two streams at a time: all those of a job are on one.
    """

    def __init__(self, encoder: CropEncoder, spec: CropSpec, *, max_crops: int = 0) -> None:
        self._encoder = encoder
        self._spec = spec
        self.input_shape: tuple[int, ...] = (max_crops, spec.crop_size, spec.crop_size, 3)
        self._crops: dict[int, Tensor] = {}
        self._features: dict[int, list[Tensor]] = {}
        self._embeddings: dict[int, Tensor] = {}

    def upload(self, buffers: CropBuffers, groups: Sequence[CropGroup]) -> None:
        """Copy finished crops, one after the other, and whole images with their first crop."""
        for group, place, start in _places(groups):
            crops = group.job.crops
            if not isinstance(crops, UncutImage):
                if isinstance(crops, PatchImage | StoredImage):
                    raise AssertionError(f"a {type(crops).__name__} was given to an encoder of crops")
                pixels = crops.pixels[group.first : group.first + group.count]
                transfer(buffers.crops[place : place + group.count], pixels)
            elif group.first == 0:
                transfer(buffers.images[start : start + len(crops.packed)], crops.packed)

    def encode(self, buffers: CropBuffers, groups: Sequence[CropGroup], bank: AdapterBank | None = None) -> None:
        """Encode the groups' crops in one batch; a job's last crop turns its features into embeddings."""
        crops = self.cut(buffers, groups)
        if bank is None:
            features = self._encoder.encode(crops)
        else:
            slots, counts = [group.adapter_slot for group in groups], [group.count for group in groups]
            with bank.running(AdapterRows.of(slots, counts, crops.device)) as model:
                features = cast(CropEncoder, model.vision).encode(crops)
        for group, found in zip(groups, torch.split(features, [group.count for group in groups]), strict=True):
            job = group.job
            if job.failed:
                self.forget(job)
                continue
            parts = self._features.setdefault(job.number, [])
            parts.append(found)
            if sum(map(len, parts)) == job.total:
                if isinstance(job.crops, PatchImage | StoredImage):
                    raise AssertionError(f"a {type(job.crops).__name__} was given to an encoder of crops")
                self._embeddings[job.number] = self._project(torch.cat(parts), job.crops.tiling, group, bank)[None]
                del self._features[job.number]

    def _project(self, features: Tensor, tiling: tuple[int, int], group: CropGroup, bank: AdapterBank | None) -> Tensor:
        if bank is None or not group.adapter_slot:
            return self._encoder.project(features, tiling)
        with bank.running(AdapterRows.of([group.adapter_slot], [1], features.device)) as model:
            return cast(CropEncoder, model.vision).project(features, tiling)

    def work(self, groups: Sequence[CropGroup]) -> int:
        return sum(group.count for group in groups) * (1 + self._spec.grid**2)

    def embeddings(self, job: int) -> Tensor | None:
        return self._embeddings.get(job)

    def forget(self, job: EncodeJob) -> None:
        for kept in (self._crops, self._features, self._embeddings):
            kept.pop(job.number, None)

    def cut(self, buffers: CropBuffers, groups: Sequence[CropGroup]) -> Tensor:
        """Cut the missing crops; return those of all groups, uint8 ``[n, C, C, 3]``, one after the other."""
        end = 0
        for group, place, start in _places(groups):
            end = place + group.count
            if isinstance(group.job.crops, UncutImage):
                image = buffers.images[start : start + group.job.image_bytes]
                self._cut_group(group, group.job.crops, image, buffers.crops[place:end], buffers.scratch)
        return buffers.crops[:end]

    def encode_most(self, buffers: CropBuffers, images: int) -> list[Tensor]:
        features = self._encoder.encode(buffers.crops)
        crops = images * (1 + self._spec.max_crops)
        return [features.new_empty(crops, *features.shape[1:]), buffers.crops.new_empty(crops, *self.input_shape[1:])]

    def rehearse(self, buffers: CropBuffers) -> None:
        """Cut the smallest image, so that the kernels are compiled before the first request."""
        black = memoryview(bytes(3))
        image = pack_image(black, (1, 1), self._spec, lambda shape: torch.zeros(shape, dtype=torch.uint8).numpy())
        if image is None:
            raise AssertionError("an image of one pixel is too large to pack")
        transfer(buffers.images[: len(image.packed)], image.packed)
        self._cut_image(image, buffers.images, buffers.crops[:1], buffers.scratch)

    def _cut_group(self, group: CropGroup, crops: UncutImage, image: Tensor, target: Tensor, scratch: Tensor) -> None:
        if group.count == crops.count:
            self._cut_image(crops, image, target, scratch)
            return
        number, end = group.job.number, group.first + group.count
        if group.first == 0:
            self._crops[number] = target.new_empty(crops.count, *target.shape[1:])
            self._cut_image(crops, image, self._crops[number], scratch)
        # None where the first launch failed: so did the job, and what is encoded for it is dropped.
        kept = self._crops.get(number)
        if kept is not None:
            target.copy_(kept[group.first : end])
        if end == crops.count:
            self._crops.pop(number, None)

    def _cut_image(self, crops: UncutImage, image: Tensor, target: Tensor, scratch: Tensor) -> None:
        """Cut all crops of the image at the beginning of `image`."""
        width, height = crops.size
        pixels = image[: 3 * width * height].view(height, width, 3)
        tables = [
            image[start : start + 4 * rows * columns].view(torch.int32).view(rows, columns)
            for start, rows, columns in crops.filters
        ]
        pairs = zip(tables[::2], tables[1::2], crops.down_first, strict=True)
        whole, sheet, *_ = *(Filters(*pair) for pair in pairs), None
        cut_image(pixels, whole, sheet, crops.tiling[1], self._spec.window, target, scratch)


def _places(groups: Sequence[CropGroup]) -> Iterator[tuple[CropGroup, int, int]]:
    """Yield each group with its first crop in the launch, and the first byte of its image if it begins one."""
    place = start = 0
    for group in groups:
        yield group, place, start
        place += group.count
        if group.first == 0:
            start += group.job.image_bytes
