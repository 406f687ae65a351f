"""Attention of prompts over paged keys and values, on tensor cores.

A program takes a tile of consecutive queries of one row, of one head or of two that share keys and values, and folds
the row's positions, a block of keys and values at a time, into a running softmax (Dao et al., 2022, FlashAttention).
Pages are read in place:

```
positions   [0 .................. full) [full ... stop)    full: what every query of the tile sees, in whole blocks
            no mask                     masked             stop: what the last of them sees
```
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from photonlite.kernels.activations import capped
from photonlite.kernels.columns import QUERY_TILE, TILE_COLUMNS
from photonlite.kernels.paged_attention import check_pages, scale_and_cap
from photonlite.kernels.reference import attention as reference
from photonlite.kernels.triton_utils import power_of_2, tl, triton, use_triton


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """How a program attends."""

    block: int  # keys in one step of its loop
    warps: int
    stages: int  # steps whose loads are under way together
    shared: int = 1  # heads that it reads the same keys and values for; divides the heads that share them


def prefill_config(dim: int, itemsize: int, group: int = 1) -> PrefillConfig:
    """Choose for heads of `dim` numbers of `itemsize` bytes; measured on an H200 (bench/results/gpu-notes.md)."""
    row = power_of_2(max(dim, 16)) * itemsize
    if row > 256:
        return PrefillConfig(32, 8, 2)
    shared = 2 if group % 2 == 0 else 1
    return PrefillConfig(64, 4 * shared, 2, shared)


def shared_bytes(config: PrefillConfig, dim: int, itemsize: int = 2) -> int:
    """Return an upper bound of the shared memory of a program: its queries, and keys and values of every stage."""
    queries = QUERY_TILE * config.shared
    return (queries + 2 * config.stages * config.block) * power_of_2(max(dim, 16)) * itemsize


def paged_prefill_attention(
    q: Tensor,  # [T, H, D]: the rows' positions, one row after the other
    keys: Tensor,  # [pages, page, H_kv, D], the ones of `q` included; every H / H_kv query heads share one
    values: Tensor,  # [pages, page, H_kv, D]
    page_table: Tensor,  # int32 [R, P]: page of positions [0, page), [page, 2 page) and so on of each row
    tiles: Tensor,  # int32 [N, 5]: consecutive queries of one row each, see `kernels.columns`
    out: Tensor,  # [T, H D], of any strides with the last 1; written in place where tiles are
    *,
    k_scale: float = 1.0,  # of FP8, see `kernels.reference.attention.quantise`
    v_scale: float = 1.0,
    rule: reference.ScoreRule | None = None,  # without a window
    query_tile: int = QUERY_TILE,  # queries of a tile at most
    config: PrefillConfig | None = None,  # `prefill_config` unless given
) -> None:
    """Scaled dot-product attention of many positions of several rows, over keys and values that lie in pages.

    A query at position p sees ``[0, max(p + 1, block))``; anything behind that is ignored: it may belong to another
    sequence, or be NaN. On CUDA sums are float32, and the page size must be a power of two.
    """
    if not use_triton(q):
        reference.paged_prefill_attention(
            q, keys, values, page_table, tiles, out, k_scale=k_scale, v_scale=v_scale, rule=rule
        )
        return
    check_pages(keys, values, page_table)
    heads, dim = q.shape[1:]
    page, kv_heads = keys.shape[1:3]
    scale, cap = scale_and_cap(rule, dim)
    config = config or prefill_config(dim, q.element_size(), heads // kv_heads)
    _attend_kernel[(heads // config.shared, len(tiles))](
        q, keys, values, page_table, tiles, out, *keys.stride()[:3], page_table.stride(0), out.stride(0),
        scale * k_scale, v_scale, cap,
        HEADS=heads, GROUP=heads // kv_heads, DIM=dim, WIDTH=power_of_2(max(dim, 16)), PAGE=page,
        TILE=query_tile, SHARED=config.shared, TILE_COLUMNS=TILE_COLUMNS, BLOCK=config.block, STAGES=config.stages,
        CAPPED=cap > 0,
        # Tensor cores would round float32 to 10 bits.
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=config.warps,
    )  # fmt: skip


@triton.jit
def _fold(
    query: tl.tensor, keys: tl.tensor, values: tl.tensor, table: tl.tensor, best: tl.tensor, total: tl.tensor,
    sums: tl.tensor, begin: tl.tensor, stop: tl.tensor, limit: tl.tensor, page_stride: tl.tensor,
    place_stride: tl.tensor, scale: tl.tensor, cap: tl.tensor,
    DIM: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr, CAPPED: tl.constexpr, MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Fold positions ``[begin, stop)`` into the softmax; query i sees those below ``limit[i]``, all unless `MASKED`."""
    d = tl.arange(0, WIDTH)
    rest = 1.0 if CAPPED else scale  # scores without a cap are scaled behind their maximum, which costs no instruction
    for first in tl.range(begin, stop, BLOCK, num_stages=STAGES):
        at = first + tl.arange(0, BLOCK)
        if MASKED:
            page = tl.load(table + at // PAGE, mask=at < stop, other=0).to(tl.int64)
        else:
            page = tl.load(table + at // PAGE).to(tl.int64)
        cell = (page * page_stride + at % PAGE * place_stride)[:, None] + d[None, :]  # [N, D]
        if MASKED:
            mask = (at < stop)[:, None] & (d < DIM)[None, :]
            key = tl.load(keys + cell, mask=mask, other=0.0)
            value = tl.load(values + cell, mask=mask, other=0.0)
        elif WIDTH > DIM:
            key = tl.load(keys + cell, mask=(d < DIM)[None, :], other=0.0)
            value = tl.load(values + cell, mask=(d < DIM)[None, :], other=0.0)
        else:
            key = tl.load(keys + cell)
            value = tl.load(values + cell)
        score = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision=PRECISION)  # [M, N]
        if CAPPED:
            score = capped(score * scale, cap)
        if MASKED:
            score = tl.where(at[None, :] < limit[:, None], score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, axis=1) * rest)
        weight, fade = tl.exp2(score * rest - higher[:, None]), tl.exp2(best - higher)
        total = total * fade + tl.sum(weight, axis=1)
        sums = tl.dot(
            weight.to(query.dtype), value.to(query.dtype), sums * fade[:, None], input_precision=PRECISION
        )  # fmt: skip
        best = higher
    return best, total, sums


@triton.jit
def _attend_kernel(
    q: tl.tensor, keys: tl.tensor, values: tl.tensor, page_table: tl.tensor, tiles: tl.tensor, out: tl.tensor,
    page_stride: tl.tensor, place_stride: tl.tensor, head_stride: tl.tensor, table_stride: tl.tensor,
    out_stride: tl.tensor, scale: tl.tensor, v_scale: tl.tensor, cap: tl.tensor,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    TILE: tl.constexpr, SHARED: tl.constexpr, TILE_COLUMNS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr, CAPPED: tl.constexpr,
) -> None:  # fmt: skip
    """Attend with `SHARED` heads from ``SHARED * program_id(0)`` on, of tile `program_id(1)`."""
    head, tile = tl.program_id(0) * SHARED, tiles + tl.program_id(1) * TILE_COLUMNS
    row, first, count = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    position, block = tl.load(tile + 3), tl.load(tile + 4)
    if count > 0:
        offset, member = tl.arange(0, TILE * SHARED) % TILE, tl.arange(0, TILE * SHARED) // TILE
        d = tl.arange(0, WIDTH)
        real = (offset < count)[:, None] & (d < DIM)[None, :]
        column = ((head + member) * DIM)[:, None] + d[None, :]
        cell = (first + offset).to(tl.int64)[:, None] * (HEADS * DIM) + column
        query = tl.load(q + cell, mask=real, other=0.0)  # [M, D]
        limit = tl.maximum(position + 1 + offset, block)
        full = tl.maximum(position + 1, block) // BLOCK * BLOCK
        stop = tl.maximum(position + count, block)

        best = tl.full([TILE * SHARED], float("-inf"), tl.float32)
        total = tl.zeros([TILE * SHARED], tl.float32)
        sums = tl.zeros([TILE * SHARED, WIDTH], tl.float32)
        table = page_table + row.to(tl.int64) * table_stride
        start = (head // GROUP).to(tl.int64) * head_stride
        best, total, sums = _fold(
            query, keys + start, values + start, table, best, total, sums, 0, full, limit,
            page_stride, place_stride, scale, cap, DIM, WIDTH, PAGE, BLOCK, STAGES, PRECISION, CAPPED, False,
        )  # fmt: skip
        best, total, sums = _fold(
            query, keys + start, values + start, table, best, total, sums, full, stop, limit,
            page_stride, place_stride, scale, cap, DIM, WIDTH, PAGE, BLOCK, STAGES, PRECISION, CAPPED, True,
        )  # fmt: skip

        sums = sums * (v_scale / total)[:, None]
        cell = (first + offset).to(tl.int64)[:, None] * out_stride + column
        tl.store(out + cell, sums.to(out.dtype.element_ty), mask=real)
