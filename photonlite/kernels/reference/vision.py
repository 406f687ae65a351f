"""Cutting images into crops and patches, and joining their features, in PyTorch; see `kernels.{resize,vision}`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_FRACTION_BITS = 22
_HALF = 1 << (_FRACTION_BITS - 1)


class Filters(NamedTuple):
    """How an image is resized: one pass across, which changes its width, and one down, each from 8 bits to 8 bits.

    A filter is a table, int32 ``[1 + taps, length]``: for each of `length` pixels of the result the first pixel that it
    reads, then the coefficients of that one and the next with 22 fractional bits. Coefficients of pixels beyond the
    image are zero. `down_first` says which pass comes first: it changes the last bits.
    """

    across: Tensor
    down: Tensor
    down_first: bool


def cut_image(
    pixels: Tensor, whole: Filters, sheet: Filters | None, columns: int, window: int, out: Tensor, scratch: Tensor
) -> None:
    out[0] = _resized(pixels, whole)
    if sheet is None:
        return
    size, image = out.shape[1], _resized(pixels, sheet)
    for index in range(len(out) - 1):
        top, left = (window * step for step in divmod(index, columns))
        out[1 + index] = image[top : top + size, left : left + size]


def patch_rows(crops: Tensor, table: Tensor, patch: int, width: int) -> Tensor:
    grid = crops.shape[1] // patch
    patches = table[crops.long()].reshape(len(crops), grid, patch, grid, patch, -1)
    rows = patches.permute(0, 1, 3, 5, 2, 4).flatten(3).flatten(0, 2)
    return functional.pad(rows, (0, width - rows.shape[1]))


def join_views(features: Tensor, tiling: tuple[int, int], grid: int, margin: int) -> Tensor:
    overall = features[0]
    if tiling == (1, 1):
        return torch.cat((overall, overall), dim=-1)
    rows, columns = (_cells(count, grid, margin, features.device) for count in tiling)
    crop = rows[0][:, None] * tiling[1] + columns[0]  # [height, width]
    place = rows[1][:, None] * grid + columns[1]
    stitched = features[1 + crop, place].to(torch.promote_types(features.dtype, torch.float32))
    pooled = functional.adaptive_avg_pool2d(stitched.permute(2, 0, 1), (grid, grid))
    return torch.cat((overall, pooled.flatten(1).T.to(features.dtype)), dim=-1)


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


def _cells(count: int, grid: int, margin: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return for each cell along one side of the map the index of its crop and its place in that crop."""
    window = grid - 2 * margin
    cell = torch.arange(count * window + 2 * margin, device=device)
    index = ((cell - margin).clamp(min=0) // window).clamp(max=count - 1)
    return index, cell - index * window
