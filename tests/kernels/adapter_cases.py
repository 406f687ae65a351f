"""Batches whose rows have adapters of different ranks."""

import torch
from torch import Tensor

from photonlite.kernels.adapters import AdapterRows, AdapterStack

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
