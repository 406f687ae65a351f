"""A linear layer with its GELU in the epilogue of the product where the library can do that."""

import torch
from torch import Tensor
from torch.nn import functional

ALIGNMENT = 8
"""Sizes of a weight that are multiples of this make rows of 16 bytes: no epilogue is missing for those."""


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Give GELU (tanh approximation) of ``x @ weight.T + bias``.

    On CUDA cuBLASLt adds and activates what it has summed up in float32, and rounds once, wherever rows are aligned.

    Args:
        x: ``[T, K]``.
        weight: ``[N, K]``.
        bias: ``[N]``.

    Returns:
        ``[T, N]``.
    """
    if x.is_cuda and not any(size % ALIGNMENT for size in weight.shape):
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")
