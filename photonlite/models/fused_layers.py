"""Linear layers and norms over rows, in the model's type or in FP8, and both around a residual stream.

```
FP8   x ────────────── + bias, rounded ─> x         else   x ───────┐
      rows ─ product ──┘       └─ norm ─> rows             rows ─ product, + ──────────────> x
                                                                       └─ + biases ─ norm ─> rows
```

Where the product itself adds to the residual stream, the norm reads one tensor instead of two and writes one instead of
two (the gain is in `bench/results/gpu-notes.md`). The stream then lacks biases: the same numbers in every row, known
beforehand, which every norm adds to its input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from photonlite.kernels.activations import gelu_linear, swiglu
from photonlite.kernels.fp8 import fp8_linear, gelu_fp8, quantise_weight, swiglu_fp8
from photonlite.kernels.norms import residual_norm, residual_norm_fp8, shifted_norm
from photonlite.kernels.quantised import Weight, dense
from photonlite.kernels.small_batch_gemm import run_product, small_batch_gemm, supported

Rows = tuple[Tensor, ...]
"""Input of a product: ``[T, K]``, or e4m3 ``[T, K]`` and scales ``[T, 1]``."""


class WideLinear:
    """A linear layer in the type of its input, with a weight ``[N, K]``; bias ``[N]`` or None.

    A quantised weight is turned back into a matrix for each product of more rows than decode steps have. `short` says
    whether fewer rows take the kernels of decode steps, which are compiled for each number of rows.
    """

    def __init__(self, weight: Weight, bias: Tensor | None, *, short: bool = True) -> None:
        self._short = short
        self._weight = weight.detach() if isinstance(weight, Tensor) else weight
        self._bias = None if bias is None else bias.detach()

    def __call__(self, rows: Rows) -> Tensor:
        """Return the product ``[T, N]``, plus the bias if there is one."""
        if self._is_short(rows):
            return small_batch_gemm(rows[0], self._weight, self._bias)
        return functional.linear(rows[0], self._matrix(rows), self._bias)

    def gelu(self, rows: Rows) -> Rows:
        if self._bias is None:
            raise AssertionError(f"GELU of a product {list(self._weight.shape)} without a bias: no layer does that")
        if self._is_short(rows):
            return (small_batch_gemm(rows[0], self._weight, self._bias, gelu=True),)
        return (gelu_linear(rows[0], self._matrix(rows), self._bias),)

    def swiglu(self, rows: Rows) -> Rows:
        """Return SwiGLU of the product plus bias; the first half of its columns gates the second."""
        if not self._is_short(rows):
            return (swiglu(self(rows)),)
        out = rows[0].new_empty(len(rows[0]), len(self._weight) // 2)
        run_product(rows[0], self._weight, self._bias, raw=out, activated=out, split=0, gated=True)
        return (out,)

    def add_to(self, x: Tensor, rows: Rows) -> None:
        """Add the product, without the bias, to ``x [T, N]`` in place with one rounding."""
        if self._is_short(rows):
            run_product(rows[0], self._weight, None, raw=x, activated=x, split=len(self._weight), residual=True)
        else:
            x.addmm_(rows[0], self._matrix(rows).t())

    def _is_short(self, rows: Rows) -> bool:
        """Whether the kernels of decode steps multiply, which are faster for few rows and turn no matrix back."""
        return self._short and supported(rows[0], self._weight)

    def _matrix(self, rows: Rows) -> Tensor:
        return dense(self._weight, rows[0].dtype)


class Fp8Linear:
    """A linear layer of e4m3 numbers, with results in the type of the weight it was made from."""

    def __init__(self, weight: Weight, bias: Tensor | None) -> None:
        assert isinstance(weight, Tensor), "FP8 products of quantised weights are refused before"
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


@dataclass(frozen=True, slots=True)
class Join:
    """A linear layer into the residual stream, and the norm behind it, which adds the product and `bias`.

    With `in_place` the product adds itself, and the stream then lacks `bias`.
    """

    linear: Linear
    bias: Tensor
    norm: Norm
    in_place: bool

    def __call__(self, x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """Return the stream ``[T, N]`` after `x`, and its norm as rows."""
        if self.in_place and isinstance(self.linear, WideLinear):
            self.linear.add_to(x, rows)
            return x, (shifted_norm(x, self.bias, self.norm.weight, self.norm.bias, self.norm.eps),)
        return self.norm(x, self.linear(rows), self.bias)


def join_layers(
    linears: Sequence[Linear], biases: Sequence[Tensor], norms: Sequence[Norm]
) -> tuple[list[Join], list[Tensor]]:
    """Join layers without biases of their own to a residual stream; the first join leaves its input unchanged.

    `biases` ``[N]`` and `norms` belong to the layers in order; there may be more biases, of layers that are not joined.
    Returns the joins, and after each bias the sum that must be added to the stream to complete it.
    """
    adding = all(isinstance(linear, WideLinear) for linear in linears)
    lacking = list(biases)
    if adding and len(biases) > 1:
        wide = torch.promote_types(biases[0].dtype, torch.float32)
        lacking[1:] = accumulate(bias.to(wide) for bias in biases[1:])
    parts = enumerate(zip(linears, lacking, norms, strict=False))
    return [Join(*part, in_place=adding and index > 0) for index, part in parts], lacking
