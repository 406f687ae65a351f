"""Low-rank terms of several adapters in one batch: each row is multiplied with the matrices of its own slot.

```
x [T, K] ── shrink: A of the row's slot ── low [P, T, L] in P parts of K ── expand: B of the row's slot ──> added to y
```

One launch serves all terms that read the same input, and one all that add to the same output. A program takes a tile of
rows, and a part of a term's K or some columns of y; it goes through the slots that its rows have: rows of prompts
follow each other, so most tiles have one slot, or none. Rows of slot 0 are neither read nor written. Parts are added up
when they are read: the order of sums does not depend on how programs are scheduled. Decode steps add terms inside their
products: see `kernels.row_adapters`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from photonlite.kernels.reference import adapters as reference
from photonlite.kernels.reference import row_adapters as row_reference
from photonlite.kernels.reference.adapters import AdapterRows, AdapterStack
from photonlite.kernels.reference.row_adapters import RowTerm, RowTerms
from photonlite.kernels.triton_utils import dependent_launch, power_of_2, tl, triton, use_triton

__all__ = ["AdapterRows", "AdapterStack", "RowTerm", "RowTerms", "add_adapters", "empty_low", "expand", "shrink"]

STEP = 128  # inputs that a program reads at a time
OUTS = 128  # outputs of a program
FEW = 128  # rows up to which there are too few tiles for a card: they are smaller, and K has more parts


def add_adapters(y: Tensor, x: Tensor, rows: AdapterRows, stack: AdapterStack) -> None:
    """Add ``B_s A_s x`` to y in place, `s` being the slot of each unit; see the reference.

    Products of half precision are added up in float32; what is between the two is rounded as in the reference.
    """
    if _is_plain(x):
        reference.add_adapters(y, x, rows, stack)
        return
    inputs, outputs = x.reshape(-1, x.shape[-1]), y.view(-1, y.shape[-1])
    if not len(inputs):
        return
    per_unit = len(inputs) // rows.units
    term = RowTerm(stack, column=0, begin=0, first=stack.first)
    added = RowTerms(rows.index, empty_low(len(inputs), stack.b.shape[2], x), (term,))
    shrink(inputs, added, per_unit)
    expand(outputs, added, per_unit)


def empty_low(rows: int, columns: int, like: Tensor) -> Tensor:
    """Allocate what `shrink` writes for terms of so many ``A x`` together: ``[P, rows, columns]``, at least float32."""
    parts = 1 if _is_plain(like) else _tiling(rows)[1]
    return like.new_empty(parts, rows, columns, dtype=torch.promote_types(like.dtype, torch.float32))


def shrink(x: Tensor, added: RowTerms, per_unit: int = 1) -> None:
    """Write ``A x`` of some terms to `low`, x being ``[T, K]``; the index has one slot for each `per_unit` rows."""
    if _is_plain(x):
        row_reference.shrink(x, RowTerms(added.index, added.low[0], added.terms))
        return
    count, (tile, parts) = len(x), _tiling(len(x))
    terms = tuple((term.stack.a, term.column, term.begin, term.stack.a.shape[2]) for term in added.terms)
    rank, low = added.terms[0].stack.a.shape[1], added.low
    _shrink_kernel[(-(-count // tile), len(terms) * parts)](
        x, added.index, low, terms, count, x.stride(0), added.index.stride(0), low.stride(0), low.stride(1), per_unit,
        PARTS=parts, STEP=STEP, RANK=rank, WIDTH=power_of_2(max(16, rank)), ROWS=tile,
        num_warps=4, **dependent_launch(x),
    )  # fmt: skip


def expand(y: Tensor, added: RowTerms, per_unit: int = 1) -> None:
    """Add ``B low`` of some terms to y ``[T, N]`` in place, with one rounding."""
    if _is_plain(y):
        row_reference.add_terms(y, RowTerms(added.index, added.low[0], added.terms))
        return
    count, (tile, parts) = len(y), _tiling(len(y))
    terms = tuple(
        (term.stack.b, term.column, term.first, term.stack.b.shape[1], term.stack.b.stride(0)) for term in added.terms
    )
    begin, end = min(term[2] for term in terms), max(term[2] + term[3] for term in terms)
    rank, low = added.terms[0].stack.b.shape[2], added.low
    _expand_kernel[(-(-count // tile), -(-(end - begin) // OUTS))](
        low, added.index, y, terms, begin, count, y.stride(0), added.index.stride(0), low.stride(0), low.stride(1),
        per_unit,
        PARTS=parts, OUTS=OUTS, RANK=rank, WIDTH=power_of_2(max(16, rank)), ROWS=tile,
        num_warps=4, **dependent_launch(y),
    )  # fmt: skip


def _is_plain(x: Tensor) -> bool:
    wide = x.is_cuda and x.dtype not in (torch.bfloat16, torch.float16)  # tensor cores would round it
    return wide or not use_triton(x)


def _tiling(rows: int) -> tuple[int, int]:
    """Return the rows of a tile, of which tensor cores multiply 16 at least, and the parts of K."""
    return (16, 16) if rows <= FEW else (64, 4)


@triton.jit(do_not_specialize=["count", "part_stride"])  # they vary with the rows
def _shrink_kernel(
    x: tl.tensor, index: tl.tensor, low: tl.tensor, terms: tl.tuple, count: tl.tensor, x_stride: tl.tensor,
    index_stride: tl.tensor, part_stride: tl.tensor, low_stride: tl.tensor, per_unit: tl.tensor,
    PARTS: tl.constexpr, STEP: tl.constexpr, RANK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Write ``A x`` of a tile of rows; program `program_id(1)` has one term and one part of its K."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, part = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) % PARTS
    own = tl.load(index + row // per_unit * index_stride, mask=row < count, other=0)
    least, most = tl.min(tl.where(own > 0, own, 2147483647), axis=0), tl.max(own, axis=0)
    rank = tl.arange(0, WIDTH)
    for i in tl.static_range(len(terms)):
        a, place, begin, ins = terms[i]
        if tl.program_id(1) // PARTS == i:
            size = tl.cdiv(tl.cdiv(ins, PARTS), STEP) * STEP
            first = part * size
            source = x + row.to(tl.int64)[:, None] * x_stride + begin
            total = tl.zeros((ROWS, WIDTH), tl.float32)
            for slot in range(least, most + 1):
                mine = own == slot
                if tl.max(mine.to(tl.int32), axis=0) > 0:
                    matrix = a + tl.cast(slot, tl.int64) * RANK * ins + rank[None, :] * ins
                    for start in range(first, tl.minimum(first + size, ins), STEP):
                        k = start + tl.arange(0, STEP)
                        values = tl.load(source + k[None, :], mask=mine[:, None] & (k < ins)[None, :], other=0.0)
                        weights = tl.load(
                            matrix + k[:, None], mask=(rank < RANK)[None, :] & (k < ins)[:, None], other=0.0
                        )
                        total = tl.dot(values, weights, total)
            target = low + part * part_stride + row.to(tl.int64)[:, None] * low_stride + place + rank[None, :]
            tl.store(target, total, mask=(own > 0)[:, None] & (rank < RANK)[None, :])


@triton.jit(do_not_specialize=["count", "part_stride"])
def _expand_kernel(
    low: tl.tensor, index: tl.tensor, y: tl.tensor, terms: tl.tuple, begin: tl.tensor, count: tl.tensor,
    y_stride: tl.tensor, index_stride: tl.tensor, part_stride: tl.tensor, low_stride: tl.tensor, per_unit: tl.tensor,
    PARTS: tl.constexpr, OUTS: tl.constexpr, RANK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Add ``B low`` of all terms to columns `program_id(1)` of y, counted from `begin`, of a tile of rows."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = tl.load(index + row // per_unit * index_stride, mask=row < count, other=0)
    least, most = tl.min(tl.where(own > 0, own, 2147483647), axis=0), tl.max(own, axis=0)
    if most > 0:
        rank, start = tl.arange(0, WIDTH), begin + tl.program_id(1) * OUTS
        n = start + tl.arange(0, OUTS)
        total, written = tl.zeros((ROWS, OUTS), tl.float32), n < 0
        for i in tl.static_range(len(terms)):
            b, place, first, outs, slot_stride = terms[i]
            inside = (n >= first) & (n < first + outs)
            written = written | inside
            if (start + OUTS > first) & (start < first + outs):
                small = tl.zeros((ROWS, WIDTH), tl.float32)
                cell = low + row.to(tl.int64)[:, None] * low_stride + place + rank[None, :]
                for part in tl.static_range(PARTS):
                    known = (own > 0)[:, None] & (rank < RANK)[None, :]
                    small += tl.load(cell + part * part_stride, mask=known, other=0.0)
                for slot in range(least, most + 1):
                    mine = own == slot
                    if tl.max(mine.to(tl.int32), axis=0) > 0:
                        weights = tl.load(
                            b + tl.cast(slot, tl.int64) * slot_stride + (n - first)[None, :] * RANK + rank[:, None],
                            mask=(rank < RANK)[:, None] & inside[None, :],
                            other=0.0,
                        )
                        total = tl.dot(tl.where(mine[:, None], small, 0.0).to(weights.dtype), weights, total)
        target = y + row.to(tl.int64)[:, None] * y_stride + n[None, :]
        mask = (own > 0)[:, None] & written[None, :]
        before = tl.load(target, mask=mask, other=0.0)
        # Several warps may hold the same cell, each having loaded it: one that reads late would add twice.
        tl.debug_barrier()
        tl.store(target, (before.to(tl.float32) + total).to(before.dtype), mask=mask)
