"""GELU inside Triton kernels: the tanh approximation (Hendrycks and Gimpel, 2016) by few instructions."""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:
    HAS_TRITON = False
else:
    HAS_TRITON = True


def _gelu(x: tl.tensor, ASM: tl.constexpr) -> tl.tensor:
    """Activate float32 numbers.

    ``(1 + tanh u) / 2`` is the logistic function of ``2 u``, and that is ``1 / (1 + 2 ** power)``.

    Args:
        x: Of any shape.
        ASM: Whether to ask for a card's own power and reciprocal, exact to 22 bits or so. What a compiler makes of an
            exponential and a division scales arguments that do not occur here, and takes three times the instructions.
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


if HAS_TRITON:
    gelu_kernel = triton.jit(_gelu)
