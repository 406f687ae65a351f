"""Products of a serial decoder block in PyTorch; see `kernels.serial_block`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.reference.row_adapters import RowTerms, add_terms
from photonlite.kernels.triton_utils import power_of_2

if TYPE_CHECKING:
    from photonlite.kernels.small_batch_gemm import Scales


def scale_stream(x: Tensor, gain: Tensor, scales: Scales) -> None:
    wide = x.to(scales.squares.dtype)
    scales.rows.copy_(wide * gain)
    width = power_of_2(-(-x.shape[1] // len(scales.squares)))
    parts = torch.split(wide, width, dim=1)
    scales.squares.zero_()
    scales.squares[: len(parts)] = torch.stack([part.square().sum(dim=1) for part in parts])


def norm_linear(
    scales: Scales,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    gated: bool = False,
    added: RowTerms | None = None,
) -> None:
    inverse = torch.rsqrt(scales.squares.sum(dim=0) / weight.shape[1] + scales.eps)
    result = functional.linear(scales.rows, weight)
    add_terms(result, added)
    result = result.to(inverse.dtype) * inverse[:, None]
    result = result if bias is None else result + bias
    if gated:
        gate, value = result.chunk(2, dim=1)
        result = functional.silu(gate) * value
    out.copy_(result)


def add_linear(
    x: Tensor, weight: Tensor, residual: Tensor, norm: tuple[Tensor, Scales] | None, added: RowTerms | None = None
) -> None:
    result = functional.linear(x, weight)
    add_terms(result, added)
    residual.copy_(residual + result)
    if norm is not None:
        scale_stream(residual, *norm)
