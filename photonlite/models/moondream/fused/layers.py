"""Linear layers over rows, in full precision or FP8, with residual addition and norm between two of them.

```
FP8   x ────────────── + bias, rounded ─> x         else   x ───────┐
      rows ─ product ──┘       └─ norm ─> rows             rows ─ product, + ──────────────> x
                                                                       └─ + biases ─ norm ─> rows
```

Where the product itself adds to the residual stream, the norm reads one tensor instead of two and writes one instead of
two. The stream then lacks biases: the same numbers in every row, known beforehand, which every norm adds to its input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from photonlite.kernels.activations import gelu_linear
from photonlite.kernels.fp8 import fp8_linear, gelu_fp8, quantise_weight
from photonlite.kernels.norms import residual_norm, residual_norm_fp8, shifted_norm

PRODUCTS_ADD = True
"""Whether products add to the residual stream where they can; the gain is in `bench/results/gpu-notes.md`."""

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
        """Return GELU of the product plus bias."""
        if self._bias is None:
            raise AssertionError(f"GELU of a product {list(self._weight.shape)} without a bias: no layer does that")
        return (gelu_linear(rows[0], self._weight, self._bias),)

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
        """Return the product ``[T, N]``, plus the bias if there is one."""
        q, scale = rows
        return fp8_linear(q, scale, self._weight, self._bias, self._dtype)

    def gelu(self, rows: Rows) -> Rows:
        """Return GELU of the product plus bias, quantised."""
        return gelu_fp8(self(rows), None)


Linear: TypeAlias = WideLinear | Fp8Linear


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm of a residual stream, whose output is quantised if `fp8`."""

    weight: Tensor  # [D]
    bias: Tensor  # [D]
    eps: float
    fp8: bool

    @classmethod
    def of(cls, layer: nn.LayerNorm, *, fp8: bool) -> "Norm":
        """Share the weights of a layer."""
        return cls(layer.weight.detach(), layer.bias.detach(), layer.eps, fp8)

    def __call__(self, x: Tensor, delta: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Rows]:
        """Return ``x + delta + bias`` and its norm as rows; see `kernels.norms.residual_norm`."""
        kernel = residual_norm_fp8 if self.fp8 else residual_norm
        total, *rows = kernel(x, delta, bias, self.weight, self.bias, self.eps)
        return total, tuple(rows)


@dataclass(frozen=True, slots=True)
class AddingNorm:
    """A linear layer, and a norm that adds its product to the stream, out of place."""

    linear: Linear
    bias: Tensor
    norm: Norm

    def __call__(self, x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """Return the stream ``[T, N]`` after `x`, and its norm as rows."""
        return self.norm(x, self.linear(rows), self.bias)


@dataclass(frozen=True, slots=True)
class AddingProduct:
    """A linear layer that adds its product to the stream in place, and a norm; the stream then lacks `bias`."""

    linear: WideLinear
    bias: Tensor
    norm: Norm

    def __call__(self, x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """Return the stream ``[T, N]`` after `x`, and its norm as rows."""
        self.linear.add_to(x, rows)
        return x, (shifted_norm(x, self.bias, self.norm.weight, self.norm.bias, self.norm.eps),)


Join: TypeAlias = AddingNorm | AddingProduct


def join_layers(
    linears: Sequence[Linear], biases: Sequence[Tensor], norms: Sequence[Norm]
) -> tuple[list[Join], list[Tensor]]:
    """Join layers to a residual stream one after the other; the first join leaves its input unchanged.

    Args:
        linears: Without biases of their own.
        biases: Of each of them, ``[N]``; there may be more, of layers that are not joined.
        norms: Behind each of them.

    Returns:
        The joins, and after each bias the sum that must be added to the stream to complete it.
    """
    adding = PRODUCTS_ADD and all(isinstance(linear, WideLinear) for linear in linears)
    lacking = list(biases)
    if adding and len(biases) > 1:
        wide = torch.promote_types(biases[0].dtype, torch.float32)
        lacking[1:] = accumulate(bias.to(wide) for bias in biases[1:])
    joins: list[Join] = []
    for linear, bias, norm in zip(linears, lacking, norms, strict=False):
        if adding and joins and isinstance(linear, WideLinear):
            joins.append(AddingProduct(linear, bias, norm))
        else:
            joins.append(AddingNorm(linear, bias, norm))
    return joins, lacking
