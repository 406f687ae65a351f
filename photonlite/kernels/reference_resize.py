"""Cutting an image into crops in plain PyTorch: what the kernels of `photonlite.kernels.resize` are compared with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_FRACTION_BITS = 22
_HALF = 1 << (_FRACTION_BITS - 1)


class Filters(NamedTuple):
    """How an image is resized: one pass across, which changes its width, and one down, each from 8 bits to 8 bits.

    A filter is a table, int32 ``[1 + taps, length]``: for each of `length` pixels of the result the first pixel that it
    reads, then the coefficients of that one and the next with 22 fractional bits. Coefficients of pixels beyond the
    image are zero.

    Attributes:
        across: To the new width.
        down: To the new height.
        down_first: Which pass comes first; it shows in the last bits.
    """

    across: Tensor
    down: Tensor
    down_first: bool


def cut_image(
    pixels: Tensor, whole: Filters, sheet: Filters | None, columns: int, window: int, out: Tensor, scratch: Tensor
) -> None:
    """Resize an image twice, and cut the second result into overlapping crops.

    Args:
        pixels: uint8 ``[H, W, 3]``.
        whole: Makes the first crop, of C x C pixels.
        sheet: Makes what the other crops are cut from; None where there is only the first.
        columns: Crops in a row of the sheet.
        window: Pixels from one crop of the sheet to the next.
        out: uint8 ``[n, C, C, 3]``; the first is the whole image, the others follow row by row.
        scratch: uint8, at least as many bytes as the first passes of both resizes give; what it holds is lost.
    """
    out[0] = _resized(pixels, whole)
    if sheet is None:
        return
    size, image = out.shape[1], _resized(pixels, sheet)
    for index in range(len(out) - 1):
        top, left = (window * step for step in divmod(index, columns))
        out[1 + index] = image[top : top + size, left : left + size]


def _resized(pixels: Tensor, filters: Filters) -> Tensor:
    if filters.down_first:
        return _across(_down(pixels, filters.down), filters.across)
    return _down(_across(pixels, filters.across), filters.down)


def _across(pixels: Tensor, table: Tensor) -> Tensor:
    return _down(pixels.transpose(0, 1), table).transpose(0, 1)


def _down(pixels: Tensor, table: Tensor) -> Tensor:
    """Resize the first axis of ``[in, ..., 3]``."""
    first, coefficients = table[0].long(), table[1:]
    total = torch.full((len(first), *pixels.shape[1:]), _HALF, dtype=torch.int32, device=pixels.device)
    for tap, coefficient in enumerate(coefficients):
        read = pixels[(first + tap).clamp(max=len(pixels) - 1)]
        total += read.int() * coefficient[:, None, None]
    return (total >> _FRACTION_BITS).clamp(0, 255).to(torch.uint8)
