"""Batches whose rows have adapters of different ranks."""

import torch
from torch import Tensor

from photonlite.kernels.adapters import AdapterRows, AdapterStack
from photonlite.kernels.row_adapters import RowTerm

# slots of units, rows of a unit, inputs, outputs, rank of the stack, first output
CASES = [
    ([1, 0, 3, 3, 2, 1], 1, 72, 40, 4, 0),
    ([0, 0, 2], 1, 300, 70, 16, 5),
    ([1] * 20 + [0] * 3 + [2] * 18, 1, 130, 24, 6, 3),
    ([3, 0, 1], 9, 33, 130, 5, 0),
    ([0, 0], 2, 16, 16, 2, 0),
    ([2], 1, 700, 65, 20, 1),
]


def adapter_case(
    slots: list[int],
    per_unit: int,
    ins: int,
    outs: int,
    rank: int,
    first: int,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, AdapterRows, AdapterStack]:
    """Return y, x, rows and a stack of three slots, the second of which has half the rank; slot 0 holds NaNs."""
    a, b = torch.randn(4, rank, ins) * ins**-0.5, torch.randn(4, outs, rank)
    ranks = [0, rank, max(1, rank // 2), rank]
    a[2, ranks[2] :], b[2, :, ranks[2] :] = 0, 0
    a[0], b[0] = torch.nan, torch.nan
    where = torch.device(device)
    x = torch.randn(1, len(slots) * per_unit, ins)
    y = torch.randn(1, len(slots) * per_unit, outs + first + 2)
    rows = AdapterRows.of(slots, [1] * len(slots), where)
    stack = AdapterStack(a.to(where, dtype), b.to(where, dtype), first, ranks)
    return y.to(where, dtype), x.to(where, dtype), rows, stack


def random_term(
    slots: int,
    rank: int,
    sizes: tuple[int, int],
    column: int,
    first: int,
    *,
    begin: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> RowTerm:
    """Return a term of so many inputs and outputs; slot 0 holds NaNs."""
    ins, outs = sizes
    a, b = torch.randn(slots + 1, rank, ins) * ins**-0.5, torch.randn(slots + 1, outs, rank) / rank**0.5
    a[0], b[0] = torch.nan, torch.nan
    stack = AdapterStack(a.to(device, dtype), b.to(device, dtype), 0, [0, *[rank] * slots])
    return RowTerm(stack, column, begin, first)


def block_terms(
    slots: int, rank: int, sizes: tuple[int, int, int, int], dtype: torch.dtype, device: str = "cpu"
) -> tuple[dict[str, list[RowTerm]], int]:
    """Return the terms of a parallel block by what reads or adds them, and the columns of their ``A x``.

    `sizes` are those of the stream, of queries, keys and values, of the MLP's inside, and of what attention returns.
    """
    dim, qkv, inner, attended = sizes

    def term(number: int, ins: int, outs: int, begin: int, first: int) -> RowTerm:
        made = (ins, outs), number * rank, first
        return random_term(slots, rank, *made, begin=begin, dtype=dtype, device=device)

    of_qkv, of_fc1, whole = term(0, dim, qkv, 0, 0), term(1, dim, inner, 0, qkv), term(2, dim, dim, 0, 0)
    of_proj, of_fc2 = term(3, attended, dim, 0, 0), term(4, inner, dim, attended, 0)
    found = {
        "of_norm": [of_qkv, of_fc1, whole],
        "of_inside": [of_proj, of_fc2],
        "into": [of_qkv, of_fc1],
        "out": [whole, of_proj, of_fc2],
    }
    return found, 5 * rank
