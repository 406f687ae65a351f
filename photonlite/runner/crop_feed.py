"""How crops get into an encode launch: copied from the host, or cut on the device from an image that was copied whole.

```
cut on the host    upload: crops ───────────────────────────────────> crops of the slot
uncut, at once     upload: image ─> compute: resize ──────────────> crops of the slot
uncut, in parts    upload: image ─> compute: resize ─> kept by job ─> crops of the slot, this launch and the next ones
```

An image is copied and resized by the launch of its first crop, and its buffer is free when the slot of that step is:
crops of later launches are kept in separate memory, which only the compute stream touches.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from photonlite.batch import CropGroup, EncodeJob
from photonlite.images.crops import CropSpec
from photonlite.images.packing import MOST_SCRATCH, pack_image
from photonlite.kernels.reference.vision import Filters
from photonlite.kernels.resize import cut_image
from photonlite.runner.buffers import Buffers, transfer
from photonlite.sequence import UncutImage


class CropFeed:
    """Brings the crops of encode launches to where the encoder reads them.

    `cuts` says whether it cuts images itself, which takes scratch memory.
    """

    def __init__(self, spec: CropSpec, device: torch.device, *, cuts: bool) -> None:
        self._spec = spec
        self._scratch = torch.empty(MOST_SCRATCH if cuts else 0, dtype=torch.uint8, device=device)
        self._kept: dict[int, Tensor] = {}

    def upload(self, buffers: Buffers, groups: Sequence[CropGroup]) -> None:
        """Copy finished crops, one after the other, and whole images with their first crop."""
        for group, place, start in _places(groups):
            crops = group.job.crops
            if not isinstance(crops, UncutImage):
                pixels = crops.pixels[group.first : group.first + group.count]
                transfer(buffers.crops[place : place + group.count], torch.from_numpy(pixels))
            elif group.first == 0:
                packed = torch.from_numpy(crops.packed)
                transfer(buffers.images[start : start + len(packed)], packed)

    def fill(self, buffers: Buffers, groups: Sequence[CropGroup]) -> Tensor:
        """Cut the missing crops; return those of all groups, uint8 ``[n, C, C, 3]``, one after the other."""
        end = 0
        for group, place, start in _places(groups):
            end = place + group.count
            if isinstance(group.job.crops, UncutImage):
                image = buffers.images[start : start + group.job.image_bytes]
                self._fill(group, group.job.crops, image, buffers.crops[place:end])
        return buffers.crops[:end]

    def rehearse(self, buffers: Buffers) -> None:
        """Cut the smallest image, so that the kernels are compiled before the first request."""
        image = pack_image(bytes(3), (1, 1), self._spec, lambda shape: torch.zeros(shape, dtype=torch.uint8).numpy())
        if image is None:
            raise AssertionError("an image of one pixel is too large to pack")
        packed = torch.from_numpy(image.packed)
        transfer(buffers.images[: len(packed)], packed)
        self._cut(image, buffers.images, buffers.crops[:1])

    def forget(self, job: EncodeJob) -> None:
        """Drop a job's crops."""
        self._kept.pop(job.number, None)

    def _fill(self, group: CropGroup, crops: UncutImage, image: Tensor, target: Tensor) -> None:
        if group.count == crops.count:
            self._cut(crops, image, target)
            return
        number, end = group.job.number, group.first + group.count
        if group.first == 0:
            self._kept[number] = target.new_empty(crops.count, *target.shape[1:])
            self._cut(crops, image, self._kept[number])
        # None where the first launch failed: so did the job, and what is encoded for it is dropped.
        kept = self._kept.get(number)
        if kept is not None:
            target.copy_(kept[group.first : end])
        if end == crops.count:
            self._kept.pop(number, None)

    def _cut(self, crops: UncutImage, image: Tensor, target: Tensor) -> None:
        """Cut all crops of the image at the beginning of `image`."""
        width, height = crops.size
        pixels = image[: 3 * width * height].view(height, width, 3)
        tables = [
            image[start : start + 4 * rows * columns].view(torch.int32).view(rows, columns)
            for start, rows, columns in crops.filters
        ]
        pairs = zip(tables[::2], tables[1::2], crops.down_first, strict=True)
        whole, sheet, *_ = *(Filters(*pair) for pair in pairs), None
        cut_image(pixels, whole, sheet, crops.tiling[1], self._spec.window, target, self._scratch)


def _places(groups: Sequence[CropGroup]) -> Iterator[tuple[CropGroup, int, int]]:
    """Yield each group with its first crop in the launch, and the first byte of its image if it begins one."""
    place = start = 0
    for group in groups:
        yield group, place, start
        place += group.count
        if group.first == 0:
            start += group.job.image_bytes
