"""GELU (tanh approximation; Hendrycks and Gimpel, 2016): inside Triton kernels, and in the epilogue of a product."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.triton_utils import tl, triton

ALIGNMENT = 8  # sizes of a weight that are multiples of this make rows of 16 bytes: no epilogue is missing for those


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return GELU of ``x @ weight.T + bias``; on CUDA with aligned rows cuBLASLt rounds only the result."""
    if x.is_cuda and not any(size % ALIGNMENT for size in weight.shape):
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


@triton.jit
def gelu(x: tl.tensor, ASM: tl.constexpr) -> tl.tensor:
    """Activate float32 numbers: ``(1 + tanh u) / 2`` is the logistic function of ``2 u``, ``1 / (1 + 2 ** power)``.

    With `ASM` the card's own power and reciprocal are used: exact to about 22 bits, with a third of the instructions.
    """
    power = x * (-2.302208198144325 - 0.1029432395800235 * x * x)  # -2 log2(e) sqrt(2 / pi) (1 + 0.044715 x^2)
    if ASM:
        divisor = 1.0 + tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=r,r", [power], dtype=tl.float32, is_pure=True, pack=1
        )
        inverse = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [divisor], dtype=tl.float32, is_pure=True, pack=1
        )
        return x * inverse
    return x / (1.0 + tl.exp2(power))
