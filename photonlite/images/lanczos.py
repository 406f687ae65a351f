"""Pillow's Lanczos filter as integers: which pixels each output reads, and their coefficients.

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

FRACTION_BITS: Final = 22
"""Fractional bits of a coefficient: 32, less 8 for the pixel, one for the sign and one for overshoot."""

_LOBES: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class LanczosTable:
    """One axis of a resize: `out_size` windows onto `in_size` pixels; the arrays are shared and read-only.

    Attributes:
        first: First pixel of each window, int32 ``[out_size]``; never falls from one output to the next.
        count: Pixels in each window, at least one, int32 ``[out_size]``; `first + count` is at most `in_size`.
        coefficients: With `FRACTION_BITS` fractional bits, zero beyond the window, int32 ``[out_size, max(count)]``.
    """

    first: npt.NDArray[np.int32]
    count: npt.NDArray[np.int32]
    coefficients: npt.NDArray[np.int32]


@lru_cache(maxsize=256)
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
