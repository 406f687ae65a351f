"""Device code of `kernels.row_adapters`, and what a product does to add the terms."""

from __future__ import annotations

from photonlite.kernels.triton_utils import tl, triton


@triton.jit
def shrink_kernel(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, out: tl.tensor, index: tl.tensor, low: tl.tensor,
    terms: tl.tuple,
    width: tl.tensor, x_stride: tl.tensor, low_stride: tl.tensor, eps: tl.tensor,
    NORM: tl.constexpr, LONG: tl.constexpr, WIDTH: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Write `RANKS` numbers of ``A x`` of row `program_id(0)`; program `program_id(1)` has one term and some ranks.

    With `NORM` x is layer-normalised, and the first program of each row writes that. Some rows have more than `WIDTH`
    columns if `LONG`. A does not depend on the kernel in front: its first columns are read before the wait.
    """
    row, share = tl.program_id(0).to(tl.int64), tl.program_id(1)
    groups: tl.constexpr = (RANK + RANKS - 1) // RANKS
    slot = tl.load(index + row).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    column, ranks = tl.arange(0, WIDTH), tl.where(slot > 0, RANK, 0)
    rank = share % groups * RANKS + tl.arange(0, RANKS)
    for i in tl.static_range(len(terms)):
        a, place, begin, count = terms[i]
        if share // groups == i:
            known = (rank < ranks)[:, None] & (column < count)[None, :]
            matrix = tl.load(a + slot * RANK * count + rank[:, None] * count + column[None, :], mask=known, other=0.0)
            if NORM:
                inside = column < width
                gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
                shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
            if PDL:
                tl.extra.cuda.gdc_wait()
            if NORM:
                value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
                value = tl.where(inside, value - tl.sum(value, axis=0) / width, 0.0)
                scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
                rounded = (value * scale * gain + shift).to(out.dtype.element_ty)
                if share == 0:
                    tl.store(out + row * width + column, rounded, mask=inside)
            else:
                rounded = tl.load(x + row * x_stride + begin + column, mask=column < count, other=0.0)
            total = matrix.to(tl.float32) * rounded.to(tl.float32)[None, :]
            if LONG:
                for start in range(WIDTH, count, WIDTH):
                    k = start + column
                    known = (rank < ranks)[:, None] & (k < count)[None, :]
                    more = tl.load(a + slot * RANK * count + rank[:, None] * count + k[None, :], mask=known, other=0.0)
                    value = tl.load(x + row * x_stride + begin + k, mask=k < count, other=0.0)
                    total += more.to(tl.float32) * value.to(tl.float32)[None, :]
            sums = tl.sum(total, axis=1)
            tl.store(low + row * low_stride + place + rank, sums, mask=rank < ranks)


@triton.jit
def prefetch_terms(
    added: tl.tuple, n: tl.tensor, m: tl.tensor, rows: tl.tensor,
    SLOTS: tl.constexpr, RANK: tl.constexpr,
) -> None:  # fmt: skip
    """Prefetch the first cache line of weight rows `n` of B into L2, for the slots that rows have."""
    index, _low, _stride, terms = added
    slot = tl.arange(0, triton.next_power_of_2(SLOTS)) + 1
    own = tl.load(index + m, mask=m < rows, other=0)  # [M]
    used = tl.max((own[:, None] == slot[None, :]).to(tl.int32), axis=0) > 0  # [S]
    for i in tl.static_range(len(terms)):
        b, _column, first, count = terms[i]
        inside = (n >= first) & (n < first + count)
        place = slot.to(tl.int64)[None, :] * count * RANK + (n - first)[:, None] * RANK
        address = b + tl.where(inside[:, None] & used[None, :], place, 0)
        tl.inline_asm_elementwise(
            "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def add_terms(
    total: tl.tensor, added: tl.tuple, n: tl.tensor, m: tl.tensor, rows: tl.tensor, part: tl.tensor,
    SLOTS: tl.constexpr, RANK: tl.constexpr, CHUNK: tl.constexpr, PARTS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add part `part` of all terms to ``total [N, M]``, of weight rows `n` and rows `m`.

    The matrices of all slots are taken for one, ``[N, slots * R]``, and each row of ``A x`` has zeros but in its own
    slot's columns: one product serves all slots. Slots that no row has are not read.
    """
    index, low, low_stride, terms = added
    alike: tl.constexpr = min(RANK & -RANK, CHUNK)
    share: tl.constexpr = (SLOTS * RANK + PARTS * CHUNK - 1) // (PARTS * CHUNK) * CHUNK
    own = tl.load(index + m, mask=m < rows, other=0)  # [M]
    for i in tl.static_range(len(terms)):
        b, column, first, count = terms[i]
        inside = (n >= first) & (n < first + count)
        for step in tl.range(0, share, CHUNK, num_stages=1):
            k = part * share + step + tl.arange(0, CHUNK)
            slot, rank = k // RANK + 1, k % RANK
            mine = own[:, None] == slot[None, :]  # [M, K]; of no row behind the last slot
            # Equal for the columns of a slot, which the compiler must know to load several at a time.
            used = tl.max_constancy(tl.max(mine.to(tl.int32), axis=0) > 0, alike)
            values = tl.load(low + m[:, None] * low_stride + column + rank[None, :], mask=mine, other=0.0)
            place = slot.to(tl.int64)[None, :] * count * RANK + (n - first)[:, None] * RANK + rank[None, :]
            weights = tl.load(b + place, mask=inside[:, None] & used[None, :], other=0.0)
            total = tl.dot(weights, tl.trans(values.to(weights.dtype)), total)
    return total
