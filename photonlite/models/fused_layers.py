"""Linear layers and norms over rows, in the model's type or in FP8, for fused parts of all families."""

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn import functional

from photonlite.kernels.activations import gelu_linear, swiglu
from photonlite.kernels.fp8 import fp8_linear, gelu_fp8, quantise_weight, swiglu_fp8
from photonlite.kernels.norms import residual_norm, residual_norm_fp8

Rows = tuple[Tensor, ...]
"""Input of a product: ``[T, K]``, or e4m3 ``[T, K]`` and scales ``[T, 1]``."""


class WideLinear:
    """A linear layer in the type of its weight ``[N, K]``; bias ``[N]`` or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight.detach()
        self._bias = None if bias is None else bias.detach()

    def __call__(self, rows: Rows) -> Tensor:
        """Return the product ``[T, N]``, plus the bias if there is one."""
        return functional.linear(rows[0], self._weight, self._bias)

    def gelu(self, rows: Rows) -> Rows:
        if self._bias is None:
            raise AssertionError(f"GELU of a product {list(self._weight.shape)} without a bias: no layer does that")
        return (gelu_linear(rows[0], self._weight, self._bias),)

    def swiglu(self, rows: Rows) -> Rows:
        """Return SwiGLU of the product plus bias; the first half of its columns gates the second."""
        return (swiglu(self(rows)),)

    def add_to(self, x: Tensor, rows: Rows) -> None:
        """Add the product, without the bias, to ``x [T, N]`` in place with one rounding."""
        x.addmm_(rows[0], self._weight.t())


class Fp8Linear:
    """A linear layer of e4m3 numbers, with results in the type of the weight it was made from."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = quantise_weight(weight)
        self._bias = None if bias is None else bias.detach()
        self._dtype = weight.dtype

    def __call__(self, rows: Rows) -> Tensor:
        q, scale = rows
        return fp8_linear(q, scale, self._weight, self._bias, self._dtype)

    def gelu(self, rows: Rows) -> Rows:
        """Return GELU of the product plus bias, quantised."""
        return gelu_fp8(self(rows), None)

    def swiglu(self, rows: Rows) -> Rows:
        """Return SwiGLU of the product plus bias, quantised; the first half of its columns gates the second."""
        return swiglu_fp8(self(rows))


Linear: TypeAlias = WideLinear | Fp8Linear


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm of a residual stream, whose output is quantised if `fp8`."""

    weight: Tensor  # [D]
    bias: Tensor | None  # [D]; without one it is an RMS norm
    eps: float
    fp8: bool

    @classmethod
    def of(cls, layer: nn.LayerNorm, *, fp8: bool) -> "Norm":
        return cls(layer.weight.detach(), layer.bias.detach(), layer.eps, fp8)

    def __call__(self, x: Tensor, delta: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Rows]:
        """Return ``x + delta + bias`` and its norm as rows; see `kernels.norms.residual_norm`."""
        kernel = residual_norm_fp8 if self.fp8 else residual_norm
        total, *rows = kernel(x, delta, bias, self.weight, self.bias, self.eps)
        return total, tuple(rows)
