"""Attention of decode steps in one kernel: norms of heads, rotary embedding, the write of key and value, softmax.

A program takes one part of the positions of one key/value head of one row, and folds them into a running softmax
(Milakov and Gimelshein, 2018, "Online normalizer calculation for softmax"): keys and values are read once for all query
heads that share them. The one whose part ends with the new position rotates and writes its key and value, and uses
them as written: no other program reads them in this step.

```
positions of row b   [0 ............................ position)  new
part 0, 1, 2         [----------)[----------)[------)  ● rotated, written, folded in
the last to arrive   m = max m_i;  out = sum 2**(m_i - m) o_i / sum 2**(m_i - m) l_i
```

Cached keys and values were written by earlier steps: they are prefetched while the kernel in front still runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from photonlite.kernels.activations import capped
from photonlite.kernels.paged_attention import check_pages, scale_and_cap
from photonlite.kernels.quantised import GROUP
from photonlite.kernels.reference import attention as reference
from photonlite.kernels.reference.attention import FP8, HeadNorms, ScoreRule
from photonlite.kernels.small_batch_gemm_kernels import prefetch
from photonlite.kernels.triton_utils import arrival_counters, dependent_launch, power_of_2, tl, triton, use_triton

# The score of nothing seen: below every real one, and finite, so that differences are numbers.
_LEAST = -1e30
_LINE = 128  # bytes that one prefetch brings
_MERGED = 2048  # numbers that the merging program, of one warp or more, holds at a time
_WIDE_PROGRAMS, _MOST_WIDE_PARTS = 792, 24  # wide heads: six programs a multiprocessor; more parts merge slowly


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """How the work is divided among programs."""

    block: int  # positions in one step of a program's loop
    parts: int  # programs that share a head of a row
    warps: int = 1
    stages: int = 2  # steps of the loop whose loads are under way together
    ahead: int = 0  # positions prefetched into the L2 cache before a program waits for its query
    # Whether products run on tensor cores, which takes heads of at least 16 numbers. A row of queries is padded to 16
    # there, and still takes a third of the instructions.
    dot: bool = False


def attention_config(
    rows: int,
    kv_heads: int,
    positions: int,
    *,
    dim: int = 64,
    group: int = 1,
    fp8: bool = False,
    weight_group: int = 0,
) -> AttentionConfig:
    """Choose by measurement on an H200 (bench/results/gpu-notes.md); correct for any shape, if not the fastest.

    The product that waits beside attention has programs of its own: with weights in 8 or 4 bits (`weight_group`: their
    columns that share a scale) fewer and longer programs of attention go better with it (measured on an H100).
    """
    programs = rows * kv_heads
    if dim * group > 64:  # registers hold no block of products for each query head: tensor cores from the first row on
        most = 16 if programs <= 4 else _MOST_WIDE_PARTS
        parts = max(1, min(most, _WIDE_PROGRAMS // programs, positions // 32))
        return AttentionConfig(16, parts, 1 if dim <= 128 else 2, 5, dot=True)
    if programs <= 32:
        return AttentionConfig(16, max(1, min(27, positions // 32)), 1, 2, 32)
    if weight_group and not fp8:
        parts = max(1, min((1024 if weight_group <= GROUP else 1536) // programs, positions // 32))
        return AttentionConfig(16, parts, 1, 4 if parts > 1 else 5, dot=True)
    if fp8 and programs >= 1024:
        return AttentionConfig(64 if programs < 2048 else 32, 1, 1, 5, dot=True)
    # 1,024 programs in two parts are slower than in one, or in three.
    parts = 3 if programs == 1024 and not fp8 else -(-1536 // programs)
    stages = 5 if fp8 or 512 <= programs < 2048 else 4
    return AttentionConfig(16, max(1, min(parts, positions // 32)), 1, stages, dot=True)


def shared_bytes(config: AttentionConfig, dim: int, itemsize: int = 2) -> int:
    """Return an upper bound of the shared memory of a program that computes on tensor cores: queries, keys, values."""
    return (16 + 2 * config.stages * config.block) * power_of_2(dim) * itemsize


def decode_attention(
    qkv: Tensor,  # [B, (H + 2 H_kv) D], rows contiguous: queries, keys and values of the new positions, not rotated
    rotary: Tensor,  # cosines and sines, float32 [2, positions, R / 2]: the first R numbers of a head are rotated
    keys: Tensor,  # [pages, page, H_kv, D], the page size a power of two; written in place
    values: Tensor,  # the same, with the same strides
    page_table: Tensor,  # int32 [B, P], rows contiguous
    positions: Tensor,  # int32 [B]: of the new position; a row sees it and all before it
    slots: Tensor,  # int32 [B], with the strides of `positions`: page * page size + place where it is written
    out: Tensor,  # [B, H D], last dimension contiguous
    *,
    turns: Tensor | None = None,  # int32 [B], strided as `positions`: rows of `rotary`; `positions` unless given
    norms: HeadNorms | None = None,
    k_scale: float = 1.0,  # stored keys are keys divided by it, in FP8
    v_scale: float = 1.0,
    factors: Tensor | None = None,  # [B, H + H_kv], contiguous: of queries, and of values before they are stored
    weight_group: int = 0,  # see `attention_config`
    config: AttentionConfig | None = None,  # `attention_config` unless given
    rule: ScoreRule | None = None,  # without a window
    stored: bool = False,  # `qkv` has rotated queries alone, [B, H D], and pages have the new keys and values already
) -> None:
    """Rotate, write, attend; positions, turns, rotary, and the page table are read before the kernel in front ends."""
    turns = positions if turns is None else turns
    if not use_triton(qkv):
        reference.decode_attention(
            qkv, rotary, keys, values, page_table, positions, slots, out,
            turns=turns, norms=norms, k_scale=k_scale, v_scale=v_scale, factors=factors, rule=rule,
            stored=stored,
        )  # fmt: skip
        return
    check_pages(keys, values, page_table)
    if not positions.stride() == slots.stride() == turns.stride():
        given = f"positions with stride {positions.stride()}, slots with {slots.stride()}, turns with {turns.stride()}"
        raise ValueError(f"{given}: give the same")
    rows, page, kv_heads, dim = len(qkv), *keys.shape[1:]
    group = qkv.shape[1] // dim // kv_heads - (0 if stored else 2)
    fp8 = keys.dtype == FP8
    config = config or attention_config(
        rows, kv_heads, page_table.shape[1] * page, dim=dim, group=group, fp8=fp8, weight_group=weight_group
    )
    dot = config.dot and min(dim, config.block) >= 16
    scale, cap = scale_and_cap(rule, dim)
    q_gain, k_gain, eps = norms if norms is not None else (rotary, rotary, 0.0)  # pointers that are not read
    members, width = power_of_2(group), power_of_2(dim)
    partial, counters = qkv, qkv
    if config.parts > 1:
        partial = torch.empty(rows, kv_heads * group, config.parts, dim + 2, dtype=torch.float32, device=qkv.device)
        counters = arrival_counters(qkv.device, rows * kv_heads)
    _attend_kernel[(rows, kv_heads, config.parts)](
        qkv, rotary, keys, values, page_table, positions, slots, turns, q_gain, k_gain,
        rotary if factors is None else factors, out, partial, counters, qkv.stride(0), *keys.stride()[:3],
        page_table.stride(0), positions.stride(0), out.stride(0), rotary.stride(0), eps,
        scale * k_scale, 1.0 / k_scale, 1.0 / v_scale, v_scale, cap,
        GROUP=group, GROUP_WIDTH=max(16, members) if dot else members, MEMBERS=members,
        DIM=dim, DIM_WIDTH=width, HALF=rotary.shape[2], PAGE=page, BLOCK=config.block, DOT=dot,
        NORMED=norms is not None, FACTORS=factors is not None, PARTS=config.parts,
        PARTS_WIDTH=power_of_2(config.parts), CHUNK=max(1, _MERGED // (members * width)), STAGES=config.stages,
        AHEAD=config.ahead, LINE=_LINE // keys.element_size(), LEAST=_LEAST, FP8=fp8, CAPPED=cap > 0, STORED=stored,
        num_warps=config.warps, **dependent_launch(qkv),
    )  # fmt: skip


@triton.jit
def _attend_kernel(
    qkv: tl.tensor, rotary: tl.tensor, keys: tl.tensor, values: tl.tensor, page_table: tl.tensor,
    positions: tl.tensor, slots: tl.tensor, turns: tl.tensor, q_gain: tl.tensor, k_gain: tl.tensor, factors: tl.tensor,
    out: tl.tensor, partial: tl.tensor, counters: tl.tensor, qkv_stride: tl.tensor,
    page_stride: tl.tensor, place_stride: tl.tensor, head_stride: tl.tensor, table_stride: tl.tensor,
    row_stride: tl.tensor, out_stride: tl.tensor, sines: tl.tensor, eps: tl.tensor,
    scale: tl.tensor, k_inverse: tl.tensor, v_inverse: tl.tensor, v_scale: tl.tensor, cap: tl.tensor,
    GROUP: tl.constexpr, GROUP_WIDTH: tl.constexpr, MEMBERS: tl.constexpr, DIM: tl.constexpr, DIM_WIDTH: tl.constexpr,
    HALF: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr, NORMED: tl.constexpr,
    FACTORS: tl.constexpr, PARTS: tl.constexpr, PARTS_WIDTH: tl.constexpr, CHUNK: tl.constexpr, STAGES: tl.constexpr,
    AHEAD: tl.constexpr, LINE: tl.constexpr, LEAST: tl.constexpr, FP8: tl.constexpr, CAPPED: tl.constexpr,
    STORED: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Fold part `program_id(2)` of row `program_id(0)` into the heads that share key/value head `program_id(1)`."""
    row, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    position = tl.load(positions + row * row_stride)
    share = tl.cdiv(tl.cdiv(position + 1, BLOCK), PARTS) * BLOCK
    begin, stop = part * share, tl.minimum((part + 1) * share, position + (1 if STORED else 0))
    member, d = tl.arange(0, GROUP_WIDTH), tl.arange(0, DIM_WIDTH)
    pages = page_table + row.to(tl.int64) * table_stride
    if not STORED:
        cos, sin = _rotation(rotary + tl.load(turns + row * row_stride) * HALF, sines, d, HALF)
    if PDL:
        if AHEAD > 0:
            near = tl.minimum(begin + tl.arange(0, AHEAD), tl.maximum(stop - 1, 0))
            line = tl.load(pages + near // PAGE).to(tl.int64) * page_stride + near % PAGE * place_stride
            for column in tl.static_range(0, DIM, LINE):
                prefetch(keys + line + kv_head * head_stride + column)
                prefetch(values + line + kv_head * head_stride + column)
        tl.extra.cuda.gdc_wait()

    vector = qkv + row.to(tl.int64) * qkv_stride
    heads = kv_head * GROUP + member
    real = (member < GROUP)[:, None] & (d < DIM)[None, :]
    if STORED:
        query = tl.load(vector + heads[:, None] * DIM + d[None, :], mask=real, other=0.0).to(tl.float32)
    else:
        query = _turned(vector + heads[:, None] * DIM, q_gain, eps, cos, sin, d, member < GROUP, DIM, HALF, NORMED)
    v_factor = 1.0
    if FACTORS:
        factor = factors + row * ((GROUP + 1) * tl.num_programs(1))
        query *= tl.load(factor + heads, mask=member < GROUP, other=0.0)[:, None]
        v_factor = tl.load(factor + GROUP * tl.num_programs(1) + kv_head)
    query = query.to(qkv.dtype.element_ty)  # [G, D]
    scaled = query.to(tl.float32) * scale
    highest, divisor, merged = _fold_cached(
        query, scaled, keys, values, pages, begin, stop, d, kv_head, page_stride, place_stride, head_stride, scale, cap,
        CAPPED, GROUP_WIDTH, DIM, DIM_WIDTH, PAGE, BLOCK, DOT, STAGES, LEAST, FP8,
    )  # fmt: skip
    if not STORED:  # noqa: SIM102 -- a constant, and a number of the device
        if position // share == part:
            stored_key, stored_value = _write_new(
                vector + (GROUP * tl.num_programs(1) + kv_head) * DIM, keys, values, slots, k_gain, eps, row, kv_head,
                cos, sin, d, row_stride, page_stride, place_stride, head_stride, k_inverse, v_inverse, v_factor,
                DIM, HALF, PAGE, NORMED, FACTORS, FP8,
            )  # fmt: skip
            new_score = tl.sum(scaled * stored_key.to(tl.float32)[None, :], axis=1)
            if CAPPED:
                new_score = capped(new_score, cap)
            top = tl.maximum(highest, new_score)
            new_weight, old_weight = tl.exp2(new_score - top), tl.exp2(highest - top)
            divisor = divisor * old_weight + new_weight
            merged = merged * old_weight[:, None] + new_weight[:, None] * stored_value.to(tl.float32)[None, :]
            highest = top

    result = out + row.to(tl.int64) * out_stride + heads[:, None] * DIM + d[None, :]
    if PARTS == 1:
        tl.store(result, (merged * (v_scale / divisor)[:, None]).to(out.dtype.element_ty), mask=real)
    else:
        head = (row * tl.num_programs(1) + kv_head) * GROUP + member
        own = partial + (head * PARTS + part) * (DIM + 2)
        tl.store(own[:, None] + d[None, :], merged, mask=real)
        tl.store(own + DIM, highest, mask=member < GROUP)
        tl.store(own + DIM + 1, divisor, mask=member < GROUP)
        tl.debug_barrier()  # the whole part is stored before this program counts itself in
        counter = counters + row * tl.num_programs(1) + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == PARTS - 1:
            first = (row * tl.num_programs(1) + kv_head) * GROUP
            mixed = _merge_parts(
                partial, first, d, v_scale, GROUP, MEMBERS, DIM, DIM_WIDTH, PARTS, PARTS_WIDTH, CHUNK, LEAST
            )
            one = tl.arange(0, MEMBERS)
            place = out + row.to(tl.int64) * out_stride + (kv_head * GROUP + one)[:, None] * DIM + d[None, :]
            mask = (one < GROUP)[:, None] & (d < DIM)[None, :]
            tl.store(place, mixed.to(out.dtype.element_ty), mask=mask)
            tl.store(counter, 0)


@triton.jit
def _rotation(angle: tl.tensor, sines: tl.tensor, d: tl.tensor, HALF: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Load the cosine of each number of a head, and the sine with the sign for its half."""
    cos = tl.load(angle + d % HALF, mask=d < 2 * HALF, other=1.0)
    sin = tl.load(angle + sines + d % HALF, mask=d < 2 * HALF, other=0.0)
    return cos, tl.where(d < HALF, -sin, sin)


@triton.jit
def _turned(
    source: tl.tensor, gain: tl.tensor, eps: tl.tensor, cos: tl.tensor, sin: tl.tensor, d: tl.tensor, there: tl.tensor,
    DIM: tl.constexpr, HALF: tl.constexpr, NORMED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Load the heads at `source` ``[G, 1]``, normalise and rotate them: float32 ``[G, D]``, 0 where not `there` [G]."""
    real = there[:, None] & (d < DIM)[None, :]
    other = d + tl.where(d < HALF, HALF, -HALF)  # the number that each one is rotated with
    head = tl.load(source + d[None, :], mask=real, other=0.0).to(tl.float32)
    partner = tl.load(source + other[None, :], mask=real & (d < 2 * HALF)[None, :], other=0.0).to(tl.float32)
    if NORMED:
        inverse = tl.rsqrt(tl.sum(head * head, axis=1) / DIM + eps)[:, None]
        head *= inverse * tl.load(gain + d, mask=d < DIM, other=0.0).to(tl.float32)[None, :]
        partner *= inverse * tl.load(gain + other, mask=d < 2 * HALF, other=0.0).to(tl.float32)[None, :]
    return head * cos[None, :] + partner * sin[None, :]


@triton.jit
def _fold_cached(
    query: tl.tensor, scaled: tl.tensor, keys: tl.tensor, values: tl.tensor, pages: tl.tensor, begin: tl.tensor,
    stop: tl.tensor, d: tl.tensor, kv_head: tl.tensor,
    page_stride: tl.tensor, place_stride: tl.tensor, head_stride: tl.tensor, scale: tl.tensor, cap: tl.tensor,
    CAPPED: tl.constexpr, GROUP_WIDTH: tl.constexpr, DIM: tl.constexpr, DIM_WIDTH: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, STAGES: tl.constexpr, LEAST: tl.constexpr, FP8: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Fold cached positions ``[begin, stop)``; return largest scores [G], sums of weights [G] and of values [G, D]."""
    # 16 bits of either kind represent 8 bits exactly; float16 is the quicker conversion.
    compute: tl.constexpr = tl.float16 if FP8 else query.dtype
    slot = tl.arange(0, BLOCK)
    if DOT:
        factor = query.to(compute)
        best = tl.full([GROUP_WIDTH], LEAST, tl.float32)
        total = tl.zeros([GROUP_WIDTH], tl.float32)
        sums = tl.zeros([GROUP_WIDTH, DIM_WIDTH], tl.float32)
    else:
        # Each place of a block keeps its own softmax until the end: nothing crosses from lane to lane in the loop.
        best = tl.full([GROUP_WIDTH, BLOCK], LEAST, tl.float32)
        total = tl.zeros([GROUP_WIDTH, BLOCK], tl.float32)
        sums = tl.zeros([GROUP_WIDTH, BLOCK, DIM_WIDTH], tl.float32)
    cells = kv_head * head_stride + (slot % PAGE)[:, None] * place_stride + d[None, :]  # [N, D]
    for first in tl.range(begin, stop, BLOCK, num_stages=STAGES):
        seen = first + slot < stop
        mask = seen[:, None] & (d < DIM)[None, :]
        if BLOCK <= PAGE:
            page = tl.load(pages + first // PAGE).to(tl.int64)
            start = page * page_stride + first % PAGE * place_stride + cells
        else:
            page = tl.load(pages + (first + slot) // PAGE, mask=seen, other=0).to(tl.int64)
            start = page[:, None] * page_stride + cells
        key = tl.load(keys + start, mask=mask, other=0.0)
        value = tl.load(values + start, mask=mask, other=0.0)
        if DOT:
            score = tl.dot(factor, tl.trans(key.to(compute))) * scale  # [G, N]
        else:
            score = tl.sum(scaled[:, None, :] * key.to(tl.float32)[None, :, :], axis=2)
        if CAPPED:
            score = capped(score, cap)
        score = tl.where(seen[None, :], score, float("-inf"))
        if DOT:
            higher = tl.maximum(best, tl.max(score, axis=1))
            weight, fade = tl.exp2(score - higher[:, None]), tl.exp2(best - higher)
            sums = tl.dot(weight.to(compute), value.to(compute), sums * fade[:, None])
            total = total * fade + tl.sum(weight, axis=1)
        else:
            higher = tl.maximum(best, score)
            weight, fade = tl.exp2(score - higher), tl.exp2(best - higher)
            sums = sums * fade[:, :, None] + weight[:, :, None] * value.to(tl.float32)[None, :, :]
            total = total * fade + weight
        best = higher
    if DOT:
        highest, divisor, merged = best, total, sums
    else:
        highest = tl.max(best, axis=1)  # [G]
        share = tl.exp2(best - highest[:, None])
        divisor = tl.sum(total * share, axis=1)
        merged = tl.sum(sums * share[:, :, None], axis=1)  # [G, D]
    return highest, divisor, merged


@triton.jit
def _write_new(
    source: tl.tensor, keys: tl.tensor, values: tl.tensor, slots: tl.tensor, gain: tl.tensor, eps: tl.tensor,
    row: tl.tensor, kv_head: tl.tensor, cos: tl.tensor, sin: tl.tensor, d: tl.tensor,
    row_stride: tl.tensor, page_stride: tl.tensor, place_stride: tl.tensor, head_stride: tl.tensor,
    k_inverse: tl.tensor, v_inverse: tl.tensor, v_factor: tl.tensor,
    DIM: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr, NORMED: tl.constexpr, FACTORS: tl.constexpr,
    FP8: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Rotate the new key, store key and value; return them as stored."""
    one = tl.arange(0, 1)
    key = tl.sum(_turned(source + one[:, None], gain, eps, cos, sin, d, one == 0, DIM, HALF, NORMED), axis=0)
    value = tl.load(source + tl.num_programs(1) * DIM + d, mask=d < DIM, other=0.0)
    if FACTORS:
        value = (value.to(tl.float32) * v_factor).to(source.dtype.element_ty)
    stored_key = _stored(key.to(source.dtype.element_ty).to(tl.float32) * k_inverse, keys, FP8)
    stored_value = _stored(value.to(tl.float32) * v_inverse, values, FP8)
    place = tl.load(slots + row * row_stride)
    target = (place // PAGE).to(tl.int64) * page_stride + place % PAGE * place_stride + kv_head * head_stride
    tl.store(keys + target + d, stored_key, mask=d < DIM)
    tl.store(values + target + d, stored_value, mask=d < DIM)
    return stored_key, stored_value


@triton.jit
def _merge_parts(
    partial: tl.tensor, first: tl.tensor, d: tl.tensor, v_scale: tl.tensor,
    GROUP: tl.constexpr, MEMBERS: tl.constexpr, DIM: tl.constexpr, DIM_WIDTH: tl.constexpr, PARTS: tl.constexpr,
    PARTS_WIDTH: tl.constexpr, CHUNK: tl.constexpr, LEAST: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Merge what all programs of the heads from `first` on have left, ``[G, D]``: `CHUNK` parts at a time."""
    member, each = tl.arange(0, MEMBERS), tl.arange(0, PARTS_WIDTH)
    place = partial + (first + member) * (PARTS * (DIM + 2))
    found = place[:, None] + each[None, :] * (DIM + 2)  # [G, P]
    there = (member < GROUP)[:, None] & (each < PARTS)[None, :]
    bests = tl.load(found + DIM, mask=there, other=LEAST, cache_modifier=".cg")
    totals = tl.load(found + DIM + 1, mask=there, other=0.0, cache_modifier=".cg")
    highest = tl.max(bests, axis=1)
    whole = tl.sum(tl.exp2(bests - highest[:, None]) * totals, axis=1)
    mixed = tl.zeros([MEMBERS, DIM_WIDTH], tl.float32)
    for begin in tl.static_range(0, PARTS, CHUNK):
        part = begin + tl.arange(0, CHUNK)
        found = place[:, None] + part[None, :] * (DIM + 2)  # [G, C]
        there = (member < GROUP)[:, None] & (part < PARTS)[None, :]
        weights = tl.exp2(tl.load(found + DIM, mask=there, other=LEAST, cache_modifier=".cg") - highest[:, None])
        mask = there[:, :, None] & (d < DIM)[None, None, :]
        sums = tl.load(found[:, :, None] + d[None, None, :], mask=mask, other=0.0, cache_modifier=".cg")  # [G, C, D]
        mixed += tl.sum(weights[:, :, None] * sums, axis=1)
    return mixed * (v_scale / whole)[:, None]


@triton.jit
def _stored(value: tl.tensor, pages: tl.tensor, FP8: tl.constexpr) -> tl.tensor:
    """Convert a number to the type of the pages; 8 bits saturate."""
    if FP8:
        value = tl.clamp(value, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return value.to(pages.dtype.element_ty)
