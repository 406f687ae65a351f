"""The truth of the kernels that normalise, activate and quantise rows, in plain PyTorch: runs anywhere, in any type."""

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.reference import FP8

FP8_MAX = 448.0
"""The largest number of e4m3."""

LEAST_SCALE = 1e-12
"""Scale of a row of zeros: anything above 0 does."""


def residual_norm(
    x: Tensor, delta: Tensor | None, delta_bias: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Add to the residual stream and normalise what comes of it.

    Args:
        x: ``[T, D]``.
        delta: What is added, ``[T, D]``, or ``[P, D]`` with T a multiple of P: repeated. None adds nothing.
        delta_bias: ``[D]``, added to every row too; None for none. Only with `delta`.
        weight: Of the layer norm, ``[D]``.
        bias: Of the layer norm, ``[D]``.
        eps: Of the layer norm.

    Returns:
        ``x + delta + delta_bias``, `x` itself without a `delta`, and its layer norm, both ``[T, D]`` in the type of
        `x`. The arithmetic is float32 at least; the sum is rounded before it is normalised.
    """
    total, normal = _normalised(x, delta, delta_bias, weight, bias, eps)
    return total, normal.to(x.dtype)


def residual_norm_fp8(
    x: Tensor, delta: Tensor | None, delta_bias: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Do the same and quantise the normalised rows.

    Returns:
        The sum ``[T, D]``, and :func:`quantise_rows` of its layer norm, which is not rounded in between.
    """
    total, normal = _normalised(x, delta, delta_bias, weight, bias, eps)
    return total, *quantise_rows(normal)


def shifted_norm(x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise a residual stream that lacks the same numbers in every row.

    Args:
        x: ``[T, D]``.
        shift: What is missing, float32 ``[D]``.
        weight: Of the layer norm, ``[D]``.
        bias: Of the layer norm, ``[D]``.
        eps: Of the layer norm.

    Returns:
        The layer norm of ``x + shift``, which is not rounded in between, ``[T, D]`` in the type of `x`.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    return functional.layer_norm(x.to(wide) + shift, weight.shape, weight.to(wide), bias.to(wide), eps).to(x.dtype)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise rows ``[T, F]`` to e4m3, each with a scale of its own.

    Returns:
        Values, float8_e4m3fn ``[T, F]``, and scales, float32 ``[T, 1]``: a row is its values times its scale, which is
        its largest magnitude / 448. Where a number is none, its value is none either.
    """
    wide = x.float()
    scale = (wide.abs().amax(dim=-1, keepdim=True) / FP8_MAX).clamp(min=LEAST_SCALE)
    return (wide / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale


def gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    """Give GELU (tanh approximation; Hendrycks and Gimpel, 2016) of ``x + bias``, ``[T, F]``, rounded once."""
    return _activated(x, bias).to(x.dtype)


def gelu_fp8(x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Give :func:`quantise_rows` of :func:`gelu`, not rounded in between."""
    return quantise_rows(_activated(x, bias))


def beside_gelu_fp8(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Give :func:`quantise_rows` of ``left [T, A]`` and, behind it, :func:`gelu` of ``right [T, F]``, not rounded."""
    return quantise_rows(
        torch.cat((left.to(torch.promote_types(left.dtype, torch.float32)), _activated(right, None)), 1)
    )


def fp8_linear(
    q: Tensor, scale: Tensor, values: Tensor, weight_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Multiply quantised rows with a quantised matrix.

    Args:
        q: float8_e4m3fn ``[T, K]``.
        scale: float32 ``[T, 1]``.
        values: float8_e4m3fn ``[N, K]``.
        weight_scale: float32 ``[N, 1]``.
        bias: ``[N]``; None for none.
        dtype: Of the result.

    Returns:
        ``[T, N]``.
    """
    return functional.linear(q.float() * scale, values.float() * weight_scale, _wide(bias)).to(dtype)


def _normalised(
    x: Tensor, delta: Tensor | None, delta_bias: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    if delta is not None:
        total = x.to(wide) + delta.to(wide).repeat(len(x) // len(delta), 1)
        x = (total if delta_bias is None else total + delta_bias).to(x.dtype)
    return x, functional.layer_norm(x.to(wide), weight.shape, weight.to(wide), bias.to(wide), eps)


def _activated(x: Tensor, bias: Tensor | None) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return functional.gelu(wide if bias is None else wide + bias, approximate="tanh")


def _wide(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float()
