"""Embedding sampled tokens in one launch: words and coordinates from tables, sizes computed.

```
row of the pending table   id, -1, -1       words[id]
                           id, bin, -1      coordinates[bin]
                           id, bin, bin     [cos | sin](2 pi (width, height) @ frequencies) @ weight.T + bias
```

A program has some columns of some rows. There are few coordinates, so all are embedded in advance; pairs of sizes are
not, and only a program that has such a row reads the weights for them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from photonlite.kernels import columns
from photonlite.kernels.reference import embedding as reference
from photonlite.kernels.reference.embedding import InputTables
from photonlite.kernels.triton_utils import dependent_launch, power_of_2, tl, triton, use_triton

FEW_ROWS = 8
"""Up to here a program has one row, and as many programs as there are multiprocessors share it; beyond, weights are
read once for the 16 rows that a matrix product takes."""


# Rows and columns of a program, and the frequencies in one step of its loop.
_ONE_ROW, _MANY_ROWS = (1, 16, 256), (16, 32, 32)
_ID, _BIN0, _BIN1 = (tl.constexpr(column) for column in (columns.ID, columns.BIN0, columns.BIN1))
_PENDING_COLUMNS = tl.constexpr(columns.PENDING_COLUMNS)


def embed_pending(pending: Tensor, rows: Tensor, tables: InputTables) -> Tensor:
    """Embed `rows`, int32 ``[B]`` of any stride, of the pending table, int32 ``[R, PENDING_COLUMNS]``.

    Returns ``[B, dim]`` in the type of the tables. Ids and bins lie in their tables. Features of sizes are rounded to
    that type at each step; the sums of their linear layer are float32 and rounded once.
    """
    if tables.words.dtype == torch.float64 or not use_triton(pending):
        return reference.embed_pending(pending, rows, tables)
    dim, features = tables.weight.shape
    height, width, step = _ONE_ROW if len(rows) <= FEW_ROWS else _MANY_ROWS
    out = tables.words.new_empty(len(rows), dim)
    _embed_kernel[(-(-dim // width), -(-len(rows) // height))](
        pending, rows, tables.words, tables.coordinates, tables.sizes, tables.frequencies, tables.weight, tables.bias,
        out, len(rows), rows.stride(0),
        DIM=dim, FREQUENCIES=features // 2, STEP=max(16, min(step, power_of_2(features // 2))),
        ROWS=height, COLUMNS=width, num_warps=4, **dependent_launch(out),
    )  # fmt: skip
    return out


@triton.jit
def _embed_kernel(
    pending: tl.tensor, rows: tl.tensor, words: tl.tensor, coordinates: tl.tensor, sizes: tl.tensor,
    frequencies: tl.tensor, weight: tl.tensor, bias: tl.tensor, out: tl.tensor, count: tl.tensor,
    rows_stride: tl.tensor,
    DIM: tl.constexpr, FREQUENCIES: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Embed columns `program_id(0)` of rows `program_id(1)`."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there = row < count
    sampled = pending + tl.load(rows + row.to(tl.int64) * rows_stride, mask=there, other=0) * _PENDING_COLUMNS
    number = tl.load(sampled + _ID, mask=there, other=0)
    first = tl.load(sampled + _BIN0, mask=there, other=-1)
    second = tl.load(sampled + _BIN1, mask=there, other=-1)
    sized = second >= 0
    inside = (there & (sized == 0))[:, None] & (column < DIM)[None, :]
    place = tl.where(first >= 0, first, number).to(tl.int64)[:, None] * DIM + column[None, :]
    here = (first >= 0)[:, None]
    word = tl.load(words + place, mask=inside & (here == 0), other=0.0)
    coordinate = tl.load(coordinates + place, mask=inside & here, other=0.0)
    target = out + row.to(tl.int64)[:, None] * DIM + column[None, :]
    tl.store(target, tl.where(here, coordinate, word), mask=inside)
    if tl.max(sized.to(tl.int32), axis=0) != 0:
        width = tl.load(sizes + first, mask=sized, other=0.0)
        height = tl.load(sizes + second, mask=sized, other=0.0)
        total = _size(width, height, frequencies, weight, column, DIM, FREQUENCIES, STEP, ROWS, COLUMNS)
        total += tl.load(bias + column, mask=column < DIM, other=0.0).to(tl.float32)[None, :]
        tl.store(target, total.to(out.dtype.element_ty), mask=sized[:, None] & (column < DIM)[None, :])


@triton.jit
def _size(
    width: tl.tensor, height: tl.tensor, frequencies: tl.tensor, weight: tl.tensor, column: tl.tensor,
    DIM: tl.constexpr, FREQUENCIES: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Multiply the Fourier features of some sizes with some columns' weights, ``[ROWS, COLUMNS]``."""
    kind = weight.dtype.element_ty
    width = (6.283185307179586 * width.to(kind).to(tl.float32)).to(kind).to(tl.float32)[:, None]
    height = (6.283185307179586 * height.to(kind).to(tl.float32)).to(kind).to(tl.float32)[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in tl.range(0, FREQUENCIES, STEP, num_stages=1):
        f = begin + tl.arange(0, STEP)
        there = f < FREQUENCIES
        along = tl.load(frequencies + f, mask=there, other=0.0).to(tl.float32)[None, :]
        down = tl.load(frequencies + FREQUENCIES + f, mask=there, other=0.0).to(tl.float32)[None, :]
        angle = (width * along + height * down).to(kind).to(tl.float32)  # [ROWS, STEP]
        cell = weight + column[None, :] * (2 * FREQUENCIES) + f[:, None]
        mask = (column < DIM)[None, :] & there[:, None]
        cosines = tl.load(cell, mask=mask, other=0.0)  # [STEP, COLUMNS]
        sines = tl.load(cell + FREQUENCIES, mask=mask, other=0.0)
        real, imaginary = tl.cos(angle).to(kind), tl.sin(angle).to(kind)
        if ROWS == 1:
            products = tl.trans(real).to(tl.float32) * cosines.to(tl.float32)
            products += tl.trans(imaginary).to(tl.float32) * sines.to(tl.float32)
            total += tl.sum(products, axis=0)[None, :]
        else:
            total = tl.dot(real, cosines, total, input_precision="ieee")
            total = tl.dot(imaginary, sines, total, input_precision="ieee")
    return total
