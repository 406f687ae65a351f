"""Attention of single queries over paged keys and values.

A row is cut into as many parts as fill the device, and each program folds one part of one key/value head into a running
softmax (Milakov and Gimelshein, 2018, "Online normalizer calculation for softmax"). A second kernel merges the parts:

```
positions of row b   [0 ........ lengths[b])
part 0, 1, 2         [------)[------)[---)        largest score m, sum l of 2**(score - m), sum of 2**(score - m) * v
merge                m = max m_i;  out = sum 2**(m_i - m) o_i / sum 2**(m_i - m) l_i
```

The number of parts follows from shapes alone, and lengths are read on the device: a captured launch can be replayed.

Keys and values in FP8 become float32 when they have been loaded. Their scales are constants of a layer: that of keys
goes into the scale of the scores, that of values into the merge.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from photonlite.kernels import host_attention
from photonlite.kernels.reference import attention as reference
from photonlite.kernels.triton_utils import power_of_2, tl, triton, use_triton

PROGRAMS = 4096
"""Programs that a launch is cut into, about: 30 for each of the 100 to 150 multiprocessors of a large GPU."""

MOST_PARTS = 32  # parts of a row at most: more cost more to merge than they gain
TILE = 2048  # numbers of keys times query heads that a program holds at once, in the registers of its one warp


def check_pages(keys: Tensor, values: Tensor, page_table: Tensor) -> None:
    """Raise ValueError if the kernels cannot read pages of this size or memory layout."""
    if (page := keys.shape[1]) & (page - 1):
        raise ValueError(f"the page size is {page}: the kernel needs a power of two")
    if keys.stride() != values.stride() or keys.stride(3) != 1 or page_table.stride(1) != 1:
        raise ValueError(f"keys with strides {keys.stride()}, values with {values.stride()}: the kernel needs the same")


def scale_and_cap(rule: reference.ScoreRule | None, dim: int) -> tuple[float, float]:
    """Return `scale` and `cap` such that weights are ``exp2(score)``; `cap` is 0 where scores have none.

    A score is ``scale * q k``, or with a cap ``cap * tanh(scale * q k)`` (Gemma 2, 2024).
    """
    if rule is None:
        return math.log2(math.e) / math.sqrt(dim), 0.0
    if rule.window is not None:
        raise ValueError(f"the kernels see all positions, not {rule.window}")
    if rule.softcap is None:
        return math.log2(math.e) * rule.scale, 0.0
    return rule.scale / rule.softcap, math.log2(math.e) * rule.softcap


def parts_of(rows: int, kv_heads: int, positions: int, block: int) -> int:
    """Choose the parts that each row is cut into: enough to fill the device, no more than a full row has blocks."""
    return max(1, min(MOST_PARTS, -(-PROGRAMS // (rows * kv_heads)), -(-positions // block)))


def paged_attention(
    q: Tensor,  # [B, H, D]
    keys: Tensor,  # [pages, page, H_kv, D]; every H / H_kv query heads share one head
    values: Tensor,  # [pages, page, H_kv, D]
    page_table: Tensor,  # int32 [B, P]: page of positions [0, page), [page, 2 page) and so on
    lengths: Tensor,  # int32 [B]: row b sees positions [0, lengths[b]), at most P * page
    k_scale: float = 1.0,  # of FP8, see `kernels.reference.attention.quantise`
    v_scale: float = 1.0,
    rule: reference.ScoreRule | None = None,
) -> Tensor:
    """Attend from one query position a row to keys and values in pages: ``[B, H, D]``, zeros where a row sees nothing.

    Anything behind a row's positions is ignored: it may belong to another sequence, or be NaN. On CUDA the arithmetic
    is float32, nothing waits for the device, and the page size must be a power of two. With a rule the reference
    computes there.
    """
    if rule is not None or not use_triton(q):
        attend = host_attention.paged_attention if q.device.type == "cpu" else reference.paged_attention
        return attend(q, keys, values, page_table, lengths, k_scale, v_scale, rule)
    check_pages(keys, values, page_table)
    rows, heads, dim = q.shape
    page, kv_heads = keys.shape[1:3]
    group, group_width, dim_width = heads // kv_heads, power_of_2(heads // kv_heads), power_of_2(dim)
    block = max(16, min(128, TILE // (group_width * dim_width)))
    parts = parts_of(rows, kv_heads, page_table.shape[1] * page, block)
    best = torch.empty(rows, heads, parts, dtype=torch.float32, device=q.device)
    total, sums = torch.empty_like(best), best.new_empty(rows, heads, parts, dim)
    out = torch.empty(rows, heads, dim, dtype=q.dtype, device=q.device)
    shape = {"DIM": dim, "DIM_WIDTH": dim_width, "PARTS": parts}
    _attend_kernel[(rows, kv_heads, parts)](
        q.contiguous(), keys, values, page_table, lengths, best, total, sums,
        *keys.stride()[:3], page_table.stride(0), math.log2(math.e) / math.sqrt(dim) * k_scale,
        GROUP=group, GROUP_WIDTH=group_width, PAGE=page, BLOCK=block, num_warps=1, **shape,
    )  # fmt: skip
    _merge_kernel[(rows * heads,)](best, total, sums, out, v_scale, PARTS_WIDTH=power_of_2(parts), num_warps=1, **shape)
    return out


@triton.jit
def _attend_kernel(
    q: tl.tensor, keys: tl.tensor, values: tl.tensor, page_table: tl.tensor, lengths: tl.tensor, best_out: tl.tensor,
    total_out: tl.tensor, sums_out: tl.tensor, page_stride: tl.tensor, place_stride: tl.tensor, head_stride: tl.tensor,
    table_stride: tl.tensor, scale: tl.tensor,
    GROUP: tl.constexpr, GROUP_WIDTH: tl.constexpr, DIM: tl.constexpr, DIM_WIDTH: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """Fold part `program_id(2)` of row `program_id(0)` into the heads that share key/value head `program_id(1)`."""
    row, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    share = tl.cdiv(tl.cdiv(length, BLOCK), PARTS) * BLOCK
    stop = tl.minimum((part + 1) * share, length)

    member = tl.arange(0, GROUP_WIDTH)
    head = (row * tl.num_programs(1) + kv_head) * GROUP + member  # [G], of all rows
    d = tl.arange(0, DIM_WIDTH)
    real = (member < GROUP)[:, None] & (d < DIM)[None, :]
    query = tl.load(q + head[:, None] * DIM + d[None, :], mask=real, other=0.0).to(tl.float32) * scale  # [G, D]
    best = tl.full([GROUP_WIDTH], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_WIDTH], tl.float32)
    sums = tl.zeros([GROUP_WIDTH, DIM_WIDTH], tl.float32)
    for begin in range(part * share, stop, BLOCK):
        position = begin + tl.arange(0, BLOCK)
        seen = position < stop
        page = tl.load(page_table + row * table_stride + position // PAGE, mask=seen, other=0).to(tl.int64)
        start = page * page_stride + (position % PAGE) * place_stride + kv_head * head_stride
        cell = start[:, None] + d[None, :]  # [N, D]
        mask = seen[:, None] & (d < DIM)[None, :]
        key = tl.load(keys + cell, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(values + cell, mask=mask, other=0.0).to(tl.float32)
        score = tl.sum(query[:, None, :] * key[None, :, :], axis=2)  # [G, N]
        score = tl.where(seen[None, :], score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, axis=1))
        weight, fade = tl.exp2(score - higher[:, None]), tl.exp2(best - higher)
        sums = sums * fade[:, None] + tl.sum(weight[:, :, None] * value[None, :, :], axis=1)
        total = total * fade + tl.sum(weight, axis=1)
        best = higher

    place = head * PARTS + part
    tl.store(best_out + place, best, mask=member < GROUP)
    tl.store(total_out + place, total, mask=member < GROUP)
    tl.store(sums_out + place[:, None] * DIM + d[None, :], sums, mask=real)


@triton.jit
def _merge_kernel(
    best_in: tl.tensor, total_in: tl.tensor, sums_in: tl.tensor, out: tl.tensor, scale: tl.tensor,
    DIM: tl.constexpr, DIM_WIDTH: tl.constexpr, PARTS: tl.constexpr, PARTS_WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Merge the parts of one head of one row; rows that see nothing get zeros."""
    head = tl.program_id(0).to(tl.int64)
    part, d = tl.arange(0, PARTS_WIDTH), tl.arange(0, DIM_WIDTH)
    place = head * PARTS + part
    best = tl.load(best_in + place, mask=part < PARTS, other=float("-inf"))
    total = tl.load(total_in + place, mask=part < PARTS, other=0.0)
    mask = (part < PARTS)[:, None] & (d < DIM)[None, :]
    sums = tl.load(sums_in + place[:, None] * DIM + d[None, :], mask=mask, other=0.0)
    highest = tl.max(best, axis=0)
    weight = tl.exp2(best - tl.where(highest == float("-inf"), 0.0, highest))
    divisor = tl.sum(weight * total, axis=0)
    merged = tl.sum(weight[:, None] * sums, axis=0) / tl.where(divisor == 0.0, 1.0, divisor) * scale
    tl.store(out + head * DIM + d, merged.to(out.dtype.element_ty), mask=d < DIM)
