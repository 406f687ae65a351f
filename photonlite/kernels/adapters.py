"""Low-rank terms of several adapters in one batch: each row is multiplied with the matrices of its own slot.

```
x [T, K] ── A of the row's slot ── low [P, T, R] in P parts of K ── B of the row's slot ──> added to y [T, N]
```

A program takes a tile of rows, a slot and a part of K, or of N, and ends at once where no row of the tile has its slot:
rows of prompts follow each other, so most tiles have one. Rows of other slots, and those of slot 0, are neither read
nor written. Parts are added up when they are read: the order of sums does not depend on how programs are scheduled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from photonlite.kernels.reference import adapters as reference
from photonlite.kernels.reference.adapters import AdapterRows, AdapterStack
from photonlite.kernels.triton_utils import power_of_2, tl, triton, use_triton

__all__ = ["AdapterRows", "AdapterStack", "add_adapters"]

ROWS = 16  # of a tile: the least that tensor cores multiply
STEP = 64  # inputs that a program reads at a time
OUTS = 64  # outputs of a program
PART = 256  # inputs of a part, at least
MOST_PARTS = 16


def add_adapters(y: Tensor, x: Tensor, rows: AdapterRows, stack: AdapterStack) -> None:
    """Add ``B_s A_s x`` to y in place, `s` being the slot of each unit; see the reference.

    Products of half precision are added up in float32; what is between the two is rounded as in the reference.
    """
    wide = x.is_cuda and x.dtype not in (torch.bfloat16, torch.float16)  # tensor cores would round it
    if wide or not use_triton(x):
        reference.add_adapters(y, x, rows, stack)
        return
    inputs, outputs = x.reshape(-1, x.shape[-1]), y.view(-1, y.shape[-1])
    (count, ins), (slots, outs, rank) = inputs.shape, stack.b.shape
    if not count:
        return
    width, parts = power_of_2(max(16, rank)), min(MOST_PARTS, -(-ins // PART))
    low = torch.empty(parts, count, width, dtype=torch.float32, device=x.device)
    tiles, per_unit = -(-count // ROWS), count // rows.units
    shape = {"RANK": rank, "WIDTH": width, "ROWS": ROWS, "num_warps": 4}
    _shrink_kernel[(tiles, slots - 1, parts)](
        inputs, stack.a, rows.index, low, count, ins, inputs.stride(0), per_unit, PARTS=parts, STEP=STEP, **shape
    )
    target = outputs[:, stack.first :]
    _expand_kernel[(tiles, slots - 1, -(-outs // OUTS))](
        low, stack.b, rows.index, target, count, outs, target.stride(0), per_unit, PARTS=parts, OUTS=OUTS, **shape
    )


@triton.jit
def _shrink_kernel(
    x: tl.tensor, a: tl.tensor, index: tl.tensor, low: tl.tensor, count: tl.tensor, ins: tl.tensor, stride: tl.tensor,
    per_unit: tl.tensor,
    PARTS: tl.constexpr, STEP: tl.constexpr, RANK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """Write ``A x`` of a tile of rows, as far as they have slot `program_id(1) + 1`, over part `program_id(2)`."""
    slot, part = tl.program_id(1) + 1, tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = tl.load(index + row // per_unit, mask=row < count, other=0) == slot
    if tl.max(own.to(tl.int32), 0) > 0:
        rank = tl.arange(0, WIDTH)
        size = tl.cdiv(tl.cdiv(ins, PARTS), STEP) * STEP
        begin = part * size
        end = tl.minimum(begin + size, ins)
        total = tl.zeros((ROWS, WIDTH), tl.float32)
        source = x + row.to(tl.int64)[:, None] * stride
        matrix = a + slot.to(tl.int64) * RANK * ins + rank[None, :] * ins
        for place in range(begin, end, STEP):
            column = place + tl.arange(0, STEP)
            values = tl.load(source + column[None, :], mask=own[:, None] & (column < end)[None, :], other=0.0)
            weights = tl.load(
                matrix + column[:, None], mask=(rank < RANK)[None, :] & (column < end)[:, None], other=0.0
            )
            total = tl.dot(values, weights, total)
        target = low + (part * count + row).to(tl.int64)[:, None] * WIDTH + rank[None, :]
        tl.store(target, total, mask=own[:, None])


@triton.jit
def _expand_kernel(
    low: tl.tensor, b: tl.tensor, index: tl.tensor, y: tl.tensor, count: tl.tensor, outs: tl.tensor, stride: tl.tensor,
    per_unit: tl.tensor,
    PARTS: tl.constexpr, OUTS: tl.constexpr, RANK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """Add ``B low`` to columns of a tile of rows, as far as they have slot `program_id(1) + 1`."""
    slot = tl.program_id(1) + 1
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = tl.load(index + row // per_unit, mask=row < count, other=0) == slot
    if tl.max(own.to(tl.int32), 0) > 0:
        rank = tl.arange(0, WIDTH)
        column = tl.program_id(2) * OUTS + tl.arange(0, OUTS)
        total = tl.zeros((ROWS, WIDTH), tl.float32)
        for part in range(PARTS):
            place = (part * count + row).to(tl.int64)[:, None] * WIDTH + rank[None, :]
            total += tl.load(low + place, mask=own[:, None], other=0.0)
        weights = tl.load(
            b + slot.to(tl.int64) * outs * RANK + column[None, :] * RANK + rank[:, None],
            mask=(rank < RANK)[:, None] & (column < outs)[None, :],
            other=0.0,
        )
        target = y + row.to(tl.int64)[:, None] * stride + column[None, :]
        mask = own[:, None] & (column < outs)[None, :]
        added = tl.dot(total.to(weights.dtype), weights)
        before = tl.load(target, mask=mask, other=0.0)
        tl.store(target, (before.to(tl.float32) + added).to(before.dtype), mask=mask)
