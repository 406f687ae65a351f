"""An image for a device that makes the crops itself: pixels and filters in one piece of memory, copied at once.

```
pixels [H, W, 3] │ across, whole │ down, whole │ across, sheet │ down, sheet        each from a multiple of 256 bytes on
```

A filter is a Lanczos table in the form that `photonlite.kernels.resize` reads. It is made where the image is
prepared, so that the engine's thread and the device have nothing to compute.
"""

import math
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from photonlite.images.crops import Buffer, CropSpec, select_tiling
from photonlite.images.lanczos import lanczos_table
from photonlite.images.resize import down_first
from photonlite.sequence import UncutImage

MOST_BYTES: Final = 3 * 4096 * 4096 + 2**20
"""Of a packed image: 16 million pixels and their filters. Larger ones are cut on the host."""

MOST_SCRATCH: Final = 32 * 2**20
"""Bytes between the passes, for both resizes: where very many crops take more, the host cuts."""

MOST_FILTERS: Final = 4 * 2**20
"""Bytes of all filters of an image: what grows with the longer side is made here only as far as some 150,000 pixels.

A few kilobytes of PNG may be millions of pixels long, and take seconds and gigabytes to make filters for. Pillow, which
cuts such images on the host, makes them in C.
"""

_ALIGNMENT: Final = 256


def pack_image(pixels: bytes, size: tuple[int, int], spec: CropSpec, buffer: Buffer) -> UncutImage | None:
    """Put an image's pixels and its filters into one piece of memory.

    Args:
        pixels: RGB, ``[H, W, 3]``.
        size: Width and height.
        spec: How it is cut.
        buffer: Gives the memory; not asked for an image that is too large.

    Returns:
        The image; None where it is over `MOST_BYTES`, `MOST_SCRATCH` or `MOST_FILTERS`.
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
    places, end = [], _aligned(len(pixels))
    for table in tables:
        places.append((end, *table.shape))
        end += _aligned(table.nbytes)
    if end > MOST_BYTES:
        return None
    packed = buffer((end,))
    packed[: len(pixels)] = np.frombuffer(pixels, np.uint8)
    for table, (start, _, _) in zip(tables, places, strict=True):
        packed[start : start + table.nbytes] = table.reshape(-1).view(np.uint8)
    return UncutImage(packed, size, tiling, tuple(places), order)


def _filter_bytes(in_size: int, out_size: int) -> int:
    """Give what a filter takes at most: a window is six pixels wide, of whichever side has the larger ones."""
    return 4 * out_size * (1 + 2 + math.ceil(6 * max(1.0, in_size / out_size)))


@lru_cache(maxsize=256)
def _filter(in_size: int, out_size: int) -> npt.NDArray[np.int32]:
    """Give first pixels and coefficients, ``[1 + taps, out_size]``: neighbours in the result lie side by side."""
    table = lanczos_table(in_size, out_size)
    return np.ascontiguousarray(np.vstack((table.first[None], table.coefficients.T)))


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
