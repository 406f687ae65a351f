"""Linear layers over rows, in full precision or FP8, and what stands between two of them: residual addition and norm.

```
FP8   x ────────────── + bias, rounded ─> x         else   x ───────┐
      rows ─ product ──┘       └─ norm ─> rows             rows ─ product, + ──────────────> x
                                                                       └─ + biases ─ norm ─> rows
```

Where the product itself adds to the residual stream, the norm reads one tensor instead of two and writes one instead of
two. The stream then lacks biases: the same numbers in every row, known beforehand, which every norm adds on its way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from photonlite.kernels.activations import gelu_linear
from photonlite.kernels.fp8 import fp8_linear, gelu_fp8, quantise_weight
from photonlite.kernels.norms import residual_norm, residual_norm_fp8, shifted_norm

PRODUCTS_ADD = True
"""Whether products add to the residual stream where they can; what it gains is in `bench/results/gpu-notes.md`."""

Rows = tuple[Tensor, ...]
"""Rows as a product takes them: ``[T, K]``, or e4m3 ``[T, K]`` and scales ``[T, 1]``."""


class Linear(Protocol):
    """A linear layer over rows."""

    def __call__(self, rows: Rows) -> Tensor:
        """Give ``[T, N]``, bias included if the layer was given one."""
        ...

    def gelu(self, rows: Rows) -> Rows:
        """Give GELU of that, as rows."""
        ...


class Join(Protocol):
    """A linear layer, the addition of what it gives to a residual stream, and the norm behind."""

    def __call__(self, x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """Give the stream ``[T, N]`` after `x` and its norm as rows."""
        ...


class WideLinear:
    """A linear layer in the type of its weight.

    Args:
        weight: ``[N, K]``.
        bias: ``[N]``; None for none.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight.detach()
        self._bias = None if bias is None else bias.detach()

    def __call__(self, rows: Rows) -> Tensor:
        """Multiply; see :class:`Linear`."""
        return functional.linear(rows[0], self._weight, self._bias)

    def gelu(self, rows: Rows) -> Rows:
        """Multiply and activate; see :class:`Linear`."""
        if self._bias is None:
            raise AssertionError(f"GELU of a product {list(self._weight.shape)} without a bias: no layer does that")
        return (gelu_linear(rows[0], self._weight, self._bias),)

    def add_to(self, x: Tensor, rows: Rows) -> None:
        """Add the product, without the bias, to ``x [T, N]`` in place: one rounding."""
        x.addmm_(rows[0], self._weight.t())


class Fp8Linear:
    """A linear layer of e4m3 numbers; arguments as for :class:`WideLinear`, in whose type it answers."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = quantise_weight(weight)
        self._bias = None if bias is None else bias.detach()
        self._dtype = weight.dtype

    def __call__(self, rows: Rows) -> Tensor:
        """Multiply; see :class:`Linear`."""
        q, scale = rows
        return fp8_linear(q, scale, self._weight, self._bias, self._dtype)

    def gelu(self, rows: Rows) -> Rows:
        """Multiply and activate; see :class:`Linear`."""
        return gelu_fp8(self(rows), None)


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm of a residual stream.

    Attributes:
        weight: ``[D]``.
        bias: ``[D]``.
        eps: Added to the variance.
        fp8: Whether what it gives is quantised.
    """

    weight: Tensor
    bias: Tensor
    eps: float
    fp8: bool

    def __call__(self, x: Tensor, delta: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Rows]:
        """Give the stream after ``x + delta + bias``, and its norm as rows; see `kernels.norms.residual_norm`."""
        run = residual_norm_fp8 if self.fp8 else residual_norm
        total, *rows = run(x, delta, bias, self.weight, self.bias, self.eps)
        return total, tuple(rows)


def norm_of(layer: nn.LayerNorm, *, fp8: bool) -> Norm:
    """Take over the weights of a layer."""
    return Norm(layer.weight.detach(), layer.bias.detach(), layer.eps, fp8)


@dataclass(frozen=True, slots=True)
class AddingNorm:
    """A join whose norm adds; it leaves the stream it is given as it is. See :class:`Join`."""

    linear: Linear
    bias: Tensor
    norm: Norm

    def __call__(self, x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """Multiply, add and normalise."""
        return self.norm(x, self.linear(rows), self.bias)


@dataclass(frozen=True, slots=True)
class AddingProduct:
    """A join whose product adds to the stream in place; `bias` is what the stream lacks then. See :class:`Join`."""

    linear: WideLinear
    bias: Tensor
    norm: Norm

    def __call__(self, x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """Multiply and add, then normalise."""
        self.linear.add_to(x, rows)
        return x, (shifted_norm(x, self.bias, self.norm.weight, self.norm.bias, self.norm.eps),)


def joins_of(
    linears: Sequence[Linear], biases: Sequence[Tensor], norms: Sequence[Norm]
) -> tuple[list[Join], list[Tensor]]:
    """Join layers to a residual stream, one after the other. The first join leaves the stream it is given as it is.

    Args:
        linears: Without biases of their own.
        biases: What each of them adds besides, ``[N]``; there may be more, of layers that are not joined.
        norms: Behind each of them.

    Returns:
        The joins, and after each bias what is to be added to the stream for it to be complete.
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
