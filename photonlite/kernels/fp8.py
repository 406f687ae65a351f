"""Products of e4m3 numbers, and their quantisation: a scale for each row, of activations and of weights.

FP8 has 3 bits of mantissa: a product carries about 4 % of relative noise in each term, which averages out over a row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from photonlite.errors import SettingsError
from photonlite.kernels.activations import gelu, silu
from photonlite.kernels.reference import norms as reference
from photonlite.kernels.reference.attention import FP8
from photonlite.kernels.triton_utils import RowSplit, dependent_launch, split_row, tl, triton, use_triton

CAPABILITY = (8, 9)  # the first compute capability whose tensor cores multiply e4m3
MULTIPLE = 16  # rows and columns of an FP8 matrix must be multiples of this
PER_THREAD = 32  # numbers of a row that a thread holds, about: with fewer, reductions cost more than what is reduced


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A quantised matrix: values, float8_e4m3fn ``[N, K]``, and scale, float32 ``[N, 1]``."""

    values: Tensor
    scale: Tensor


@functools.cache
def has_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY


def use_fp8_kernels(x: Tensor) -> bool:
    """Return whether `x` is quantised by Triton kernels; the interpreter can do that on the CPU."""
    return use_triton(x) and (not x.is_cuda or has_fp8(x.device))


def require_fp8(device: torch.device, setting: str, remedy: str) -> None:
    """Raise SettingsError if a card has no e4m3."""
    if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < CAPABILITY:
        least, has = (".".join(map(str, version)) for version in (CAPABILITY, capability))
        raise SettingsError(
            f"engine setting {setting}, but {torch.cuda.get_device_name(device)} has compute capability {has} and FP8 "
            f"takes {least} or later: {remedy}, or use another card"
        )


def require_fp8_linears(device: torch.device, dtype: torch.dtype) -> None:
    """Raise SettingsError if a card cannot multiply e4m3 with results in `dtype`; the CPU computes in float32."""
    if device.type != "cuda":
        return
    require_fp8(device, "'fp8_linears' is on", "leave it off")
    if dtype != torch.bfloat16:
        raise SettingsError(
            f"engine setting 'fp8_linears' is on with weights in {dtype}: on a card its products come in "
            "torch.bfloat16 only, so load the model in that, or leave the setting off"
        )


def quantise_weight(weight: Tensor) -> Fp8Weight:
    """Quantise ``[N, K]``, a scale for each output channel; SettingsError on a card unless both are multiples of 16."""
    if weight.is_cuda and any(size % MULTIPLE for size in weight.shape):
        raise SettingsError(
            f"engine setting 'fp8_linears' is on, but the model has a matrix of {list(weight.shape)}: a card "
            f"multiplies e4m3 in multiples of {MULTIPLE} only, so leave the setting off"
        )
    return Fp8Weight(*reference.quantise_rows(weight.detach()))


def fp8_linear(q: Tensor, scale: Tensor, weight: Fp8Weight, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Multiply e4m3 rows ``[T, K]``, scales ``[T, 1]``, with ``[N, K]``; on CUDA bfloat16 and multiples of 16 only."""
    if q.is_cuda:
        # Sums are kept in the tensor core's own precision, 14 bits or so: the noise of e4m3 is far above it.
        return torch._scaled_mm(
            q, weight.values.t(), scale, weight.scale.t(), bias=bias, out_dtype=dtype, use_fast_accum=True
        )
    return reference.fp8_linear(q, scale, weight.values, weight.scale, bias, dtype)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise rows ``[T, F]`` to e4m3; scales, float32 ``[T, 1]``, are the largest magnitude / 448. NaN stays NaN."""
    if not use_fp8_kernels(x):
        return reference.quantise_rows(x)
    return _activate(x, x, split_row(x.shape[1]), None, (False, False))


def gelu_fp8(x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return :func:`quantise_rows` of GELU of ``x + bias``, ``[T, F]``, not rounded before."""
    if not use_fp8_kernels(x):
        return reference.gelu_fp8(x, bias)
    return _activate(x, x, split_row(x.shape[1]), bias, (True, True))


def beside_gelu_fp8(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return :func:`quantise_rows` of ``left [T, A]`` and, behind it, GELU of ``right [T, F]``, not rounded before."""
    if not use_fp8_kernels(left):
        return reference.beside_gelu_fp8(left, right)
    return _activate(left, right, RowSplit(left.shape[1], right.shape[1]), None, (False, True))


def swiglu_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return :func:`quantise_rows` of SwiGLU of rows ``[T, 2 F]``, gates first, not rounded before."""
    if not use_fp8_kernels(x):
        return reference.swiglu_fp8(x)
    return _activate(x, x, split_row(x.shape[1] // 2), None, (False, False), gated=True)


def _activate(
    left: Tensor, right: Tensor, row: RowSplit, bias: Tensor | None, with_gelu: tuple[bool, bool],
    *, gated: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Quantise rows whose two pieces lie in two tensors or, one behind the other, in one.

    If `gated`, the two pieces are gates, and behind them lies what they gate.
    """
    q = torch.empty(len(left), row.left + row.right, dtype=FP8, device=left.device)
    scale = torch.empty(len(left), 1, dtype=torch.float32, device=left.device)
    _activate_kernel[(len(left),)](
        left, right, left if bias is None else bias, q, scale, left.stride(0), right.stride(0),
        LEFT=row.left, LEFT_WIDTH=row.left_width, RIGHT=row.right, RIGHT_WIDTH=row.right_width,
        SKIPPED=row.left if left is right else 0, HAS_BIAS=bias is not None,
        GELU_LEFT=with_gelu[0], GELU_RIGHT=with_gelu[1], GATED=gated, ASM=left.is_cuda,
        num_warps=row.warps(PER_THREAD), **dependent_launch(left),
    )  # fmt: skip
    return q, scale


@triton.jit
def _activate_kernel(
    left: tl.tensor, right: tl.tensor, bias: tl.tensor, values_out: tl.tensor, scale_out: tl.tensor,
    left_stride: tl.tensor, right_stride: tl.tensor,
    LEFT: tl.constexpr, LEFT_WIDTH: tl.constexpr, RIGHT: tl.constexpr, RIGHT_WIDTH: tl.constexpr, SKIPPED: tl.constexpr,
    HAS_BIAS: tl.constexpr, GELU_LEFT: tl.constexpr, GELU_RIGHT: tl.constexpr, GATED: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Quantise row `program_id(0)`, with GELU of the pieces that need it, or SwiGLU of both."""
    if PDL:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    value = _piece(left + row * left_stride, bias, LEFT, LEFT_WIDTH, HAS_BIAS)
    value_r = tl.zeros([1], tl.float32)
    if RIGHT > 0:
        value_r = _piece(right + row * right_stride + SKIPPED, bias + LEFT, RIGHT, RIGHT_WIDTH, HAS_BIAS)
    if GELU_LEFT:
        value = gelu(value, ASM)
    if GELU_RIGHT:
        value_r = gelu(value_r, ASM)
    if GATED:
        source = left + row * left_stride + LEFT + RIGHT
        value = silu(value) * _piece(source, bias, LEFT, LEFT_WIDTH, False)
        if RIGHT > 0:
            value_r = silu(value_r) * _piece(source + LEFT, bias, RIGHT, RIGHT_WIDTH, False)
    inverse = quantise_row(value, value_r, scale_out + row)
    target, column = values_out + row * (LEFT + RIGHT), tl.arange(0, LEFT_WIDTH)
    tl.store(target + column, (value * inverse).to(values_out.dtype.element_ty), mask=column < LEFT)
    if RIGHT > 0:
        column = tl.arange(0, RIGHT_WIDTH)
        tl.store(target + LEFT + column, (value_r * inverse).to(values_out.dtype.element_ty), mask=column < RIGHT)


@triton.jit
def _piece(
    source: tl.tensor, bias: tl.tensor,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Load a piece of a row, zero-padded, as float32."""
    column = tl.arange(0, WIDTH)
    value = tl.load(source + column, mask=column < SIZE, other=0.0).to(tl.float32)
    if HAS_BIAS:
        value += tl.load(bias + column, mask=column < SIZE, other=0.0).to(tl.float32)
    return value


@triton.jit
def quantise_row(left: tl.tensor, right: tl.tensor, scale_out: tl.tensor) -> tl.tensor:
    """Store the scale of a row in two pieces; return its inverse, by which to multiply before conversion to e4m3.

    Only rounding makes a magnitude exceed 448, which conversion undoes; NaN stays NaN.
    """
    largest = tl.maximum(tl.max(tl.abs(left), axis=0), tl.max(tl.abs(right), axis=0))
    scale = tl.maximum(largest / 448.0, 1e-12)
    tl.store(scale_out, scale)
    return 1.0 / scale
