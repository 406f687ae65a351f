"""Sample backgrounds from the bank: one Triton program per tile of one scene."""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    HAS_TRITON = False
else:
    HAS_TRITON = True

ROWS, COLUMNS, WARPS = 8, 64, 4
_FLOATS = 2 * 6 + 2 * 12 + 11


def triton_take(
    texels: Tensor, entry: Tensor, place: Tensor, colour: Tensor, mask: Tensor, size: tuple[int, int]
) -> Tensor:
    """Take backgrounds as `bank.take` does; the result is float16."""
    height, width = size
    batch, (entries, side) = len(entry), texels.shape[:2]
    out = torch.empty(batch, 3, height, width, dtype=torch.float16, device=texels.device)
    floats = torch.cat((place.flatten(1), colour.flatten(1), mask), 1).contiguous()
    _take_kernel[(triton.cdiv(width, COLUMNS), triton.cdiv(height, ROWS), batch)](
        texels.view(torch.int32).view(entries, side, side),
        entry.contiguous(),
        floats,
        out,
        height,
        width,
        2 / height,
        2 / width,
        SIDE=side,
        FLOATS=_FLOATS,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        num_warps=WARPS,
    )
    return out


def _fetch(
    texels: tl.tensor, entry: tl.tensor, f: tl.tensor, g: tl.tensor, x: tl.tensor, y: tl.tensor, SIDE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Sample one entry and change its colours."""
    column = tl.load(f) * x + tl.load(f + 1) * y + tl.load(f + 2)
    row = tl.load(f + 3) * x + tl.load(f + 4) * y + tl.load(f + 5)
    column = tl.minimum(tl.maximum(column, 0.0), SIDE - 1.001)
    row = tl.minimum(tl.maximum(row, 0.0), SIDE - 1.001)
    c, r = column.to(tl.int32), row.to(tl.int32)
    right, down = column - c.to(tl.float32), row - r.to(tl.float32)
    at = texels + entry * (SIDE * SIDE) + r * SIDE + c
    red = tl.zeros_like(x)
    green = tl.zeros_like(x)
    blue = tl.zeros_like(x)
    for tap in tl.static_range(4):
        packed = tl.load(at + (tap // 2) * SIDE + tap % 2)
        down_share = down if tap // 2 == 1 else 1.0 - down
        right_share = right if tap % 2 == 1 else 1.0 - right
        weight = down_share * right_share / 255.0
        red += weight * (packed & 0xFF).to(tl.float32)
        green += weight * ((packed >> 8) & 0xFF).to(tl.float32)
        blue += weight * ((packed >> 16) & 0xFF).to(tl.float32)
    new_red = tl.load(g) * red + tl.load(g + 1) * green + tl.load(g + 2) * blue + tl.load(g + 3)
    new_green = tl.load(g + 4) * red + tl.load(g + 5) * green + tl.load(g + 6) * blue + tl.load(g + 7)
    new_blue = tl.load(g + 8) * red + tl.load(g + 9) * green + tl.load(g + 10) * blue + tl.load(g + 11)
    return new_red, new_green, new_blue


def _take(
    texels: tl.tensor,
    entries: tl.tensor,
    floats: tl.tensor,
    out: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    step_y: tl.tensor,
    step_x: tl.tensor,
    SIDE: tl.constexpr,
    FLOATS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    scene = tl.program_id(2)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None] + tl.zeros([ROWS, COLUMNS], tl.int32)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :] + tl.zeros([ROWS, COLUMNS], tl.int32)
    real = (row < height) & (column < width)
    x = (column.to(tl.float32) + 0.5) * step_x - 1.0
    y = (row.to(tl.float32) + 0.5) * step_y - 1.0
    f = floats + scene * FLOATS
    red, green, blue = _fetch_kernel(texels, tl.load(entries + scene * 2), f, f + 12, x, y, SIDE)
    w = f + 36
    if tl.load(w + 10) > 0:
        waves = tl.zeros_like(x)
        for i in tl.static_range(3):
            waves += tl.sin(tl.load(w + 3 * i) * x + tl.load(w + 3 * i + 1) * y + tl.load(w + 3 * i + 2))
        share = tl.sigmoid(waves * tl.load(w + 9))
        red2, green2, blue2 = _fetch_kernel(texels, tl.load(entries + scene * 2 + 1), f + 6, f + 24, x, y, SIDE)
        red += share * (red2 - red)
        green += share * (green2 - green)
        blue += share * (blue2 - blue)
    plane = height * width
    at = out + scene.to(tl.int64) * 3 * plane + row * width + column
    tl.store(at, tl.minimum(tl.maximum(red, 0.0), 1.0).to(tl.float16), mask=real)
    tl.store(at + plane, tl.minimum(tl.maximum(green, 0.0), 1.0).to(tl.float16), mask=real)
    tl.store(at + 2 * plane, tl.minimum(tl.maximum(blue, 0.0), 1.0).to(tl.float16), mask=real)


if HAS_TRITON:
    _fetch_kernel = triton.jit(_fetch)
    _take_kernel = triton.jit(_take)
