"""Normalising, activating and quantising rows in PyTorch; see `kernels.norms` and `kernels.fp8`."""

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.reference.attention import FP8

FP8_MAX = 448.0  # the largest number of e4m3
LEAST_SCALE = 1e-12  # scale of a row of zeros: anything above 0 works


def residual_norm(
    x: Tensor, delta: Tensor | None, delta_bias: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    total, normal = _normalised(x, delta, delta_bias, weight, bias, eps)
    return total, normal.to(x.dtype)


def residual_norm_fp8(
    x: Tensor, delta: Tensor | None, delta_bias: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    total, normal = _normalised(x, delta, delta_bias, weight, bias, eps)
    return total, *quantise_rows(normal)


def shifted_norm(x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return _norm(_at_least_float32(x) + shift, weight, bias, eps).to(x.dtype)


def add_normed(x: Tensor, delta: Tensor, gain: Tensor, following: Tensor | None, eps: float, normal: Tensor) -> None:
    x += _norm(_at_least_float32(delta), gain, None, eps).to(x.dtype)
    if following is not None:
        normal.copy_(_norm(_at_least_float32(x), following, None, eps))


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    scale = (wide.abs().amax(dim=-1, keepdim=True) / FP8_MAX).clamp(min=LEAST_SCALE)
    return (wide / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale


def gelu_fp8(x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    return quantise_rows(_activated(x, bias))


def swiglu(x: Tensor, *, gelu: bool = False) -> Tensor:
    gate, value = _at_least_float32(x).chunk(2, dim=1)
    gate = functional.gelu(gate, approximate="tanh") if gelu else functional.silu(gate)
    return (gate * value).to(x.dtype)


def swiglu_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    return quantise_rows(swiglu(_at_least_float32(x)))


def beside_gelu_fp8(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    return quantise_rows(torch.cat((_at_least_float32(left), _activated(right, None)), 1))


def fp8_linear(
    q: Tensor, scale: Tensor, values: Tensor, weight_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    wide_bias = None if bias is None else bias.float()
    return functional.linear(q.float() * scale, values.float() * weight_scale, wide_bias).to(dtype)


def _normalised(
    x: Tensor, delta: Tensor | None, delta_bias: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    if delta is not None:
        total = _at_least_float32(x) + _at_least_float32(delta).repeat(len(x) // len(delta), 1)
        x = (total if delta_bias is None else total + delta_bias).to(x.dtype)
    return x, _norm(_at_least_float32(x), weight, bias, eps)


def _norm(wide: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    if bias is None:
        return functional.rms_norm(wide, weight.shape, weight.to(wide.dtype), eps)
    return functional.layer_norm(wide, weight.shape, weight.to(wide.dtype), bias.to(wide.dtype), eps)


def _activated(x: Tensor, bias: Tensor | None) -> Tensor:
    wide = _at_least_float32(x)
    return functional.gelu(wide if bias is None else wide + bias, approximate="tanh")


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
