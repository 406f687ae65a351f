"""Residual addition and norm in one pass over the rows, in full precision or quantised for an FP8 product.

A norm with a bias is a layer norm, one without is an RMS norm. A row is held in registers: it is read once, and mean
and variance are computed from the same numbers, one after the other, in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from photonlite.kernels.fp8 import quantise_row, use_fp8_kernels
from photonlite.kernels.reference import norms as reference
from photonlite.kernels.reference.attention import FP8
from photonlite.kernels.triton_utils import dependent_launch, split_row, tl, triton, use_triton

PER_THREAD = 16  # numbers of a row that a thread holds, about


def residual_norm(
    x: Tensor, delta: Tensor | None, delta_bias: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Return ``x + delta + delta_bias``, or `x` itself without a `delta`, and its norm, both ``[T, D]``.

    `delta` is ``[T, D]``, or ``[P, D]`` with T a multiple of P: repeated. The arithmetic is float32 at least; the sum
    is rounded before it is normalised.
    """
    if not use_triton(x):
        return reference.residual_norm(x, delta, delta_bias, weight, bias, eps)
    normal = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    shift = None if delta is None else delta_bias
    return _launch(x, delta, shift, weight, bias, eps, normal, None), normal


def residual_norm_fp8(
    x: Tensor, delta: Tensor | None, delta_bias: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`residual_norm`, but return the sum and `fp8.quantise_rows` of its norm, not rounded before."""
    if not use_fp8_kernels(x):
        return reference.residual_norm_fp8(x, delta, delta_bias, weight, bias, eps)
    q = torch.empty(x.shape, dtype=FP8, device=x.device)
    scale = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
    shift = None if delta is None else delta_bias
    return _launch(x, delta, shift, weight, bias, eps, q, scale), q, scale


def shifted_norm(x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Return the norm of ``x + shift``, ``[T, D]`` in the type of `x`; the sum itself is not rounded."""
    if not use_triton(x):
        return reference.shifted_norm(x, shift, weight, bias, eps)
    normal = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, shift, weight, bias, eps, normal, None)
    return normal


def add_normed(x: Tensor, delta: Tensor, gain: Tensor, following: Tensor | None, eps: float, normal: Tensor) -> None:
    """Add the RMS norm of `delta`, rounded, to `x` ``[T, D]`` in place, and write the RMS norm of the sum to `normal`.

    `gain` and `following`, ``[D]``, are the weights of both norms; without a second one nothing is written.
    """
    if not use_triton(x):
        reference.add_normed(x, delta, gain, following, eps, normal)
        return
    row = split_row(x.shape[1])
    _add_normed_kernel[(len(x),)](
        x, delta, gain, gain if following is None else following, normal, x.stride(0), delta.stride(0),
        normal.stride(0), eps, LEFT=row.left, RIGHT=row.right, RIGHT_WIDTH=row.right_width,
        NORMED=following is not None, num_warps=row.warps(PER_THREAD), **dependent_launch(x),
    )  # fmt: skip


def _launch(
    x: Tensor, delta: Tensor | None, shift: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float,
    normal: Tensor, scale: Tensor | None,
) -> Tensor:  # fmt: skip
    """Fill `normal` and `scale`; return the sum with `delta`."""
    rows, dim = x.shape
    total = x if delta is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    row = split_row(dim)
    _residual_norm_kernel[(rows,)](
        x, x if delta is None else delta, weight if shift is None else shift, weight, weight if bias is None else bias,
        total, normal, x if scale is None else scale,
        rows if delta is None else len(delta), x.stride(0), 0 if delta is None else delta.stride(0), eps,
        LEFT=row.left, RIGHT=row.right, RIGHT_WIDTH=row.right_width,
        HAS_DELTA=delta is not None, REPEATED=delta is not None and len(delta) != rows,
        HAS_SHIFT=shift is not None, CENTRED=bias is not None, QUANTISED=scale is not None,
        num_warps=row.warps(PER_THREAD), **dependent_launch(x),
    )  # fmt: skip
    return total


# A compilation while serving, for a new number of rows, would take a fraction of a second.
@triton.jit(do_not_specialize=["delta_rows"])
def _residual_norm_kernel(
    x: tl.tensor, delta: tl.tensor, shift: tl.tensor, weight: tl.tensor, bias: tl.tensor, total_out: tl.tensor,
    normal_out: tl.tensor, scale_out: tl.tensor, delta_rows: tl.tensor, x_stride: tl.tensor, delta_stride: tl.tensor,
    eps: tl.tensor,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, RIGHT_WIDTH: tl.constexpr, HAS_DELTA: tl.constexpr, REPEATED: tl.constexpr,
    HAS_SHIFT: tl.constexpr, CENTRED: tl.constexpr, QUANTISED: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Add to row `program_id(0)` and normalise it."""
    # No kernel writes weights: they are fetched once, while the kernel in front still runs.
    slopes, slopes_r = _fetched(weight, LEFT, RIGHT, RIGHT_WIDTH)
    offsets, offsets_r = tl.zeros([LEFT], tl.float32), tl.zeros([RIGHT_WIDTH], tl.float32)
    if CENTRED:
        offsets, offsets_r = _fetched(bias, LEFT, RIGHT, RIGHT_WIDTH)
        offsets, offsets_r = offsets.to(tl.float32), offsets_r.to(tl.float32)
    shifts, shifts_r = slopes, slopes_r
    if HAS_SHIFT:
        shifts, shifts_r = _fetched(shift, LEFT, RIGHT, RIGHT_WIDTH)
    if PDL:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    value, value_r = _fetched(x + row * x_stride, LEFT, RIGHT, RIGHT_WIDTH)
    value, value_r = value.to(tl.float32), value_r.to(tl.float32)
    if HAS_DELTA:
        source = row % delta_rows if REPEATED else row
        added, added_r = _fetched(delta + source * delta_stride, LEFT, RIGHT, RIGHT_WIDTH)
        value, value_r = value + added.to(tl.float32), value_r + added_r.to(tl.float32)
    if HAS_SHIFT:
        value, value_r = value + shifts.to(tl.float32), value_r + shifts_r.to(tl.float32)
    place = row * (LEFT + RIGHT)
    if HAS_DELTA:
        rounded, rounded_r = value.to(total_out.dtype.element_ty), value_r.to(total_out.dtype.element_ty)
        _store(total_out + place, rounded, rounded_r, LEFT, RIGHT, RIGHT_WIDTH)
        value, value_r = rounded.to(tl.float32), rounded_r.to(tl.float32)
    off, off_r, spread = _standardised(value, value_r, eps, LEFT, RIGHT, RIGHT_WIDTH, CENTRED)
    normal = off * spread * slopes.to(tl.float32) + offsets
    normal_r = off_r * spread * slopes_r.to(tl.float32) + offsets_r
    if QUANTISED:
        inverse = quantise_row(normal, normal_r, scale_out + row)
        normal, normal_r = normal * inverse, normal_r * inverse
    kind = normal_out.dtype.element_ty
    _store(normal_out + place, normal.to(kind), normal_r.to(kind), LEFT, RIGHT, RIGHT_WIDTH)


@triton.jit
def _add_normed_kernel(
    x: tl.tensor, delta: tl.tensor, gain: tl.tensor, following: tl.tensor, normal_out: tl.tensor, x_stride: tl.tensor,
    delta_stride: tl.tensor, normal_stride: tl.tensor, eps: tl.tensor,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, RIGHT_WIDTH: tl.constexpr, NORMED: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Normalise row `program_id(0)` of `delta`, add it to that of `x`, and with NORMED normalise the sum."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    slopes, slopes_r = _fetched(gain, LEFT, RIGHT, RIGHT_WIDTH)
    later, later_r = slopes, slopes_r
    if NORMED:
        later, later_r = _fetched(following, LEFT, RIGHT, RIGHT_WIDTH)
    if PDL:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    kind = x.dtype.element_ty
    value, value_r = _fetched(delta + row * delta_stride, LEFT, RIGHT, RIGHT_WIDTH)
    off, off_r, spread = _standardised(
        value.to(tl.float32), value_r.to(tl.float32), eps, LEFT, RIGHT, RIGHT_WIDTH, False
    )  # fmt: skip
    added = (off * spread * slopes.to(tl.float32)).to(kind).to(tl.float32)
    added_r = (off_r * spread * slopes_r.to(tl.float32)).to(kind).to(tl.float32)
    stream, stream_r = _fetched(x + row * x_stride, LEFT, RIGHT, RIGHT_WIDTH)
    total, total_r = (stream.to(tl.float32) + added).to(kind), (stream_r.to(tl.float32) + added_r).to(kind)
    _store(x + row * x_stride, total, total_r, LEFT, RIGHT, RIGHT_WIDTH)
    if NORMED:
        off, off_r, spread = _standardised(
            total.to(tl.float32), total_r.to(tl.float32), eps, LEFT, RIGHT, RIGHT_WIDTH, False
        )  # fmt: skip
        normal, normal_r = off * spread * later.to(tl.float32), off_r * spread * later_r.to(tl.float32)
        place = normal_out + row * normal_stride
        _store(place, normal.to(kind), normal_r.to(kind), LEFT, RIGHT, RIGHT_WIDTH)


@triton.jit
def _fetched(
    source: tl.tensor,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, RIGHT_WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Read both pieces of a row; behind it are zeros."""
    left = tl.load(source + tl.arange(0, LEFT))
    if RIGHT > 0:
        column = tl.arange(0, RIGHT_WIDTH)
        right = tl.load(source + LEFT + column, mask=column < RIGHT, other=0.0)
    else:
        right = tl.zeros([1], tl.float32)
    return left, right


@triton.jit
def _store(
    target: tl.tensor, left: tl.tensor, right: tl.tensor,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, RIGHT_WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    tl.store(target + tl.arange(0, LEFT), left)
    if RIGHT > 0:
        column = tl.arange(0, RIGHT_WIDTH)
        tl.store(target + LEFT + column, right, mask=column < RIGHT)


@triton.jit
def _standardised(
    left: tl.tensor, right: tl.tensor, eps: tl.tensor,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, RIGHT_WIDTH: tl.constexpr, CENTRED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Return both pieces, minus the row's mean if `CENTRED`, and the inverse of their root mean square."""
    share: tl.constexpr = 1.0 / (LEFT + RIGHT)
    if CENTRED:
        mean = (tl.sum(left, axis=0) + tl.sum(right, axis=0)) * share
        left -= mean
        right = tl.where(tl.arange(0, RIGHT_WIDTH) < RIGHT, right - mean, 0.0)
    variance = (tl.sum(left * left, axis=0) + tl.sum(right * right, axis=0)) * share
    return left, right, tl.rsqrt(variance + eps)
