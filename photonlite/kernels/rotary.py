"""The work between the two products of a decoder block in a prefill, except attention: one pass over the rows.

```
h [T, q | k | v | fc1]
      │   │   │    └── GELU ──────────────> cat [T, (attention) | inside]
      │   │   └───────────────────────────> values, at each position's page and place
      │   └── norm, rotate ───────────────> keys, likewise
      └── norm, rotate ───────────────────> q [T, H, D]
```

Positions may have three coordinates (time, height, width), of which each pair of numbers is turned by one.

It is bound by memory: each program moves a few thousand numbers of one position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from photonlite.kernels.activations import gelu
from photonlite.kernels.reference import attention as reference
from photonlite.kernels.reference.attention import FP8, HeadNorms
from photonlite.kernels.triton_utils import dependent_launch, power_of_2, tl, triton, use_triton

CHUNK = 2048  # numbers that a program moves, about


def rotary_gelu_write(
    h: Tensor,  # [T, (H + 2 H_kv) D + F]: queries, keys, values and the inside of the MLP, F >= 0
    positions: Tensor,  # int32 [T], of any stride, or [T, 3] with `axes`, contiguous
    slots: Tensor | None,  # int32 [T], page * page size + place: where keys and values are stored; None stores nothing
    rotary: Tensor,  # cosines and sines, float32 [2, positions, R / 2]: the first R numbers of a head are rotated
    keys: Tensor,  # [pages, page, H_kv, D], of any strides with the last 1; written in place
    values: Tensor,  # the same
    heads: int,  # query heads H; 0 where `h` has none
    *,
    axes: Tensor | None = None,  # int32 [R / 2]: the column of `positions` that turns each pair
    norms: HeadNorms | None = None,
    k_scale: float = 1.0,  # of FP8, see `kernels.reference.attention.quantise`
    v_scale: float = 1.0,
    factors: Tensor | None = None,  # [T, H + H_kv], contiguous: of queries, and of values before they are stored
) -> tuple[Tensor, Tensor]:
    """Split the first product: rotate queries and keys, store keys and values, activate the inside of the MLP.

    Returns queries ``[T, H, D]``, and ``[T, H D + F]``: room for the output of attention, then the activated inside.
    Heads are rotated in two halves, see `models.layers.rotate`. Of equal slots any may win.
    """
    if not use_triton(h):
        return reference.rotary_gelu_write(
            h, positions, slots, rotary, keys, values, heads,
            axes=axes, norms=norms, k_scale=k_scale, v_scale=v_scale, factors=factors,
        )  # fmt: skip
    count, page, kv_heads, dim = len(h), *keys.shape[1:]
    if keys.stride() != values.stride() or keys.stride(3) != 1:
        raise ValueError(f"keys with strides {keys.stride()}, values with {values.stride()}: the kernel needs the same")
    inside = h.shape[1] - (heads + 2 * kv_heads) * dim
    q = torch.empty(count, heads, dim, dtype=h.dtype, device=h.device)
    cat = torch.empty(count, heads * dim + inside, dtype=h.dtype, device=h.device)
    width, half = power_of_2(dim), rotary.shape[2]
    block = max(1, min(CHUNK // width, power_of_2(max(heads, kv_heads))))
    q_parts, kv_parts = -(-heads // block), -(-kv_heads // block) if slots is not None else 0
    parts = q_parts + 2 * kv_parts + -(-inside // CHUNK)
    q_gain, k_gain, eps = norms if norms is not None else (rotary, rotary, 0.0)  # pointers that are not read
    _rotary_gelu_write_kernel[(parts * count,)](
        h, positions, positions if axes is None else axes, positions if slots is None else slots, rotary, q_gain,
        k_gain, rotary if factors is None else factors, q, keys, values, cat,
        h.stride(0), positions.stride(0), 0 if slots is None else slots.stride(0), rotary.stride(0),
        *keys.stride()[:3], 1.0 / k_scale, 1.0 / v_scale, eps,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, WIDTH=width, HALF=half, HALF_WIDTH=power_of_2(half),
        REST_WIDTH=power_of_2(max(1, dim - 2 * half)), INSIDE=inside, PAGE=page, BLOCK=block, CHUNK=CHUNK,
        PARTS=parts, Q_PARTS=q_parts, KV_PARTS=kv_parts, AXES=axes is not None, NORMED=norms is not None,
        FACTORS=factors is not None, FP8=keys.dtype == FP8, ASM=h.is_cuda,
        num_warps=4, **dependent_launch(h),
    )  # fmt: skip
    return q, cat


def rotate_heads(
    qkv: Tensor,  # [T, at least 2 H D], contiguous: queries and keys, rotated in place, and whatever is behind them
    rotary: Tensor,  # cosines and sines of each row, float32 [2, T, D / 2], contiguous
    heads: int,  # H
) -> None:
    """Rotate the queries and keys of an image encoder, whose rows are patches, in two halves."""
    if not use_triton(qkv):
        reference.rotate_heads(qkv, rotary, heads)
        return
    half = rotary.shape[2]
    block = max(1, min(CHUNK // power_of_2(half), power_of_2(2 * heads)))
    _rotate_heads_kernel[(len(qkv), -(-2 * heads // block))](
        qkv, rotary, qkv.stride(0), rotary.stride(0),
        HEADS=2 * heads, HALF=half, HALF_WIDTH=power_of_2(half), BLOCK=block, num_warps=4, **dependent_launch(qkv),
    )  # fmt: skip


@triton.jit
def _rotate_heads_kernel(
    qkv: tl.tensor, rotary: tl.tensor, stride: tl.tensor, sines: tl.tensor,
    HEADS: tl.constexpr, HALF: tl.constexpr, HALF_WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    row, head = qkv + token * stride, tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    angle = rotary + token * HALF + tl.arange(0, HALF_WIDTH)
    _turn(
        row, row, rotary, 2 * HALF, head, angle, sines, rotary, 1.0, 0.0,
        HEADS, 2 * HALF, HALF, HALF_WIDTH, 1, False, False, False,
    )  # fmt: skip


@triton.jit
def _turn(
    source: tl.tensor, target: tl.tensor, gain: tl.tensor, head_stride: tl.tensor, head: tl.tensor, angle: tl.tensor,
    sines: tl.tensor, factors: tl.tensor, inverse: tl.tensor, eps: tl.tensor,
    HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, HALF_WIDTH: tl.constexpr, REST_WIDTH: tl.constexpr,
    NORMED: tl.constexpr, FACTORS: tl.constexpr, FP8: tl.constexpr,
) -> None:  # fmt: skip
    """Normalise, scale and rotate some heads and store them: both halves and the rest separately, each contiguous."""
    i = tl.arange(0, HALF_WIDTH)
    cos, sin = tl.load(angle, mask=i < HALF, other=0.0), tl.load(angle + sines, mask=i < HALF, other=0.0)
    mask = (head < HEADS)[:, None] & (i < HALF)[None, :]
    cell, place = source + head[:, None] * DIM + i[None, :], target + head[:, None] * head_stride + i[None, :]
    real = tl.load(cell, mask=mask, other=0.0).to(tl.float32)
    imag = tl.load(cell + HALF, mask=mask, other=0.0).to(tl.float32)
    d = 2 * HALF + tl.arange(0, REST_WIDTH)
    mask_rest = (head < HEADS)[:, None] & (d < DIM)[None, :]
    rest = tl.zeros([head.shape[0], REST_WIDTH], tl.float32)
    if DIM > 2 * HALF:
        rest = tl.load(source + head[:, None] * DIM + d[None, :], mask=mask_rest, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(real * real, axis=1) + tl.sum(imag * imag, axis=1) + tl.sum(rest * rest, axis=1)
        share = tl.rsqrt(squares / DIM + eps)[:, None]
        real *= share * tl.load(gain + i, mask=i < HALF, other=0.0).to(tl.float32)[None, :]
        imag *= share * tl.load(gain + HALF + i, mask=i < HALF, other=0.0).to(tl.float32)[None, :]
        if DIM > 2 * HALF:
            rest *= share * tl.load(gain + d, mask=d < DIM, other=0.0).to(tl.float32)[None, :]
    if FACTORS:
        factor = tl.load(factors + head, mask=head < HEADS, other=0.0)[:, None]
        real, imag, rest = real * factor, imag * factor, rest * factor
    # Rounded as the reference model rounds, before a cache in FP8 rounds again.
    first = (real * cos[None, :] - imag * sin[None, :]).to(source.dtype.element_ty)
    second = (real * sin[None, :] + imag * cos[None, :]).to(source.dtype.element_ty)
    tl.store(place, _stored(first.to(tl.float32) * inverse, target, FP8), mask=mask)
    tl.store(place + HALF, _stored(second.to(tl.float32) * inverse, target, FP8), mask=mask)
    if DIM > 2 * HALF:
        place = target + head[:, None] * head_stride + d[None, :]
        rest = rest.to(source.dtype.element_ty).to(tl.float32)
        tl.store(place, _stored(rest * inverse, target, FP8), mask=mask_rest)


@triton.jit
def _stored(number: tl.tensor, pages: tl.tensor, FP8: tl.constexpr) -> tl.tensor:
    """Convert numbers to the type of the pages: FP8 saturates, and NaN stays NaN."""
    if FP8:
        number = tl.minimum(tl.maximum(number, -448.0, tl.PropagateNan.ALL), 448.0, tl.PropagateNan.ALL)
    return number.to(pages.dtype.element_ty)


@triton.jit
def _rotary_gelu_write_kernel(
    h: tl.tensor, positions: tl.tensor, axes: tl.tensor, slots: tl.tensor, rotary: tl.tensor, q_gain: tl.tensor,
    k_gain: tl.tensor, factors: tl.tensor, q: tl.tensor, keys: tl.tensor, values: tl.tensor, cat: tl.tensor,
    h_stride: tl.tensor, position_stride: tl.tensor, slot_stride: tl.tensor, sines: tl.tensor, page_stride: tl.tensor,
    place_stride: tl.tensor, head_stride: tl.tensor, k_inverse: tl.tensor, v_inverse: tl.tensor, eps: tl.tensor,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    HALF_WIDTH: tl.constexpr, REST_WIDTH: tl.constexpr, INSIDE: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    CHUNK: tl.constexpr, PARTS: tl.constexpr, Q_PARTS: tl.constexpr, KV_PARTS: tl.constexpr, AXES: tl.constexpr,
    NORMED: tl.constexpr, FACTORS: tl.constexpr, FP8: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Do one of `PARTS` parts of a position: heads of queries, keys or values, or a piece of the MLP."""
    if PDL:
        tl.extra.cuda.gdc_wait()
    part, token = tl.program_id(0) % PARTS, (tl.program_id(0) // PARTS).to(tl.int64)
    row = h + token * h_stride
    member, i = tl.arange(0, BLOCK), tl.arange(0, HALF_WIDTH)
    position = positions + token * position_stride
    if AXES:
        turn = tl.load(position + tl.load(axes + i, mask=i < HALF, other=0), mask=i < HALF, other=0)
    else:
        turn = tl.load(position)
    factor = factors + token * (HEADS + KV_HEADS)
    angle = rotary + turn.to(tl.int64) * HALF + i  # of each pair
    if part < Q_PARTS:
        head = part * BLOCK + member
        _turn(
            row, q + token * (HEADS * DIM), q_gain, DIM, head, angle, sines, factor, 1.0, eps,
            HEADS, DIM, HALF, HALF_WIDTH, REST_WIDTH, NORMED, FACTORS, False,
        )  # fmt: skip
    elif part < Q_PARTS + 2 * KV_PARTS:
        head = (part - Q_PARTS) % KV_PARTS * BLOCK + member if KV_PARTS > 1 else member
        slot = tl.load(slots + token * slot_stride)
        place = (slot // PAGE).to(tl.int64) * page_stride + slot % PAGE * place_stride
        if part < Q_PARTS + KV_PARTS:
            _turn(
                row + HEADS * DIM, keys + place, k_gain, head_stride, head, angle, sines, factor, k_inverse, eps,
                KV_HEADS, DIM, HALF, HALF_WIDTH, REST_WIDTH, NORMED, False, FP8,
            )  # fmt: skip
        else:
            d = tl.arange(0, WIDTH)
            mask = (head < KV_HEADS)[:, None] & (d < DIM)[None, :]
            source = row + (HEADS + KV_HEADS) * DIM + head[:, None] * DIM + d[None, :]
            value = tl.load(source, mask=mask, other=0.0).to(tl.float32)
            if FACTORS:
                value *= tl.load(factor + HEADS + head, mask=head < KV_HEADS, other=0.0)[:, None]
                value = value.to(h.dtype.element_ty).to(tl.float32)
            cell = values + place + head[:, None] * head_stride + d[None, :]
            tl.store(cell, _stored(value * v_inverse, values, FP8), mask=mask)
    else:
        column = (part - Q_PARTS - 2 * KV_PARTS) * CHUNK + tl.arange(0, CHUNK)
        inside = column < INSIDE
        x = tl.load(row + (HEADS + 2 * KV_HEADS) * DIM + column, mask=inside, other=0.0).to(tl.float32)
        x = gelu(x, ASM)
        target = cat + token * (HEADS * DIM + INSIDE) + HEADS * DIM + column
        tl.store(target, x.to(cat.dtype.element_ty), mask=inside)
