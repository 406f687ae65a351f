"""Linear layers over a few rows, as decode steps have: weights are streamed once, everything else is fused into that.

Such a product moves every weight and does next to no arithmetic with it, so its time is that of reading memory, and
every separate operation costs a launch. One kernel therefore includes what comes before (layer norm) and after (bias,
GELU, residual):

```
x [M, K] ── norm ── @ weight [N, K].T ── + bias ─┬─ columns up to `split` ──────> raw
                                                 ├─ the others ── GELU ─────────> activated
                                                 └─ or all ── + residual ───────> x itself, and its row statistics
```

Several rows are normalised by a kernel in front, a single row inside the product: programs of a product see no whole
rows of their output, so each writes mean and variance of its own tile of columns, and the next product merges them
(Chan, Golub and LeVeque, 1979, "Updating formulae ... for computing sample variances").

A product with long rows and few outputs is cut along K: programs leave partial sums, and the last one to arrive adds
them up in a fixed order, so that results do not depend on which one that was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from photonlite.kernels import small_batch_gemm_kernels as device_code
from photonlite.kernels.reference import small_batch_gemm as reference
from photonlite.kernels.triton_utils import (
    HAS_TRITON,
    arrival_counters,
    dependent_launch,
    power_of_2,
    shared_memory,
    use_triton,
)  # fmt: skip

_SPARE = 4096  # bytes of shared memory for what is not a step of the loop

MAX_ROWS = 64  # rows that the kernels take: beyond them a product is no longer bound by the reading of weights


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is divided among programs."""

    outs: int  # weight rows of a program
    ins: int  # columns in one step of its loop
    parts: int = 1  # programs that share the same weight rows
    warps: int = 4
    stages: int = 4  # steps of the loop whose loads are under way together; 0 for the kernel for a single row


@dataclass(frozen=True, slots=True)
class Handshake:
    """Lets `linear_out` begin as soon as `linear_in` has ended, while the attention between them still runs."""

    ready: Tensor  # counts programs of `linear_in` that are done, int32 [1]; zero before the first step
    stale: Tensor  # that of the block before, whose `linear_out` has ended when this `linear_in` sets it to zero
    count: int  # programs of `linear_in`
    late: int  # leading columns of the input of `linear_out` that attention writes, for which it waits


def tiling_of(rows: int, outs: int, ins: int) -> Tiling:
    """Choose by measurement on an H200 (bench/results/gpu-notes.md); correct for any shape, if not the fastest."""
    wide = outs > 4096
    if rows == 1:
        return Tiling(8, 1024, 1, 4, 0) if wide else Tiling(4, 1024, 1, 2, 0)
    if wide:
        return Tiling(128, 128, 1, 8, 4 if rows <= 48 else 3)
    parts = max(1, min(4, ins // 1024))
    if rows <= 16:
        return Tiling(64, 256, parts, 4, 3)
    return Tiling(64, 128, parts, 4, 5 if rows <= 48 else 4)


def fitted(tiling: Tiling, width: int, itemsize: int, shared: int) -> Tiling:
    """Shrink a tensor-core tiling until its steps fit into `shared` bytes; `width` are the rows, padded."""
    stages, ins = tiling.stages, tiling.ins
    while stages * ins * (tiling.outs + width) * itemsize > shared - _SPARE:
        if stages > 2:
            stages -= 1
        elif ins > 32:
            ins //= 2
        else:
            raise ValueError(f"{shared} bytes of shared memory are too few for {tiling} and {width} rows")
    return replace(tiling, stages=stages, ins=ins)


def stats_width(outs: int, ins: int) -> int:
    """Return the columns of a tile of the statistics that `linear_out` writes."""
    return tiling_of(1, outs, ins).outs


def small_batch_gemm(
    x: Tensor,  # [M, K], M at most `MAX_ROWS` where the kernel runs
    weight: Tensor,  # [N, K], rows contiguous
    bias: Tensor | None,  # [N]
    *,
    norm: tuple[Tensor, Tensor, float] | None = None,  # weight [K], bias [K] and eps of a layer norm in front
    gelu: bool = False,  # whether the tanh approximation of GELU comes last
) -> Tensor:
    """Map a few rows: ``act(LN(x) @ weight.T + bias)``, ``[M, N]`` in the type of x.

    Sums and GELU are float32 and rounded once; the norm is computed in float32 and rounded to the type of x.
    """
    if not supported(x, weight):
        return reference.small_batch_gemm(x, weight, bias, norm=norm, gelu=gelu)
    if norm is not None:
        x = normalise(x, norm)
    result = x.new_empty(len(x), len(weight))
    run_product(x, weight, bias, raw=result, activated=result, split=0 if gelu else len(weight))
    return result


def linear_in(
    x: Tensor,  # [M, K]
    stats: Tensor | None,  # of a single row, from `tile_statistics` or `linear_out`; None for several
    weight: Tensor,  # [A + F, K], rows contiguous
    bias: Tensor,  # [A + F]
    norm: tuple[Tensor, Tensor, float],  # weight, bias and eps of the layer norm
    raw: Tensor,  # takes the first A columns, [M, A], last dimension contiguous
    activated: Tensor,  # takes the others, [M, F], last dimension contiguous
    handshake: Handshake | None = None,  # with the `linear_out` of the same block
) -> None:
    """Map the normalised residual stream into a block: queries, keys and values unchanged, the rest through GELU."""
    if not supported(x, weight):
        reference.linear_in(x, weight, bias, norm, raw, activated)
        return
    own_norm = None if stats is None else (stats, *norm)
    rows = normalise(x, norm) if stats is None else x
    run_product(
        rows, weight, bias, raw=raw, activated=activated, split=raw.shape[1], norm=own_norm, announces=handshake
    )


def linear_out(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, stats: Tensor | None, handshake: Handshake | None = None
) -> None:
    """Map a block's inside ``[M, K]`` back and add it to `residual`, ``[M, N]``, in place and with one rounding.

    For a single row `stats`, float32 ``[2, T, 1]`` for T tiles of `stats_width` columns, takes those of the new stream.
    """
    if not supported(x, weight):
        reference.linear_out(x, weight, bias, residual, stats)
        return
    run_product(
        x, weight, bias,
        raw=residual, activated=residual, split=len(weight), residual=True, new_stats=stats, awaits=handshake,
    )  # fmt: skip


def normalise(x: Tensor, norm: tuple[Tensor, Tensor, float]) -> Tensor:
    """Return the layer norm (weight, bias, eps) of a few rows ``[M, K]``; the arithmetic is float32."""
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    device_code.normalise_kernel[(rows,)](
        x, *norm[:2], out, width, x.stride(0), norm[2], WIDTH=power_of_2(width), num_warps=4, **dependent_launch(x)
    )  # fmt: skip
    return out


def tile_statistics(x: Tensor, width: int) -> Tensor:
    """Return means and sums of squared deviations of tiles of `width` (a power of two): float32 ``[2, T, M]``."""
    if not use_triton(x):
        return reference.tile_statistics(x, width)
    rows, outs = x.shape
    tiles = -(-outs // width)
    stats = torch.empty(2, tiles, rows, dtype=torch.float32, device=x.device)
    device_code.statistics_kernel[(tiles, rows)](x, stats, outs, TILE=width, num_warps=1, **dependent_launch(x))
    return stats


def supported(x: Tensor, weight: Tensor) -> bool:
    """Return whether the kernels take these: at most `MAX_ROWS` rows in a half precision, on a card."""
    few = x.is_cuda and HAS_TRITON and len(x) <= MAX_ROWS and x.dtype in (torch.bfloat16, torch.float16)
    return few and x.stride(1) == 1 and weight.stride(1) == 1


def programs_of(rows: int, outs: int, ins: int) -> int:
    """Return the number of programs of a product, as a `Handshake` counts them."""
    tiling = tiling_of(rows, outs, ins)
    return -(-outs // tiling.outs) * tiling.parts


def run_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    raw: Tensor,  # takes columns below `split`
    activated: Tensor,  # takes the others, through GELU
    split: int,
    residual: bool = False,  # whether `raw` is the residual stream that is added to
    norm: tuple[Tensor, Tensor, Tensor, float] | None = None,  # of a single row, beginning with its statistics
    new_stats: Tensor | None = None,  # of a single row: takes those of the new residual stream
    announces: Handshake | None = None,
    awaits: Handshake | None = None,
    tiling: Tiling | None = None,
) -> None:
    """Run the kernel for several rows or that for a single one, as the tiling says."""
    (rows, ins), outs = x.shape, len(weight)
    tiling, width = tiling or tiling_of(rows, outs, ins), max(16, power_of_2(rows))
    if tiling.stages:
        tiling = fitted(tiling, width, x.element_size(), shared_memory(x))
    programs, meeting = -(-outs // tiling.outs), announces or awaits
    met = (x, x) if meeting is None else (meeting.ready, meeting.stale)  # pointers that are not read without one
    constants: dict[str, Any] = {
        "INS": ins,
        "BIAS": bias is not None,
        "GELU": split < outs,
        "ANNOUNCE": announces is not None,
        "AWAITED": awaits.count if awaits is not None else 0,
        "LATE": awaits.late if awaits is not None else 0,
        "OUTS": tiling.outs,
        "STEP": tiling.ins,
        "num_warps": tiling.warps,
        **dependent_launch(x),
    }
    if tiling.stages:
        partial, counters = x, x
        if tiling.parts > 1:
            partial = torch.empty(tiling.parts, width, outs, dtype=torch.float32, device=x.device)
            counters = arrival_counters(x.device, programs)
        device_code.product_kernel[(programs, tiling.parts)](
            x, weight, x if bias is None else bias, raw, activated, partial, counters, *met,
            rows, outs, split, x.stride(0), weight.stride(0), raw.stride(0), activated.stride(0),
            RESIDUAL=residual, ROWS=width, PARTS=tiling.parts, STAGES=tiling.stages, **constants,
        )  # fmt: skip
        return
    if rows != 1:
        raise ValueError(f"the kernel takes a single row, not {rows}")
    if residual != (new_stats is not None) or (new_stats is not None and new_stats.shape[1] != programs):
        given = "none" if new_stats is None else f"{new_stats.shape[1]} tiles"
        raise ValueError(f"a residual stream has statistics of {programs} tiles, one a program; given are {given}")
    stats, gamma, beta, eps = norm if norm is not None else (x, x, x, 0.0)
    tiles = stats.shape[1] if norm is not None else 1
    device_code.single_kernel[(programs,)](
        x, weight, x if bias is None else bias, stats, gamma, beta, raw, activated,
        x if new_stats is None else new_stats, *met, outs, split, weight.stride(0), eps,
        NORM=norm is not None, RESIDUAL=residual, TILES=power_of_2(tiles),
        TILE=power_of_2(-(-ins // tiles)), TILES_OUT=programs, **constants,
    )  # fmt: skip
