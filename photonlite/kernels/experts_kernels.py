"""Device code of `kernels.experts`: routing, grouped products, and the sum of what experts return."""

from __future__ import annotations

from photonlite.kernels.triton_utils import tl, triton


@triton.jit
def _ranks(
    logits: tl.tensor, shares: tl.tensor, m: tl.tensor, e: tl.tensor, rows: tl.tensor, stride: tl.tensor,
    EXPERTS: tl.constexpr, RANKS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Rank the largest logits of some rows and store their shares; return ranks [M, E], -1 for what is not chosen.

    Among equals the first comes first. NaN counts as minus infinity: any input still gets `RANKS` different experts.
    """
    left = (m < rows)[:, None] & (e < EXPERTS)[None, :]
    value = tl.load(logits + m.to(tl.int64)[:, None] * stride + e[None, :], mask=left, other=0.0).to(tl.float32)
    value = tl.where(value == value, value, float("-inf"))
    largest = tl.max(tl.where(left, value, float("-inf")), axis=1)
    rank = tl.full(value.shape, -1, tl.int32)
    for index in tl.static_range(RANKS):
        best = tl.max(tl.where(left, value, float("-inf")), axis=1)
        place = tl.min(tl.where(left & (value == best[:, None]), e[None, :], EXPERTS), axis=1)
        hit = e[None, :] == place[:, None]
        rank = tl.where(hit & left, index, rank)
        left = left & (hit == 0)
    chosen = rank >= 0
    mass = tl.where(chosen, tl.exp(value - largest[:, None]), 0.0)
    share = mass / tl.sum(mass, axis=1)[:, None]
    tl.store(shares + m[:, None] * RANKS + rank, share.to(shares.dtype.element_ty), mask=chosen)
    return rank


@triton.jit
def _store_order(
    order: tl.tensor, starts: tl.tensor, rank: tl.tensor, m: tl.tensor, e: tl.tensor, before: tl.tensor,
    counts: tl.tensor, first: tl.tensor,
    EXPERTS: tl.constexpr, RANKS: tl.constexpr,
) -> None:  # fmt: skip
    """Store the pairs of some rows, `before` [E] of each expert's being in front of them, `counts` [E] in all."""
    chosen = (rank >= 0).to(tl.int32)
    ends = tl.cumsum(counts, axis=0)
    place = (ends - counts + before)[None, :] + tl.cumsum(chosen, axis=0) - chosen
    tl.store(order + place, m[:, None] * RANKS + rank, mask=chosen > 0)
    if first == 0:
        tl.store(starts + e, ends - counts, mask=e < EXPERTS)
        tl.store(starts + EXPERTS, tl.sum(counts, axis=0))


# Rows are any number: a compilation while serving, for a new one, would take a fraction of a second.
@triton.jit(do_not_specialize=["rows"])
def route_kernel(
    logits: tl.tensor, shares: tl.tensor, order: tl.tensor, starts: tl.tensor, ranks: tl.tensor,
    block_counts: tl.tensor, rows: tl.tensor, stride: tl.tensor,
    EXPERTS: tl.constexpr, WIDTH: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr, ALONE: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Route block `program_id(0)` of the rows; the only block sorts its pairs too, others leave ranks and counts."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    block = tl.program_id(0)
    m, e = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    rank = _ranks(logits, shares, m, e, rows, stride, EXPERTS, RANKS)
    counts = tl.sum((rank >= 0).to(tl.int32), axis=0)
    if ALONE:
        _store_order(order, starts, rank, m, e, tl.zeros_like(counts), counts, block, EXPERTS, RANKS)
    else:
        tl.store(ranks + m[:, None] * WIDTH + e[None, :], rank.to(tl.int8), mask=(m < rows)[:, None])
        tl.store(block_counts + block * WIDTH + e, counts)


@triton.jit(do_not_specialize=["rows"])
def sort_kernel(
    order: tl.tensor, starts: tl.tensor, ranks: tl.tensor, block_counts: tl.tensor, rows: tl.tensor,
    EXPERTS: tl.constexpr, WIDTH: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Sort the pairs of block `program_id(0)` behind those of the blocks in front of it."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    block, blocks = tl.program_id(0), tl.num_programs(0)
    m, e = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    counts, before = tl.zeros([WIDTH], tl.int32), tl.zeros([WIDTH], tl.int32)
    for first in range(0, blocks, STEP):
        other = first + tl.arange(0, STEP)
        found = tl.load(block_counts + other[:, None] * WIDTH + e[None, :], mask=(other < blocks)[:, None], other=0)
        counts += tl.sum(found, axis=0)
        before += tl.sum(tl.where((other < block)[:, None], found, 0), axis=0)
    rank = tl.load(ranks + m[:, None] * WIDTH + e[None, :], mask=(m < rows)[:, None], other=-1).to(tl.int32)
    _store_order(order, starts, rank, m, e, before, counts, block, EXPERTS, RANKS)


@triton.jit
def _tile_of(
    starts: tl.tensor, tile: tl.tensor,
    EXPERTS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Return a tile's expert, its first place in the order, and where that expert's pairs end.

    Tiles are counted expert by expert; a tile behind the last one has an expert that does not exist.
    """
    e = tl.arange(0, WIDTH)
    begin = tl.load(starts + e, mask=e < EXPERTS, other=0)
    end = tl.load(starts + e + 1, mask=e < EXPERTS, other=0)
    tiles = (end - begin + ROWS - 1) // ROWS
    after = tl.cumsum(tiles, axis=0)
    expert = tl.sum((after <= tile).to(tl.int32), axis=0)
    own = e == expert
    first = tl.sum(tl.where(own, begin + (tile - (after - tiles)) * ROWS, 0), axis=0)
    return expert, first, tl.sum(tl.where(own, end, 0), axis=0)


@triton.jit
def _gelu(x: tl.tensor) -> tl.tensor:
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _operand(weight: tl.tensor, other: tl.tensor, FP8: tl.constexpr) -> tl.tensor:
    """Convert weights to the type that they are multiplied in."""
    if FP8:  # capability 9.0 has but a slow unit for e4m3 to bfloat16, and Triton 3.6 fails at it for 8.9
        weight = weight.to(tl.float32)
    return weight.to(other.dtype)


@triton.jit
def experts_in_kernel(
    x: tl.tensor, weight: tl.tensor, scale: tl.tensor, order: tl.tensor, starts: tl.tensor, out: tl.tensor,
    x_stride: tl.tensor,
    INS: tl.constexpr, INNER: tl.constexpr, EXPERTS: tl.constexpr, WIDTH: tl.constexpr, RANKS: tl.constexpr,
    FP8: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Compute activations `program_id(0)` of tile `program_id(1)`: h and g of one expert, of up to `ROWS` pairs."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    expert, first, stop = _tile_of(starts, tl.program_id(1), EXPERTS, WIDTH, ROWS)
    if expert < EXPERTS:
        n, m = tl.program_id(0) * OUTS + tl.arange(0, OUTS), first + tl.arange(0, ROWS)
        there = (m < stop)[:, None]
        row = x + (tl.load(order + m, mask=m < stop, other=0) // RANKS).to(tl.int64)[:, None] * x_stride  # [M, 1]
        near = tl.minimum(n, INNER - 1)
        inside = weight + expert.to(tl.int64) * (2 * INNER * INS) + near[:, None] * INS  # [N, 1]
        gate = inside + INNER * INS
        lanes: tl.constexpr = STEP if ROWS == 1 else ROWS
        h, g = tl.zeros([OUTS, lanes], tl.float32), tl.zeros([OUTS, lanes], tl.float32)
        for step in tl.range(0, INS, STEP, num_stages=STAGES):
            k = step + tl.arange(0, STEP)[None, :]
            if INS % STEP == 0:
                w, v = tl.load(inside + k), tl.load(gate + k)
                a = tl.load(row + k, mask=there, other=0.0)
            else:
                w, v = tl.load(inside + k, mask=k < INS, other=0.0), tl.load(gate + k, mask=k < INS, other=0.0)
                a = tl.load(row + k, mask=there & (k < INS), other=0.0)
            if ROWS == 1:
                h += w.to(tl.float32) * a.to(tl.float32)
                g += v.to(tl.float32) * a.to(tl.float32)
            else:
                h = tl.dot(_operand(w, a, FP8), tl.trans(a), h)
                g = tl.dot(_operand(v, a, FP8), tl.trans(a), g)
        if ROWS == 1:
            h, g = tl.sum(h, axis=1)[:, None], tl.sum(g, axis=1)[:, None]
        if FP8:
            scales = scale + expert * (2 * INNER) + near
            h, g = h * tl.load(scales)[:, None], g * tl.load(scales + INNER)[:, None]
        cell = out + m.to(tl.int64)[None, :] * INNER + n[:, None]
        mask = (n < INNER)[:, None] & (m < stop)[None, :]
        tl.store(cell, (_gelu(h) * (g + 1.0)).to(out.dtype.element_ty), mask=mask)


@triton.jit
def experts_out_kernel(
    inside: tl.tensor, weight: tl.tensor, scale: tl.tensor, order: tl.tensor, starts: tl.tensor, shares: tl.tensor,
    out: tl.tensor,
    INS: tl.constexpr, OUTER: tl.constexpr, EXPERTS: tl.constexpr, WIDTH: tl.constexpr, FP8: tl.constexpr,
    ROWS: tl.constexpr, OUTS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Compute results `program_id(0)` of tile `program_id(1)`, times their shares, at the places of their pairs."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    expert, first, stop = _tile_of(starts, tl.program_id(1), EXPERTS, WIDTH, ROWS)
    if expert < EXPERTS:
        n, m = tl.program_id(0) * OUTS + tl.arange(0, OUTS), first + tl.arange(0, ROWS)
        there = (m < stop)[:, None]
        row = inside + m.to(tl.int64)[:, None] * INS
        near = tl.minimum(n, OUTER - 1)
        matrix = weight + expert.to(tl.int64) * (OUTER * INS) + near[:, None] * INS
        lanes: tl.constexpr = STEP if ROWS == 1 else ROWS
        total = tl.zeros([OUTS, lanes], tl.float32)
        for step in tl.range(0, INS, STEP, num_stages=STAGES):
            k = step + tl.arange(0, STEP)[None, :]
            if INS % STEP == 0:
                w = tl.load(matrix + k)
                a = tl.load(row + k, mask=there, other=0.0)
            else:
                w = tl.load(matrix + k, mask=k < INS, other=0.0)
                a = tl.load(row + k, mask=there & (k < INS), other=0.0)
            if ROWS == 1:
                total += w.to(tl.float32) * a.to(tl.float32)
            else:
                total = tl.dot(_operand(w, a, FP8), tl.trans(a), total)
        if ROWS == 1:
            total = tl.sum(total, axis=1)[:, None]
        if FP8:
            total *= tl.load(scale + expert * OUTER + near)[:, None]
        pair = tl.load(order + m, mask=m < stop, other=0)
        total *= tl.load(shares + pair, mask=m < stop, other=0.0).to(tl.float32)[None, :]
        cell = out + pair.to(tl.int64)[None, :] * OUTER + n[:, None]
        tl.store(cell, total.to(out.dtype.element_ty), mask=(n < OUTER)[:, None] & (m < stop)[None, :])


@triton.jit
def add_and_norm_kernel(
    x: tl.tensor, parts: tl.tensor, shift: tl.tensor, weight: tl.tensor, bias: tl.tensor, normal: tl.tensor,
    width: tl.tensor, eps: tl.tensor,
    PARTS: tl.constexpr, SHIFT: tl.constexpr, NORM: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Add parts and a shift to row `program_id(0)` in place, and write its layer norm."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = column < width
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    if SHIFT:
        moved = tl.load(shift + column, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        slope = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        offset = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    value = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        value += tl.load(parts + (row * PARTS + part) * width + column, mask=inside, other=0.0).to(tl.float32)
    if SHIFT:
        value += moved
    if PARTS > 0 or SHIFT:
        rounded = value.to(x.dtype.element_ty)
        tl.store(x + row * width + column, rounded, mask=inside)
        value = rounded.to(tl.float32)
    if NORM:
        off = tl.where(inside, value - tl.sum(value, axis=0) / width, 0.0)
        spread = 1.0 / tl.sqrt(tl.sum(off * off, axis=0) / width + eps)
        tl.store(
            normal + row * width + column, (off * spread * slope + offset).to(normal.dtype.element_ty), mask=inside
        )
