"""GELU (tanh approximation; Hendrycks and Gimpel, 2016), SwiGLU and GeGLU (Shazeer, 2020), and the cap of scores."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels.reference import norms as reference
from photonlite.kernels.triton_utils import dependent_launch, tl, triton, use_triton

CHUNK = 1024  # numbers of a row that a program of `swiglu` writes
ALIGNMENT = 8  # sizes of a weight that are multiples of this make rows of 16 bytes: no epilogue is missing for those


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return GELU of ``x @ weight.T + bias``; on CUDA with aligned rows cuBLASLt rounds only the result."""
    if x.is_cuda and not any(size % ALIGNMENT for size in weight.shape):
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


def swiglu(x: Tensor, *, gelu: bool = False) -> Tensor:
    """Return ``silu(gate) * value`` of rows ``[T, 2 F]`` of gates and values: ``[T, F]``, computed in float32.

    Gates go through GELU in its place where `gelu` is set.
    """
    if not use_triton(x):
        return reference.swiglu(x, gelu=gelu)
    rows, width = len(x), x.shape[1] // 2
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    _swiglu_kernel[(rows, -(-width // CHUNK))](
        x, out, width, x.stride(0), CHUNK=CHUNK, GELU=gelu, ASM=x.is_cuda, num_warps=4, **dependent_launch(x)
    )  # fmt: skip
    return out


@triton.jit
def silu(x: tl.tensor) -> tl.tensor:
    return x * tl.sigmoid(x)


@triton.jit
def _swiglu_kernel(
    x: tl.tensor, out: tl.tensor, width: tl.tensor, x_stride: tl.tensor,
    CHUNK: tl.constexpr, GELU: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Write chunk `program_id(1)` of row `program_id(0)`."""
    if PDL:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = column < width
    gate = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * x_stride + width + column, mask=inside, other=0.0).to(tl.float32)
    gate = gelu(gate, ASM) if GELU else silu(gate)
    tl.store(out + row * width + column, (gate * value).to(out.dtype.element_ty), mask=inside)


@triton.jit
def capped(x: tl.tensor, cap: tl.tensor) -> tl.tensor:
    """Return ``cap * tanh(x)``."""
    return cap * (1.0 - 2.0 / (1.0 + tl.exp2(2.8853900817779268 * x)))  # 2 log2(e)


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
