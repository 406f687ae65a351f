"""Temperatures of queries and values: factors from a small product over all of a block's projections.

The product has few results and long rows: programs take parts of the columns, and the last one to arrive adds them up
in a fixed order, as in `kernels.small_batch_gemm`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from photonlite.kernels.activations import gelu
from photonlite.kernels.reference import temperature as reference
from photonlite.kernels.triton_utils import arrival_counters, dependent_launch, power_of_2, tl, triton, use_triton

STEP = 128  # columns in one step of a program's loop
FEW, COLUMNS = 64, 3 * STEP  # rows up to which programs have tiles of 16 rows, and columns of a part then
PROGRAMS = 128  # about as many are made for more rows


def temperatures(
    qkv: Tensor,  # [T, N], rows of any stride: queries, keys and values before the rotation
    weight: Tensor,  # [2 H, N], contiguous: rows for queries, then for values
    alpha: Tensor,  # [H]
    logs: Tensor,  # float32 [positions]: logarithms of the positions, counted from 1
    positions: Tensor,  # int32 [T], of any stride
    *,
    tanh_gelu: bool = False,  # whether GELU is the tanh approximation
) -> Tensor:
    """Return ``tanh(gelu(qkv) @ weight.T) + 1/2 + sigmoid(alpha log)``, float32 ``[T, 2 H]`` (float64 of float64)."""
    if not use_triton(qkv):
        return reference.temperatures(qkv, weight, alpha, logs, positions, tanh_gelu=tanh_gelu)
    rows, (outs, ins) = len(qkv), weight.shape
    block = 16 if rows <= FEW else 64
    tiles, most = -(-rows // block), -(-ins // COLUMNS)
    parts = most if rows <= FEW else min(most, power_of_2(max(1, PROGRAMS // tiles)))
    share = -(-ins // (parts * STEP)) * STEP
    out = torch.empty(rows, outs, dtype=torch.float32, device=qkv.device)
    partial = torch.empty(tiles, parts, outs, block, dtype=torch.float32, device=qkv.device)
    _temperatures_kernel[(tiles, parts)](
        qkv, weight, alpha, logs, positions, out, partial, arrival_counters(qkv.device, tiles),
        rows, qkv.stride(0), positions.stride(0),
        INS=ins, OUTS=outs, WIDTH=max(16, power_of_2(outs)), ROWS=block, STEP=STEP, SHARE=share, PARTS=parts,
        TANH=tanh_gelu, ASM=qkv.is_cuda, num_warps=4 if block == 16 else 8, **dependent_launch(qkv),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows"])
def _temperatures_kernel(
    qkv: tl.tensor, weight: tl.tensor, alpha: tl.tensor, logs: tl.tensor, positions: tl.tensor, out: tl.tensor,
    partial: tl.tensor, counters: tl.tensor, rows: tl.tensor, stride: tl.tensor, position_stride: tl.tensor,
    INS: tl.constexpr, OUTS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
    SHARE: tl.constexpr, PARTS: tl.constexpr, TANH: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply part `program_id(1)` of the columns of rows `program_id(0)`; the last to arrive finishes."""
    tile, part = tl.program_id(0), tl.program_id(1)
    n, m = tl.arange(0, WIDTH), tile * ROWS + tl.arange(0, ROWS)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = tl.zeros([WIDTH, ROWS], tl.float32)
    for step in tl.range(0, SHARE, STEP, num_stages=2):
        k = part * SHARE + step + tl.arange(0, STEP)
        w = tl.load(weight + n[:, None] * INS + k[None, :], mask=(n < OUTS)[:, None] & (k < INS)[None, :], other=0.0)
        cell = qkv + m.to(tl.int64)[:, None] * stride + k[None, :]
        a = tl.load(cell, mask=(m < rows)[:, None] & (k < INS)[None, :], other=0.0)
        wide = a.to(tl.float32)
        wide = gelu(wide, ASM) if TANH else 0.5 * wide * (1.0 + tl.erf(wide * 0.7071067811865476))
        total = tl.dot(w, tl.trans(wide.to(a.dtype)), total)
    there = (n < OUTS)[:, None] & (m < rows)[None, :]
    if PARTS == 1:
        _finish(total, alpha, logs, positions, out, n, m, there, position_stride, rows, OUTS)
    else:
        own = partial + tile * (PARTS * OUTS * ROWS) + n[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        tl.store(own + part * (OUTS * ROWS), total, mask=there)
        tl.debug_barrier()  # partial sums are stored before this program counts itself in
        if tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == PARTS - 1:
            whole = tl.zeros([WIDTH, ROWS], tl.float32)
            for other in tl.static_range(PARTS):
                whole += tl.load(own + other * (OUTS * ROWS), mask=there, other=0.0, cache_modifier=".cg")
            _finish(whole, alpha, logs, positions, out, n, m, there, position_stride, rows, OUTS)
            tl.store(counters + tile, 0)


@triton.jit
def _finish(
    total: tl.tensor, alpha: tl.tensor, logs: tl.tensor, positions: tl.tensor, out: tl.tensor, n: tl.tensor,
    m: tl.tensor, there: tl.tensor, position_stride: tl.tensor, rows: tl.tensor,
    OUTS: tl.constexpr,
) -> None:  # fmt: skip
    """Add the shares of the positions to tanh of the sums, and store the factors."""
    position = tl.load(positions + m * position_stride, mask=m < rows, other=0)
    log = tl.load(logs + position, mask=m < rows, other=0.0)
    slope = tl.load(alpha + n % (OUTS // 2), mask=n < OUTS, other=0.0).to(tl.float32)
    learned = 2.0 * tl.sigmoid(2.0 * total) - 1.0
    factor = learned + 0.5 + tl.sigmoid(slope[:, None] * log[None, :])
    tl.store(out + m[None, :] * OUTS + n[:, None], factor, mask=there)
