"""Lay sprites over a canvas: one Triton program per tile of one scene, which skips objects that do not touch it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    HAS_TRITON = False
else:
    HAS_TRITON = True

ROWS, COLUMNS, WARPS = 16, 32, 4
_FLOATS, _INTS = 20, 6
UNSEEN = 2**30


class Objects(NamedTuple):
    """Up to N objects of every scene, in the order of painting."""

    label: Tensor  # Class index, -1 for none, [B, N]
    level: Tensor  # Which blurred copy of the sprite, [B, N]
    transform: Tensor  # From the scene to the sprite, [B, N, 2, 3]
    tint: Tensor  # From premultiplied colour and alpha to colour, [B, N, 3, 4]
    drop: Tensor  # How far shadows fall to the right and down, as a share of the sprite, [B, 1]
    darkness: Tensor  # Alpha of the shadows, 0 for none, [B, 1]


def triton_blend(canvas: Tensor, texels: Tensor, objects: Objects, reach: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Blend as `blend.reference_blend` does, in place; `canvas` and `texels` are float16.

    Returns the object at each pixel, int8 [B, H, W], and the fields of `blend.VisibleExtent`.
    """
    if not (canvas.is_contiguous() and texels.is_contiguous()):
        raise ValueError("canvas and texels must be contiguous")
    if canvas.dtype != torch.float16 or texels.dtype != torch.float16:
        raise ValueError(f"canvas and texels must be float16, not {canvas.dtype} and {texels.dtype}")
    batch, _, height, width = canvas.shape
    levels, classes, side = texels.shape[:3]
    count = objects.label.shape[1]
    scene = torch.cat((objects.drop * side, objects.darkness), 1)[:, None].expand(-1, count, -1)
    floats = torch.cat((objects.transform.flatten(2), objects.tint.flatten(2), scene), 2).contiguous()
    kind = objects.label.clamp(min=0)
    base = torch.where(objects.label >= 0, objects.level * classes + kind, -1)
    softest = (levels - 1) * classes + kind
    ints = torch.cat((torch.stack((base, softest), 2).int(), reach), 2).contiguous()
    owner = torch.empty(batch, height, width, dtype=torch.int8, device=canvas.device)
    tally = torch.zeros(batch, count, dtype=torch.int32, device=canvas.device)
    least = torch.full((2, batch, count), UNSEEN, dtype=torch.int32, device=canvas.device)
    most = torch.full((2, batch, count), -1, dtype=torch.int32, device=canvas.device)
    _blend_kernel[(triton.cdiv(width, COLUMNS), triton.cdiv(height, ROWS), batch)](
        canvas,
        texels.view(torch.int64),  # the four channels of a texel in one load
        floats,
        ints,
        owner,
        tally,
        least,
        most,
        height,
        width,
        2 / height,
        2 / width,
        count,
        batch * count,
        SIDE=side,
        FLOATS=_FLOATS,
        INTS=_INTS,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        num_warps=WARPS,
    )
    return owner, (tally, least[0], least[1], most[1], most[0])


def _channel(packed: tl.tensor, SHIFT: tl.constexpr) -> tl.tensor:
    return ((packed >> SHIFT) & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


def _touches(ints: tl.tensor, left: tl.tensor, top: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    across = (tl.load(ints + 2) < left + COLUMNS) & (tl.load(ints + 4) > left)
    down = (tl.load(ints + 3) < top + ROWS) & (tl.load(ints + 5) > top)
    return (tl.load(ints) >= 0) & across & down


def _blend(
    canvas: tl.tensor,
    texels: tl.tensor,
    floats: tl.tensor,
    ints: tl.tensor,
    owners: tl.tensor,
    tally: tl.tensor,
    least: tl.tensor,
    most: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    step_y: tl.tensor,
    step_x: tl.tensor,
    count: tl.tensor,
    all_objects: tl.tensor,
    SIDE: tl.constexpr,
    FLOATS: tl.constexpr,
    INTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    scene = tl.program_id(2)
    left, top = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS
    row = top + tl.arange(0, ROWS)[:, None] + tl.zeros([ROWS, COLUMNS], tl.int32)
    column = left + tl.arange(0, COLUMNS)[None, :] + tl.zeros([ROWS, COLUMNS], tl.int32)
    real = (row < height) & (column < width)
    plane = height * width
    pixel = row * width + column
    at = canvas + scene.to(tl.int64) * 3 * plane + pixel
    red = tl.load(at, mask=real, other=0.0).to(tl.float32)
    green = tl.load(at + plane, mask=real, other=0.0).to(tl.float32)
    blue = tl.load(at + 2 * plane, mask=real, other=0.0).to(tl.float32)
    x = (column.to(tl.float32) + 0.5) * step_x - 1.0
    y = (row.to(tl.float32) + 0.5) * step_y - 1.0
    owner = tl.full([ROWS, COLUMNS], -1, tl.int32)
    for n in range(count):
        whole = ints + (scene * count + n) * INTS
        if _touches_kernel(whole, left, top, ROWS, COLUMNS):
            f = floats + (scene * count + n) * FLOATS
            u = tl.load(f) * x + tl.load(f + 1) * y + tl.load(f + 2)
            v = tl.load(f + 3) * x + tl.load(f + 4) * y + tl.load(f + 5)
            across = ((u + 1.0) * SIDE - 1.0) / 2.0
            down = ((v + 1.0) * SIDE - 1.0) / 2.0
            darkness = tl.load(f + 19)
            if darkness > 0:
                shift = tl.load(f + 18)
                near_r = tl.floor(down - shift + 0.5).to(tl.int32)
                near_c = tl.floor(across - shift + 0.5).to(tl.int32)
                cast = (near_r >= 0) & (near_r < SIDE) & (near_c >= 0) & (near_c < SIDE)
                texel = tl.load(whole + 1) * (SIDE * SIDE) + near_r * SIDE + near_c
                light = 1.0 - darkness * _channel_kernel(tl.load(texels + texel, mask=cast, other=0), 48)
                red, green, blue = red * light, green * light, blue * light
            first_r, first_c = tl.floor(down), tl.floor(across)
            weight_r, weight_c = down - first_r, across - first_c
            base = tl.load(whole) * (SIDE * SIDE)
            sr = tl.zeros([ROWS, COLUMNS], tl.float32)
            sg = tl.zeros([ROWS, COLUMNS], tl.float32)
            sb = tl.zeros([ROWS, COLUMNS], tl.float32)
            alpha = tl.zeros([ROWS, COLUMNS], tl.float32)
            for tap in tl.static_range(4):
                r = first_r.to(tl.int32) + tap // 2
                c = first_c.to(tl.int32) + tap % 2
                inside = (r >= 0) & (r < SIDE) & (c >= 0) & (c < SIDE)
                packed = tl.load(texels + base + r * SIDE + c, mask=inside, other=0)
                down_share = weight_r if tap // 2 == 1 else 1.0 - weight_r
                across_share = weight_c if tap % 2 == 1 else 1.0 - weight_c
                weight = down_share * across_share
                sr += weight * _channel_kernel(packed, 0)
                sg += weight * _channel_kernel(packed, 16)
                sb += weight * _channel_kernel(packed, 32)
                alpha += weight * _channel_kernel(packed, 48)
            t = f + 6
            new_r = tl.load(t) * sr + tl.load(t + 1) * sg + tl.load(t + 2) * sb + tl.load(t + 3) * alpha
            new_g = tl.load(t + 4) * sr + tl.load(t + 5) * sg + tl.load(t + 6) * sb + tl.load(t + 7) * alpha
            new_b = tl.load(t + 8) * sr + tl.load(t + 9) * sg + tl.load(t + 10) * sb + tl.load(t + 11) * alpha
            red = tl.minimum(tl.maximum(new_r, 0.0), alpha) + red * (1.0 - alpha)
            green = tl.minimum(tl.maximum(new_g, 0.0), alpha) + green * (1.0 - alpha)
            blue = tl.minimum(tl.maximum(new_b, 0.0), alpha) + blue * (1.0 - alpha)
            owner = tl.where(alpha > 0.5, n, owner)
    tl.store(at, red.to(tl.float16), mask=real)
    tl.store(at + plane, green.to(tl.float16), mask=real)
    tl.store(at + 2 * plane, blue.to(tl.float16), mask=real)
    tl.store(owners + scene.to(tl.int64) * plane + pixel, owner.to(tl.int8), mask=real)
    owner = tl.where(real, owner, -1)
    for n in range(count):
        place = scene * count + n
        if _touches_kernel(ints + place * INTS, left, top, ROWS, COLUMNS):
            mine = owner == n
            seen = tl.sum(mine.to(tl.int32))
            if seen > 0:
                tl.atomic_add(tally + place, seen, sem="relaxed")
                tl.atomic_min(least + place, tl.min(tl.where(mine, pixel, 1073741824)), sem="relaxed")
                tl.atomic_min(least + all_objects + place, tl.min(tl.where(mine, column, 1073741824)), sem="relaxed")
                tl.atomic_max(most + place, tl.max(tl.where(mine, row, -1)), sem="relaxed")
                tl.atomic_max(most + all_objects + place, tl.max(tl.where(mine, column, -1)), sem="relaxed")


if HAS_TRITON:
    _channel_kernel = triton.jit(_channel)
    _touches_kernel = triton.jit(_touches)
    _blend_kernel = triton.jit(_blend)
