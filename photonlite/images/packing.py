"""An image for a device that makes the crops itself: pixels and filters in one buffer, copied at once.

```
pixels [H, W, 3] │ across, whole │ down, whole │ across, sheet │ down, sheet        each from a multiple of 256 bytes on
```

A filter is a Lanczos table in the layout that `photonlite.kernels.resize` reads. It is computed where the image is
prepared, so that neither the engine's thread nor the device has to.
"""

import math
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from photonlite.images.crops import Allocator, CropSpec, select_tiling
from photonlite.images.lanczos import lanczos_table
from photonlite.images.resize import down_first
from photonlite.sequence import UncutImage

MOST_BYTES: Final = 3 * 4096 * 4096 + 2**20
"""Of a packed image: 16 million pixels and their filters. Larger images are cut on the host."""

MOST_SCRATCH: Final = 32 * 2**20
"""Bytes between the passes, for both resizes: images with too many crops for it are cut on the host."""

MOST_FILTERS: Final = 4 * 2**20
"""Bytes of all filters of an image, enough for a longer side of some 150,000 pixels.

A few kilobytes of PNG may be millions of pixels long, and take seconds and gigabytes to make filters for. Pillow, which
cuts such images on the host, makes them in C.
"""

_ALIGNMENT: Final = 256


def pack_image(pixels: bytes, size: tuple[int, int], spec: CropSpec, buffer: Allocator) -> UncutImage | None:
    """Copy RGB pixels ``[H, W, 3]`` of an image of `size` (width, height) and its filters into memory from `buffer`.

    None, without allocating, for an image over `MOST_BYTES`, `MOST_SCRATCH` or `MOST_FILTERS`.
    """
    width, height = size
    tiling = rows, columns = select_tiling(height, width, spec)
    sizes = [(spec.crop_size, spec.crop_size)]
    if tiling != (1, 1):
        sizes.append((columns * spec.window + 2 * spec.margin, rows * spec.window + 2 * spec.margin))
    order = tuple(down_first(size, new_size) for new_size in sizes)
    between = [width * new[1] if down else new[0] * height for new, down in zip(sizes, order, strict=True)]
    filters = sum(_filter_bytes(side, new_side) for new in sizes for side, new_side in zip(size, new, strict=True))
    if len(pixels) > MOST_BYTES or 3 * sum(between) > MOST_SCRATCH or filters > MOST_FILTERS:
        return None
    tables = [table for new in sizes for table in (_filter(width, new[0]), _filter(height, new[1]))]
    layout, end = [], _aligned(len(pixels))
    for table in tables:
        layout.append((end, *table.shape))
        end += _aligned(table.nbytes)
    if end > MOST_BYTES:
        return None
    packed = buffer((end,))
    packed[: len(pixels)] = np.frombuffer(pixels, np.uint8)
    for table, (start, _, _) in zip(tables, layout, strict=True):
        packed[start : start + table.nbytes] = table.reshape(-1).view(np.uint8)
    return UncutImage(packed, size, tiling, tuple(layout), order)


def _filter_bytes(in_size: int, out_size: int) -> int:
    """Upper bound of a filter's bytes: a window is six pixels of the side with the larger pixels wide."""
    return 4 * out_size * (1 + 2 + math.ceil(6 * max(1.0, in_size / out_size)))


@lru_cache(maxsize=256)
def _filter(in_size: int, out_size: int) -> npt.NDArray[np.int32]:
    """First pixels and coefficients, ``[1 + taps, out_size]``: neighbours in the result are adjacent in memory."""
    table = lanczos_table(in_size, out_size)
    return np.ascontiguousarray(np.vstack((table.first[None], table.coefficients.T)))


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
