"""Input and output of the image encoder, one Triton kernel each.

```
crops, uint8 [n, C, C, 3] ── patch_rows ── [n * P, width] ── encoder ── features [n, P, D] ── join_views ── [P, 2 D]
```
"""

from __future__ import annotations

import torch
from torch import Tensor

from photonlite.kernels.reference import vision as reference
from photonlite.kernels.triton_utils import power_of_2, tl, triton, use_triton


def patch_rows(crops: Tensor, table: Tensor, patch: int, width: int) -> Tensor:
    """Cut crops, uint8 ``[n, C, C, channels]``, into patches ``[n * (C / patch) ** 2, width]``, mapped through `table`.

    A row has the ``channels * patch ** 2`` numbers of a patch, channel-major, and zeros behind them.
    """
    if not use_triton(crops):
        return reference.patch_rows(crops, table, patch, width)
    count, side, _, channels = crops.shape
    grid = side // patch
    out = torch.empty(count * grid * grid, width, dtype=table.dtype, device=crops.device)
    _patch_rows_kernel[(len(out),)](
        crops.contiguous(), table, out,
        GRID=grid, PATCH=patch, CHANNELS=channels, ROW=width, WIDTH=power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out


def join_views(features: Tensor, tiling: tuple[int, int], grid: int, margin: int) -> Tensor:
    """Put the features of an image's local crops beside those of the whole, patch by patch: ``[grid ** 2, 2 D]``.

    Local crops are stitched into one map, each without its margins where another adjoins, and the map is averaged
    into `grid` x `grid` overlapping bins: of n cells along a side, bin i covers
    ``[floor(i n / grid), ceil((i + 1) n / grid))``.

    Features are ``[1 + th * tw, grid ** 2, D]``, the whole first, and ``[1, grid ** 2, D]`` for a `tiling` of (1, 1).
    """
    if not use_triton(features):
        return reference.join_views(features, tiling, grid, margin)
    dim, window = features.shape[2], grid - 2 * margin
    rows, columns = tiling
    out = torch.empty(grid * grid, 2 * dim, dtype=features.dtype, device=features.device)
    _join_views_kernel[(grid * grid,)](
        features.contiguous(), out, rows, columns, rows * window + 2 * margin, columns * window + 2 * margin,
        LOCAL=tiling != (1, 1), GRID=grid, MARGIN=margin, DIM=dim, WIDTH=power_of_2(dim), num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _patch_rows_kernel(
    crops: tl.tensor, table: tl.tensor, out: tl.tensor,
    GRID: tl.constexpr, PATCH: tl.constexpr, CHANNELS: tl.constexpr, ROW: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Gather patch `program_id(0)`, of all crops."""
    number = tl.program_id(0).to(tl.int64)
    crop, place = number // (GRID * GRID), number % (GRID * GRID)
    column = tl.arange(0, WIDTH)
    channel, pixel = column // (PATCH * PATCH), column % (PATCH * PATCH)
    y = (place // GRID) * PATCH + pixel // PATCH
    x = (place % GRID) * PATCH + pixel % PATCH
    side = GRID * PATCH
    real = column < CHANNELS * PATCH * PATCH
    value = tl.load(crops + ((crop * side + y) * side + x) * CHANNELS + channel, mask=real, other=0).to(tl.int32)
    number_of = tl.load(table + value, mask=real, other=0.0)
    tl.store(out + number * ROW + column, number_of, mask=column < ROW)


# A compilation while serving, for a grid that no image had before, would take a fraction of a second.
@triton.jit(do_not_specialize=["rows", "columns", "height", "width"])
def _join_views_kernel(
    features: tl.tensor, out: tl.tensor, rows: tl.tensor, columns: tl.tensor, height: tl.tensor, width: tl.tensor,
    LOCAL: tl.constexpr, GRID: tl.constexpr, MARGIN: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Join the views of patch `program_id(0)`."""
    patch = tl.program_id(0)
    d = tl.arange(0, WIDTH)
    real = d < DIM
    overall = tl.load(features + patch * DIM + d, mask=real, other=0.0)
    tl.store(out + patch * 2 * DIM + d, overall, mask=real)
    local = overall
    if LOCAL:
        window: tl.constexpr = GRID - 2 * MARGIN
        top, bottom = (patch // GRID) * height // GRID, tl.cdiv((patch // GRID + 1) * height, GRID)
        left, right = (patch % GRID) * width // GRID, tl.cdiv((patch % GRID + 1) * width, GRID)
        sums = tl.zeros([WIDTH], tl.float32)
        for y in range(top, bottom):
            row = tl.minimum(tl.maximum(y - MARGIN, 0) // window, rows - 1)
            for x in range(left, right):
                column = tl.minimum(tl.maximum(x - MARGIN, 0) // window, columns - 1)
                cell = (y - row * window) * GRID + x - column * window
                place = (1 + row * columns + column) * GRID * GRID + cell
                sums += tl.load(features + place * DIM + d, mask=real, other=0.0).to(tl.float32)
        local = (sums / ((bottom - top) * (right - left))).to(overall.dtype)
    tl.store(out + patch * 2 * DIM + DIM + d, local, mask=real)
