"""Linear layers over a few rows, as decode steps have: weights are streamed once, everything else is fused into that.

Such a product moves every weight and does next to no arithmetic with it, so its time is that of reading memory, and
every separate operation costs a launch. One kernel therefore includes what comes before (norm) and after (bias, GELU
or SwiGLU, residual):

```
x [M, K] ── norm ── @ weight [N, K].T ── + bias ─┬─ columns up to `split` ──────> raw
                                                 ├─ the others ── GELU ─────────> activated
                                                 ├─ or all, in pairs ── SwiGLU ─> activated, N / 2 columns
                                                 └─ or all ── + residual ───────> x itself, and its row statistics
```

Several rows are layer-normalised by a kernel in front, a single row inside the product: programs of a product see no
whole rows of their output, so each writes mean and variance of its own tile of columns, and the next product merges
them (Chan, Golub and LeVeque, 1979, "Updating formulae ... for computing sample variances"). What an RMS norm divides
by is a factor of the whole row, which a product applies to its sums: see `kernels.serial_block`.

A product with long rows and few outputs is cut along K: programs leave partial sums, and the last one to arrive adds
them up in a fixed order, so that results do not depend on which one that was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from photonlite.kernels import row_kernels, tilings
from photonlite.kernels import small_batch_gemm_kernels as device_code
from photonlite.kernels.quantised import Weight, dense, obstacle
from photonlite.kernels.reference import small_batch_gemm as reference
from photonlite.kernels.reference.row_adapters import RowTerms
from photonlite.kernels.row_adapters import expansion
from photonlite.kernels.tilings import SEVERAL, Tiling, fitted
from photonlite.kernels.triton_utils import (
    INTERPRETED,
    arrival_counters,
    dependent_launch,
    has_triton,
    power_of_2,
    shared_memory,
    tl_dtype,
    use_triton,
)  # fmt: skip

_LEAST_WIDTH, _LEAST_QUANTISED = 16, 8  # rows that a product on tensor cores has at least
MAX_ROWS = 64  # rows that the kernels take: beyond them a product is no longer bound by the reading of weights


@dataclass(frozen=True, slots=True)
class Scales:
    """Half of an RMS norm: rows times its weight, and what they are still to be divided by."""

    rows: Tensor  # [M, K], contiguous: a residual stream times the weight of its norm, rounded once
    squares: Tensor  # [T, M], at least float32: sums of squares of T tiles of columns of the stream
    eps: float


@dataclass(frozen=True, slots=True)
class Handshake:
    """Lets `linear_out` begin as soon as `linear_in` has ended, while the attention between them still runs."""

    ready: Tensor  # counts programs of `linear_in` that are done, int32 [1]; zero before the first step
    stale: Tensor  # that of the block before, whose `linear_out` has ended when this `linear_in` sets it to zero
    count: int  # programs of `linear_in`
    late: int  # leading columns of the input of `linear_out` that attention writes, for which it waits


def small_batch_gemm(
    x: Tensor,  # [M, K], M at most `MAX_ROWS` where the kernel runs
    weight: Weight,  # [N, K], rows contiguous
    bias: Tensor | None,  # [N]
    *,
    # Weight [K], bias [K] and eps of a layer norm in front; without a bias it is an RMS norm.
    norm: tuple[Tensor, Tensor | None, float] | None = None,
    gelu: bool = False,  # whether the tanh approximation of GELU comes last
) -> Tensor:
    """Map a few rows: ``act(norm(x) @ weight.T + bias)``, ``[M, N]`` in the type of x.

    Sums and GELU are float32 and rounded once; the norm is computed in float32 and rounded to the type of x.
    """
    if not supported(x, weight):
        return reference.small_batch_gemm(x, dense(weight, x.dtype), bias, norm=norm, gelu=gelu)
    result = x.new_empty(len(x), len(weight))
    if norm is not None:
        x = normalise(x, norm, input_dtype(weight, x.dtype))
    run_product(x, weight, bias, raw=result, activated=result, split=0 if gelu else len(weight))
    return result


def linear_in(
    x: Tensor,  # [M, K]
    stats: Tensor | None,  # of a single row, from `tile_statistics` or `linear_out`; None for several
    weight: Weight,  # [A + F, K], rows contiguous
    bias: Tensor,  # [A + F]
    norm: tuple[Tensor, Tensor, float] | None,  # weight, bias and eps of the layer norm; None where x is normalised
    raw: Tensor,  # takes the first A columns, [M, A], last dimension contiguous
    activated: Tensor,  # takes the others, [M, F], last dimension contiguous
    handshake: Handshake | None = None,  # with the `linear_out` of the same block
    added: RowTerms | None = None,  # of adapters
) -> None:
    """Map the normalised residual stream into a block: queries, keys and values unchanged, the rest through GELU."""
    if not supported(x, weight):
        reference.linear_in(x, dense(weight, x.dtype), bias, norm, raw, activated, added)
        return
    own_norm = None if stats is None or norm is None else (stats, *norm)
    rows = x if own_norm is not None or norm is None else normalise(x, norm, input_dtype(weight, x.dtype))
    run_product(
        rows, weight, bias,
        raw=raw, activated=activated, split=raw.shape[1], norm=own_norm, announces=handshake, added=added,
    )  # fmt: skip


def linear_out(
    x: Tensor, weight: Weight, bias: Tensor, residual: Tensor, stats: Tensor | None, handshake: Handshake | None = None,
    added: RowTerms | None = None,
) -> None:  # fmt: skip
    """Map a block's inside ``[M, K]`` back and add it to `residual`, ``[M, N]``, in place and with one rounding.

    For a single row `stats`, float32 ``[2, T, 1]`` for T tiles of `stats_width` columns, takes those of the new stream.
    """
    if not supported(x, weight):
        reference.linear_out(x, dense(weight, x.dtype), bias, residual, stats, added)
        return
    run_product(
        x, weight, bias,
        raw=residual, activated=residual, split=len(weight), residual=True, new_stats=stats, awaits=handshake,
        added=added,
    )  # fmt: skip


def linear_into(
    out: Tensor, x: Tensor, weight: Weight, bias: Tensor | None, *, gated: bool = False, gelu: bool = False,
    handshake: Handshake | None = None,
) -> None:  # fmt: skip
    """Write ``x @ weight.T + bias``, ``[M, N]`` in the type of `out`; if `gated`, SwiGLU of it, as in `norm_linear`.

    Gates go through GELU in its place where `gelu` is set.

    With a handshake it takes the place of a block's `linear_out`.
    """
    if not supported(x, weight):
        reference.linear_into(out, x, dense(weight, x.dtype), bias, gated=gated, gelu=gelu)
        return
    run_product(
        x, weight, bias,
        raw=out, activated=out, split=0 if gated else len(weight), gated=gated, gelu=gelu, awaits=handshake,
    )  # fmt: skip


def input_dtype(weight: Weight, dtype: torch.dtype) -> torch.dtype:
    """Return the type in which the kernels take the inputs of a weight fastest, in a model of type `dtype`.

    One instruction makes two numbers in float16 of two in 8 bits; bfloat16 takes four. Norms, attention and GELU fit
    into float16, whose numbers are the more exact ones.
    """
    return dtype if isinstance(weight, Tensor) or dtype != torch.bfloat16 else torch.float16


def normalise(x: Tensor, norm: tuple[Tensor, Tensor | None, float], dtype: torch.dtype | None = None) -> Tensor:
    """Return the norm (weight, bias, eps) of a few rows ``[M, K]``, RMS without a bias; the arithmetic is float32."""
    rows, width = x.shape
    weight, bias, eps = norm
    out = torch.empty(rows, width, dtype=dtype or x.dtype, device=x.device)
    row_kernels.normalise_kernel[(rows,)](
        x, weight, weight if bias is None else bias, out, width, x.stride(0), eps,
        WIDTH=power_of_2(width), CENTRED=bias is not None, num_warps=4, **dependent_launch(x),
    )  # fmt: skip
    return out


def tile_statistics(x: Tensor, width: int) -> Tensor:
    """Return means and sums of squared deviations of tiles of `width` (a power of two): float32 ``[2, T, M]``."""
    if not use_triton(x):
        return reference.tile_statistics(x, width)
    rows, outs = x.shape
    tiles = -(-outs // width)
    stats = torch.empty(2, tiles, rows, dtype=torch.float32, device=x.device)
    row_kernels.statistics_kernel[(tiles, rows)](x, stats, outs, TILE=width, num_warps=1, **dependent_launch(x))
    return stats


def supported(x: Tensor, weight: Weight) -> bool:
    """Return whether the kernels take these: at most `MAX_ROWS` rows in a half precision, on a card."""
    few = has_triton(x.device) and len(x) <= MAX_ROWS and x.dtype in (torch.bfloat16, torch.float16)
    values = weight if isinstance(weight, Tensor) else weight.values
    return few and x.stride(1) == 1 and values.stride(1) == 1 and obstacle(weight) is None


def group_of(weight: Weight) -> int:
    """Return the columns that share a scale; 0 for a weight that is not quantised."""
    return 0 if isinstance(weight, Tensor) else weight.group


def is_single(rows: int, weight: Weight) -> bool:
    """Return whether a layer norm is part of the product, which is that of a single row: see `tile_statistics`."""
    return rows == 1 and (isinstance(weight, Tensor) or weight.shift is None)


def run_product(
    x: Tensor,
    weight: Weight,
    bias: Tensor | None,
    *,
    raw: Tensor,  # takes columns below `split`
    activated: Tensor,  # takes the others, through GELU
    split: int,
    gated: bool = False,  # whether `activated` takes SwiGLU of pairs of rows instead: the weight has gates, then values
    gelu: bool = False,  # whether gates go through GELU
    residual: bool = False,  # whether `raw` is the residual stream that is added to
    norm: tuple[Tensor, Tensor, Tensor, float] | None = None,  # of a single row, beginning with its statistics
    new_stats: Tensor | None = None,  # of a single row: takes those of the new residual stream
    scales: Scales | None = None,  # whose rows `x` are
    new_scales: tuple[Tensor, Scales] | None = None,  # weight of the next RMS norm, and what takes the new stream's
    announces: Handshake | None = None,
    awaits: Handshake | None = None,
    tiling: Tiling | None = None,
    added: RowTerms | None = None,  # of adapters; only the kernel for several rows adds them
) -> None:
    """Run the kernel for several rows or that for a single one, as the tiling says."""
    (rows, ins), outs = x.shape, len(weight)
    group = group_of(weight)
    tiling = tiling or tilings.tiling_of(
        rows if added is None else max(rows, SEVERAL), outs, ins, gated=gated, group=group
    )
    width = max(_LEAST_QUANTISED if group else _LEAST_WIDTH, power_of_2(rows))
    late = awaits.late if awaits is not None else 0
    if tiling.stages:
        bits = {"full": 16, "int4": 4}.get(_format(weight), 8)
        tiling = fitted(tiling, width, x.element_size(), shared_memory(x), weight_bits=bits)
    if group and not _goes_with(tiling, weight, late):
        raise ValueError(f"a weight with groups of {group} columns, {late} of them late, does not go with {tiling}")
    values, scale, shift = _stored(weight)
    programs, meeting = -(-outs // tiling.outs), announces or awaits
    met = (x, x) if meeting is None else (meeting.ready, meeting.stale)  # pointers that are not read without one
    outs = outs // 2 if gated else outs
    stats, gain, norm_shift, eps = norm if norm is not None else (x, x, x, 0.0)
    tiles = stats.shape[1] if norm is not None else 1
    if scales is not None:
        stats, eps, tiles = scales.squares, scales.eps, len(scales.squares)
    target, scaled = x if new_stats is None else new_stats[0], x
    if new_scales is not None:
        gain, scaled, target = new_scales[0], new_scales[1].rows, new_scales[1].squares
    if target is not x and len(target) != programs:
        raise ValueError(
            f"a residual stream has statistics of {programs} tiles, one a program; given are {len(target)} tiles"
        )
    constants: dict[str, Any] = {
        "INS": ins,
        "BIAS": bias is not None,
        "NORM": "squares" if scales is not None else "moments" if norm is not None else "",
        "RESIDUAL": residual,
        "ACT": ("geglu" if gelu else "swiglu") if gated else "gelu" if split < outs else "",
        "STATS": "squares" if new_scales is not None else "moments" if new_stats is not None else "",
        "ANNOUNCE": announces is not None,
        "AWAITED": awaits.count if awaits is not None else 0,
        "LATE": late,
        "OUTS": tiling.outs,
        "STEP": tiling.ins,
        "num_warps": tiling.warps,
        **dependent_launch(x),
    }
    offset, kind = x if bias is None else bias, tl_dtype(x.dtype)
    if tiling.stages:
        if _format(weight) == "int4":
            x, values = x.view(torch.int32), values.view(torch.int16)  # two numbers, and four
        partial, counters = x, x
        if tiling.parts > 1:
            partial = torch.empty(tiling.parts, width, programs * tiling.outs, dtype=torch.float32, device=x.device)
            counters = arrival_counters(x.device, programs)
        terms, sizes = expansion(added, tiling.parts)
        device_code.product_kernel[(programs, tiling.parts)](
            x, values, scale, shift, offset, stats, gain, raw, activated, scaled, target, partial, counters, *met,
            rows, outs, split, x.stride(0), values.stride(0), scale.stride(0), raw.stride(0), activated.stride(0), eps,
            terms,
            FORMAT=_format(weight), GROUP=group, TILES_IN=tiles, TILES=power_of_2(tiles),
            ROWS=width, PARTS=tiling.parts, STAGES=tiling.stages,
            AHEAD=tiling.ahead, KIND=kind, ASM=not INTERPRETED, **sizes, **constants,
        )  # fmt: skip
        return
    if rows != 1:
        raise ValueError(f"the kernel takes a single row, not {rows}")
    if added is not None:
        raise ValueError("the kernel for a single row adds no terms of adapters")
    if _format(weight) == "int4":
        x, values = x.view(torch.int64), values.view(torch.int32)  # four numbers, and eight
    device_code.single_kernel[(programs,)](
        x, values, scale, shift, offset, stats, gain, norm_shift, raw, activated, scaled, target, *met,
        outs, split, values.stride(0), scale.stride(0), eps,
        FORMAT=_format(weight), GROUP=group, TILES_IN=tiles, TILES=power_of_2(tiles),
        TILE=power_of_2(-(-ins // tiles)), TILES_OUT=programs, **constants,
    )  # fmt: skip


def _goes_with(tiling: Tiling, weight: Weight, late: int) -> bool:
    """Return whether steps of a tiling lie in one group each, or are whole groups, also of the late columns."""
    form, group = _format(weight), group_of(weight)
    if not tiling.stages and form != "groups":
        return form == "rows" or not (late % group or tiling.ins % group)
    if late % tiling.ins:
        return False
    return form == "rows" or (tiling.ins == group if form == "int4" else not group % tiling.ins)


def _stored(weight: Weight) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, scale and shift of a weight, with another of them in place of one that it lacks."""
    if isinstance(weight, Tensor):
        return weight, weight, weight
    return weight.values, weight.scale, weight.scale if weight.shift is None else weight.shift


def _format(weight: Weight) -> str:
    """Return the weight's format as `product_kernel` calls it."""
    if isinstance(weight, Tensor):
        return "full"
    if weight.shift is not None:
        return "int4"
    return "rows" if weight.scale.shape[1] == 1 else "groups"
