"""Low-rank terms of adapters in decode steps: A in one launch with the norm, B as the end of the product itself.

```
x ── norm ─┬─ A of each row's slot ── low [T, L] ────────────────────┐
           └─ @ weight.T ── + B of the slot @ low ── bias, GELU, residual
```

Each row is multiplied with its own slot's A by programs of its own, whose share of A is small enough to be fetched
before the kernel in front has ended. `low` has the numbers of all terms of a block; those of rows without an adapter
are neither written nor read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from photonlite.kernels import row_adapters_kernels as device_code
from photonlite.kernels.reference import row_adapters as reference
from photonlite.kernels.reference.row_adapters import RowTerm, RowTerms
from photonlite.kernels.triton_utils import dependent_launch, power_of_2, use_triton

__all__ = ["RowTerm", "RowTerms", "expansion", "shrink"]

_NUMBERS = 16_384  # of A in a program: what its threads can hold in registers while they wait
_FEW, _NARROW = 16, 2048  # rows up to which programs may; columns that those of more take at a time; not measured yet
_CHUNK = 128  # columns of B in a step, at most
_LEAST = 16  # the least that tensor cores multiply


def shrink(x: Tensor, added: RowTerms, norm: tuple[Tensor, Tensor, float] | None = None) -> Tensor:
    """Write ``A x`` of some terms, of which there is at least one; return x ``[T, K]``, layer-normalised with `norm`.

    `norm` is its weight, bias and eps, and is rounded to the type of x before it is multiplied.
    """
    half = x.dtype in (torch.bfloat16, torch.float16)
    if not use_triton(x) or (x.is_cuda and not half):
        x = x if norm is None else functional.layer_norm(x, x.shape[-1:], *norm)
        reference.shrink(x, added)
        return x
    rows, ins = x.shape
    stacks = [term.stack.a for term in added.terms]
    rank, longest, numbers = stacks[0].shape[1], max(a.shape[2] for a in stacks), _NUMBERS
    width = power_of_2(longest)
    if norm is None and rows > _FEW:
        # All programs must have begun, beside those of attention, before the next kernel can.
        width, numbers = min(width, _NARROW), 2 * _NARROW
    ranks = max(1, min(numbers // width, power_of_2(rank)))
    out, (weight, bias, eps) = (x, (x, x, 0.0)) if norm is None else (torch.empty_like(x), norm)
    terms = tuple((a, term.column, term.begin, a.shape[2]) for a, term in zip(stacks, added.terms, strict=True))
    device_code.shrink_kernel[(rows, len(terms) * -(-rank // ranks))](
        x, weight, bias, out, added.index, added.low, terms, ins, x.stride(0), added.low.stride(0), eps,
        NORM=norm is not None, LONG=longest > width, WIDTH=width, RANK=rank, RANKS=ranks,
        num_warps=4 if width <= _NUMBERS else 8, **dependent_launch(x),
    )  # fmt: skip
    return out


def expansion(added: RowTerms | None, parts: int) -> tuple[tuple[Any, ...], dict[str, int]]:
    """Return what `product_kernel` takes to add terms, and its constants."""
    if added is None or not added.terms:
        return (), {"SLOTS": 0, "RANK": 0, "CHUNK": 0}
    slots, _, rank = added.terms[0].stack.b.shape
    columns = (slots - 1) * rank
    terms = tuple((term.stack.b, term.column, term.first, term.stack.b.shape[1]) for term in added.terms)
    chunk = min(_CHUNK, max(_LEAST, power_of_2(-(-columns // parts))))
    return (added.index, added.low, added.low.stride(0), terms), {"SLOTS": slots - 1, "RANK": rank, "CHUNK": chunk}
