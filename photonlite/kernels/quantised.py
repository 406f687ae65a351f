"""Matrices from weights in 8 and 4 bits: the whole of one at a time, for products of many rows."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from photonlite.kernels.fp8 import use_fp8_kernels
from photonlite.kernels.reference import quantised as reference
from photonlite.kernels.reference.quantised import QuantisedWeight
from photonlite.kernels.triton_utils import dependent_launch, tl, triton, use_triton

Weight: TypeAlias = Tensor | QuantisedWeight
"""A matrix ``[N, K]``, as it is or quantised."""

LEAST_GROUP, GROUP = 32, 128
"""Columns of a group, at least and at most, of which products on tensor cores take several."""

_ROWS, _COLUMNS = 4, 512  # of a program


def dense(weight: Weight, dtype: torch.dtype) -> Tensor:
    """Return a matrix as it is, or turned back into numbers of a type, each rounded once."""
    if isinstance(weight, Tensor):
        return weight
    eight = use_fp8_kernels if weight.precision == "fp8" else use_triton
    if not eight(weight.values) or weight.values.stride(1) != 1:
        return reference.dequantise(weight, dtype)
    rows, columns = weight.shape
    out = torch.empty(rows, columns, dtype=dtype, device=weight.device)
    shift = weight.scale if weight.shift is None else weight.shift
    _dequantise_kernel[(triton.cdiv(rows, _ROWS), triton.cdiv(columns, _COLUMNS))](
        weight.values, weight.scale, shift, out, rows, weight.values.stride(0), weight.scale.stride(0), columns,
        GROUP=weight.group, PACKED=weight.shift is not None, ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=4,
        **dependent_launch(out),
    )  # fmt: skip
    return out


def obstacle(weight: Weight) -> str | None:
    """Return what keeps products on tensor cores from a matrix."""
    if isinstance(weight, Tensor):
        return None
    columns = weight.shape[1]
    whole = weight.shift is None and weight.scale.shape[1] == 1
    if columns % GROUP or not (whole or LEAST_GROUP <= weight.group <= GROUP or not weight.group % GROUP):
        return f"kernels take rows of a multiple of {GROUP} numbers in groups of that, not of {columns}"
    return None


@triton.jit
def _dequantise_kernel(
    values: tl.tensor, scale: tl.tensor, shift: tl.tensor, out: tl.tensor, rows: tl.tensor, stride: tl.tensor,
    scale_stride: tl.tensor, columns: tl.tensor,
    GROUP: tl.constexpr, PACKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Write columns `program_id(1)` of rows `program_id(0)`; the weights themselves are there before any kernel."""
    n = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    k = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (n < rows) & (k < columns)
    place = n * scale_stride + k // GROUP
    step = tl.load(scale + place, mask=inside, other=0.0).to(tl.float32)
    if PACKED:
        half: tl.constexpr = GROUP // 2
        column = k % GROUP
        byte = tl.load(values + n * stride + k // GROUP * half + column % half, mask=inside, other=0).to(tl.int32)
        number = (byte >> (column // half * 4) & 15).to(tl.float32) - 8.0
        number = number * step + tl.load(shift + place, mask=inside, other=0.0).to(tl.float32)
    else:
        number = tl.load(values + n * stride + k, mask=inside, other=0.0).to(tl.float32) * step
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()  # what is written here may still be read by the kernel in front
    tl.store(out + n * columns + k, number.to(out.dtype.element_ty), mask=inside)
