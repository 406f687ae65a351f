"""A mixture of experts for any number of rows: routing, one grouped product into the experts, and one out of them.

```
logits [T, E] ── route ── pairs (row, expert), sorted by expert ─┐
x [T, D] ────────────────────────── experts_in, gelu(h) (g + 1) ─┴─ experts_out, times share ── [T, K, D] ── sum, norm
```

A tile is up to so many pairs of one expert, so that the matrices of an expert are read once for all of them. How many
tiles each expert has is known on the device alone: a launch has as many programs as there can be tiles, and those
without one end at once. Nothing waits for the device, and a CUDA graph holds all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from photonlite.kernels import experts_kernels as device_code
from photonlite.kernels.fp8 import has_fp8
from photonlite.kernels.reference import experts as reference
from photonlite.kernels.reference.attention import FP8
from photonlite.kernels.reference.experts import ExpertWeight, Routes
from photonlite.kernels.triton_utils import dependent_launch, power_of_2, shared_memory, use_triton

BLOCK = 64  # rows that one program routes
FEW = 64  # rows up to which a step is bound by the reading of matrices

_SPARE = 8192  # bytes of shared memory for what is not a step of the loop


@dataclass(frozen=True, slots=True)
class GroupTiling:
    """How a grouped product is divided among programs."""

    rows: int  # pairs of a tile; a single one is multiplied without tensor cores
    outs: int  # results of each pair that a program computes
    step: int  # columns in one step of its loop
    warps: int
    stages: int  # steps of the loop whose loads are under way together


def tiling_in(tokens: int, experts: int, ranks: int, *, fp8: bool) -> GroupTiling:
    """Choose for `experts_in`, whose programs read two rows of weights for each result."""
    if tokens == 1:
        return GroupTiling(1, 8, 512, 4, 1) if fp8 else GroupTiling(1, 4, 1024, 4, 1)
    if tokens <= FEW:
        return GroupTiling(16, 64, 128, 4, 3) if fp8 and tokens > 16 else GroupTiling(16, 32, 128, 4, 4)
    rows = _rows(tokens, experts, ranks)
    return GroupTiling(rows, 128, 64, 8, 3) if rows >= 64 else GroupTiling(rows, 64, 128, 4, 3)


def tiling_out(tokens: int, experts: int, ranks: int, *, fp8: bool) -> GroupTiling:
    """Choose for `experts_out`."""
    if tokens == 1:
        return GroupTiling(1, 8, 1024, 4, 1)
    if tokens <= FEW:
        return GroupTiling(16, 64, 128, 4, 3 if fp8 else 4)
    rows = _rows(tokens, experts, ranks)
    return GroupTiling(rows, 128, 64, 8, 4) if rows >= 64 else GroupTiling(rows, 64, 128, 4, 4)


def _rows(tokens: int, experts: int, ranks: int) -> int:
    """Return the pairs of a tile in a prompt: about as many as an expert has on average."""
    return min(128, max(16, power_of_2(-(-tokens * ranks // experts))))


def most_tiles(tokens: int, experts: int, ranks: int, rows: int) -> int:
    """Return how many tiles of so many rows there can be, however the pairs fall."""
    pairs = tokens * ranks
    return pairs if rows == 1 else min(pairs, experts) + pairs // rows


def route(logits: Tensor, count: int) -> Routes:
    """Choose the `count` largest logits of each row ``[T, E]``, the first among equals; shares are their softmax."""
    if not use_triton(logits):
        return reference.route(logits, count)
    tokens, experts = logits.shape
    device, blocks, width = logits.device, -(-tokens // BLOCK), power_of_2(experts)
    order = torch.empty(tokens * count, dtype=torch.int32, device=device)
    starts = torch.empty(experts + 1, dtype=torch.int32, device=device)
    shares = torch.empty(tokens, count, dtype=logits.dtype, device=device)
    ranks, counts = order, order
    if blocks > 1:
        ranks = torch.empty(tokens, width, dtype=torch.int8, device=device)
        counts = torch.empty(blocks, width, dtype=torch.int32, device=device)
    constants: dict[str, Any] = {"EXPERTS": experts, "WIDTH": width, "RANKS": count, **dependent_launch(logits)}
    device_code.route_kernel[(blocks,)](
        logits, shares, order, starts, ranks, counts, tokens, logits.stride(0),
        ROWS=min(BLOCK, power_of_2(tokens)), ALONE=blocks == 1, num_warps=4 if tokens > 4 else 1, **constants,
    )  # fmt: skip
    if blocks > 1:
        device_code.sort_kernel[(blocks,)](
            order, starts, ranks, counts, tokens, ROWS=BLOCK, STEP=16, num_warps=4, **constants
        )
    return Routes(order, starts, shares)


def experts_in(x: Tensor, routes: Routes, weight: ExpertWeight, tiling: GroupTiling | None = None) -> Tensor:
    """Map rows ``[T, D]`` into their experts ``[E, 2 I, D]``: ``gelu(h) (g + 1)`` of each sorted pair, ``[T K, I]``.

    The first I rows of a matrix make h, the others g; GELU is exact. Sums are float32 and rounded once.
    """
    if not _supported(x, weight):
        return reference.experts_in(x, routes, weight)
    experts, inner, ins = _sizes(weight, halves=2)
    tiling = tiling or tiling_in(len(x), experts, routes.rank_count, fp8=weight.scale is not None)
    tiling = _fitted(tiling, x, weight, matrices=2)
    out = torch.empty(routes.shares.numel(), inner, dtype=x.dtype, device=x.device)
    tiles = most_tiles(len(x), experts, routes.rank_count, tiling.rows)
    device_code.experts_in_kernel[(-(-inner // tiling.outs), tiles)](
        x, weight.values, x if weight.scale is None else weight.scale, routes.order, routes.starts, out, x.stride(0),
        INS=ins, INNER=inner, RANKS=routes.rank_count, **_constants(x, weight, tiling),
    )  # fmt: skip
    return out


def experts_out(inside: Tensor, routes: Routes, weight: ExpertWeight, tiling: GroupTiling | None = None) -> Tensor:
    """Map sorted pairs ``[T K, I]`` out of their experts ``[E, D, I]``, times their shares: ``[T, K, D]``."""
    if not _supported(inside, weight):
        return reference.experts_out(inside, routes, weight)
    experts, outer, ins = _sizes(weight)
    tokens, ranks = routes.shares.shape
    tiling = tiling or tiling_out(tokens, experts, ranks, fp8=weight.scale is not None)
    tiling = _fitted(tiling, inside, weight, matrices=1)
    out = torch.empty(tokens, ranks, outer, dtype=inside.dtype, device=inside.device)
    tiles = most_tiles(tokens, experts, ranks, tiling.rows)
    device_code.experts_out_kernel[(-(-outer // tiling.outs), tiles)](
        inside, weight.values, inside if weight.scale is None else weight.scale, routes.order, routes.starts,
        routes.shares, out, INS=ins, OUTER=outer, **_constants(inside, weight, tiling),
    )  # fmt: skip
    return out


def add_and_norm(
    x: Tensor,  # [T, D], contiguous: the residual stream, to which is added in place
    parts: Tensor | None,  # [T, K, D], contiguous: what the experts of each row return
    shift: Tensor | None,  # [D]
    norm: tuple[Tensor, Tensor, float] | None,  # weight, bias and eps of a layer norm
) -> Tensor:
    """Add parts and shift to the stream, rounded once; return its layer norm, or itself without a norm."""
    if not use_triton(x):
        return reference.add_and_norm(x, parts, shift, norm)
    rows, width = x.shape
    weight, bias, eps = norm if norm is not None else (x, x, 0.0)
    normal = x if norm is None else torch.empty_like(x)
    device_code.add_and_norm_kernel[(rows,)](
        x, x if parts is None else parts, weight if shift is None else shift, weight, bias, normal, width, eps,
        PARTS=0 if parts is None else parts.shape[1], SHIFT=shift is not None, NORM=norm is not None,
        WIDTH=power_of_2(width), num_warps=4, **dependent_launch(x),
    )  # fmt: skip
    return normal


def _supported(x: Tensor, weight: ExpertWeight) -> bool:
    """Return whether the kernels take these: any floats, but e4m3 only where the card converts it."""
    quantised = weight.values.dtype == FP8
    return use_triton(x) and not (quantised and x.is_cuda and not has_fp8(x.device))


def _sizes(weight: ExpertWeight, halves: int = 1) -> tuple[int, int, int]:
    experts, outs, ins = weight.values.shape
    return experts, outs // halves, ins


def _constants(x: Tensor, weight: ExpertWeight, tiling: GroupTiling) -> dict[str, Any]:
    experts = len(weight.values)
    return {
        "EXPERTS": experts,
        "WIDTH": power_of_2(experts),
        "FP8": weight.scale is not None,
        "ROWS": tiling.rows,
        "OUTS": tiling.outs,
        "STEP": tiling.step,
        "STAGES": tiling.stages,
        "num_warps": tiling.warps,
        **dependent_launch(x),
    }


def _fitted(tiling: GroupTiling, x: Tensor, weight: ExpertWeight, matrices: int) -> GroupTiling:
    """Shrink a tiling until its steps fit into shared memory; a single row needs none."""
    stages, step, shared = tiling.stages, tiling.step, shared_memory(x) - _SPARE
    column = matrices * tiling.outs * weight.values.element_size() + tiling.rows * x.element_size()
    while tiling.rows > 1 and stages * step * column > shared:
        if stages > 2:
            stages -= 1
        elif step > 32:
            step //= 2
        else:
            raise ValueError(f"{shared} bytes of shared memory are too few for {tiling}")
    return GroupTiling(tiling.rows, tiling.outs, step, tiling.warps, stages)
