"""Low-rank terms of a few rows in PyTorch; see `kernels.row_adapters`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from photonlite.kernels.reference.adapters import AdapterStack


@dataclass(frozen=True, slots=True)
class RowTerm:
    """A term ``B_s A_s x`` of a product, `s` being the slot of each row; all terms of a block share a buffer of A x."""

    stack: AdapterStack
    column: int  # of the buffer: A x takes R columns from here on
    begin: int  # of the product's input: A reads K columns from here on
    first: int  # of the product's output: B adds to N columns from here on


@dataclass(frozen=True, slots=True)
class RowTerms:
    """Terms that are added to a product, or whose A x is computed for later."""

    index: Tensor  # int32 [T]: the slot of each row, 0 for none; written before the step begins
    low: Tensor  # [T, L], at least float32; of prompts parts of it, [P, T, L]
    terms: Sequence[RowTerm]


def shrink(x: Tensor, added: RowTerms) -> None:
    for term in added.terms:
        a = term.stack.a[added.index.long()]  # [T, R, K]
        low = torch.einsum("trk,tk->tr", a, x[:, term.begin : term.begin + a.shape[2]])
        added.low[:, term.column : term.column + a.shape[1]] = _own(low, added.index)


def add_terms(y: Tensor, added: RowTerms | None) -> None:
    """Add terms, if any, to the product's output `y` in place; ``A x`` is rounded as in `reference.adapters`."""
    if added is None:
        return
    for term in added.terms:
        b = term.stack.b[added.index.long()]  # [T, N, R]
        low = added.low[:, term.column : term.column + b.shape[2]].to(b.dtype)
        y[:, term.first : term.first + b.shape[1]] += _own(torch.einsum("tnr,tr->tn", b, low), added.index)


def _own(values: Tensor, index: Tensor) -> Tensor:
    """Return values of rows that have an adapter, and zeros for the others: slot 0 may hold anything."""
    return torch.where((index > 0)[:, None], values, 0.0)
