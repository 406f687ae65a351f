"""An image for a device that makes the crops itself: pixels and filters in one buffer, copied at once.

```
pixels [H, W, 3] │ across, whole │ down, whole │ across, sheet │ down, sheet        each from a multiple of 256 bytes on
```

A filter is a table of Pillow's Lanczos filter in the layout that `photonlite.kernels.resize` reads.

Pillow resizes 8-bit images in two passes, one along each axis, and each goes from 8 bits to 8 bits. An output is
`clip((half + sum(pixel * coefficient)) >> 22, 0, 255)` in 32-bit integers, where half is `1 << 21`. A pass between
equal lengths is left out; a table for it changes nothing. The same arithmetic with these tables gives the same pixels
to the last bit on any device. The order of the passes matters for the last bits: see `resize.down_first`.

The windows follow from the lengths alone:

```
scale    in_size / out_size                     support  3 * max(scale, 1)
center   (i + 0.5) * scale                      window   int(center - support + 0.5) .. int(center + support + 0.5)
weight   sinc(t) * sinc(t / 3),   t = (x - center + 0.5) / max(scale, 1),   normalised to a sum of 1 over the window
```
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from photonlite.image_inputs import UncutImage
from photonlite.images.crops import Allocator, CropSpec, select_tiling
from photonlite.images.resize import down_first

# Limits in bytes; larger images are cut on the host.
MOST_BYTES: Final = 3 * 4096 * 4096 + 2**20  # of a packed image: 16 million pixels and their filters
MOST_SCRATCH: Final = 32 * 2**20  # between the passes, for both resizes
# Enough for a side of 150,000 pixels, more than `ImageLimits.max_side` lets in by default.
MOST_FILTERS: Final = 4 * 2**20
_KEPT: Final = 64  # filters of recent sizes, of up to 1.6 MB

FRACTION_BITS: Final = 22  # of a coefficient: 32, less 8 for the pixel, one for the sign and one for overshoot
_ALIGNMENT: Final = 256
_LOBES: Final = 3


def pack_image(pixels: memoryview, size: tuple[int, int], spec: CropSpec, buffer: Allocator) -> UncutImage | None:
    """Copy RGB pixels ``[H, W, 3]`` and filters into memory from `buffer`; None, without allocating, over a limit."""
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


@lru_cache(maxsize=_KEPT)
def _filter(in_size: int, out_size: int) -> npt.NDArray[np.int32]:
    """First pixels and coefficients, ``[1 + taps, out_size]``: neighbours in the result are adjacent in memory."""
    table = lanczos_table(in_size, out_size)
    return np.ascontiguousarray(np.vstack((table.first[None], table.coefficients.T)))


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True, eq=False)
class LanczosTable:
    """One axis of a resize: `out_size` windows onto `in_size` pixels; the arrays are shared and read-only."""

    first: npt.NDArray[np.int32]  # [out_size]: first pixel of each window, non-decreasing
    count: npt.NDArray[np.int32]  # [out_size]: pixels in each window, at least one
    coefficients: npt.NDArray[np.int32]  # [out_size, max(count)]: `FRACTION_BITS` fractional bits, 0 beyond the window


@lru_cache(maxsize=_KEPT)
def lanczos_table(in_size: int, out_size: int) -> LanczosTable:
    """Compute the windows and coefficients of one axis, in double precision and in Pillow's order of operations."""
    if in_size < 1 or out_size < 1:
        raise AssertionError(f"lanczos_table resizes {in_size} to {out_size} pixels: both must be at least 1")
    scale = in_size / out_size
    stretch = max(scale, 1.0)
    support = _LOBES * stretch
    center = (np.arange(out_size) + 0.5) * scale
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    count = np.minimum((center + support + 0.5).astype(np.int64), in_size) - first
    taps = np.arange(int(count.max()))
    offset = ((first[:, None] + taps) - center[:, None] + 0.5) * (1.0 / stretch)
    weights = np.where(taps < count[:, None], _lanczos(offset), 0.0)
    # Pillow adds from left to right; `sum` would add in pairs, and the last bits would differ.
    total = weights.cumsum(axis=1)[:, -1:]
    # Rounded half away from zero.
    scaled = weights / total * (1 << FRACTION_BITS)
    coefficients = (scaled + np.copysign(0.5, scaled)).astype(np.int32)
    table = LanczosTable(first.astype(np.int32), count.astype(np.int32), coefficients)
    for array in (table.first, table.count, table.coefficients):
        array.flags.writeable = False
    return table


def _lanczos(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where((x >= -_LOBES) & (x < _LOBES), _sinc(x) * _sinc(x / _LOBES), 0.0)


def _sinc(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # np.sinc would replace zero by a tiny number.
    angle = x * math.pi
    return np.divide(np.sin(angle), angle, out=np.ones_like(angle), where=angle != 0)
