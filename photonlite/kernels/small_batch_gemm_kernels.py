"""Device code of `kernels.small_batch_gemm`: a product on tensor cores, one for a single row, and what both share."""

from __future__ import annotations

from photonlite.kernels.int4_kernels import int4_product, int4_step, int4_words
from photonlite.kernels.row_adapters_kernels import add_terms, prefetch_terms
from photonlite.kernels.triton_utils import tl, triton


@triton.jit
def _gelu(value: tl.tensor) -> tl.tensor:
    """Return the tanh approximation of GELU: ``1 + tanh(u)`` is ``2 sigmoid(2 u)``."""
    return value * tl.sigmoid(1.5957691216057308 * (value + 0.044715 * value * value * value))


@triton.jit
def _gated(total: tl.tensor, ACT: tl.constexpr, OUTS: tl.constexpr, ROWS: tl.constexpr) -> tl.tensor:
    """Return SwiGLU or GeGLU of interleaved rows ``[2 N, M]``, a gate and what it gates: float32 ``[N, M]``."""
    gate, value = tl.split(tl.permute(tl.reshape(total, [OUTS // 2, 2, ROWS]), (0, 2, 1)))
    if ACT == "geglu":
        return _gelu(gate) * value
    else:
        return gate * tl.sigmoid(gate) * value


@triton.jit
def prefetch(address: tl.tensor) -> None:
    """Prefetch the cache lines at some addresses into L2."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _await(ready: tl.tensor, count: tl.constexpr) -> None:
    """Wait until `count` programs of a kernel further in front have announced that they are done."""
    while tl.load(ready, volatile=True) < count:
        pass
    # One thread acquires; the others see its view only behind a barrier, which an unused result does not imply.
    tl.atomic_add(ready, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


@triton.jit
def _merged_statistics(
    stats: tl.tensor, rows: tl.tensor, eps: tl.tensor,
    INS: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Merge the statistics of all tiles of each row into its mean and the inverse of its standard deviation."""
    tile, m = tl.arange(0, TILES), tl.arange(0, ROWS)
    there = (tile * TILE < INS)[:, None] & (m < rows)[None, :]
    place = tile[:, None] * rows + m[None, :]
    means = tl.load(stats + place, mask=there, other=0.0)  # [T, M]
    squares = tl.load(stats + (INS + TILE - 1) // TILE * rows + place, mask=there, other=0.0)
    count = tl.minimum(tl.maximum(INS - tile * TILE, 0), TILE).to(tl.float32)[:, None]
    mean = tl.sum(means * count, axis=0) / INS
    off = means - mean[None, :]
    variance = tl.sum(squares + count * off * off, axis=0) / INS
    return mean, 1.0 / tl.sqrt(variance + eps)


@triton.jit
def _load_squares(
    squares: tl.tensor, m: tl.tensor, rows: tl.tensor, TILES_IN: tl.constexpr, TILES: tl.constexpr
) -> tl.tensor:
    """Load the sums of squares of all tiles of each row, ``[T, M]``; zeros behind them."""
    tile = tl.arange(0, TILES)
    there = (tile < TILES_IN)[:, None] & (m < rows)[None, :]
    return tl.load(squares + tile[:, None] * rows + m[None, :], mask=there, other=0.0)


@triton.jit
def _weight_rows(tile: tl.tensor, outs: tl.tensor, OUTS: tl.constexpr, ACT: tl.constexpr) -> tl.tensor:
    """Return the rows of the weight that a program takes: gates and what they gate interleaved, clamped."""
    i = tl.arange(0, OUTS)
    if ACT == "swiglu" or ACT == "geglu":
        return tl.minimum(tile * (OUTS // 2) + i // 2, outs - 1) + i % 2 * outs
    else:
        return tile * OUTS + i


@triton.jit
def _finish(
    total: tl.tensor, bias: tl.tensor, raw: tl.tensor, activated: tl.tensor, new_stats: tl.tensor, gain: tl.tensor,
    scaled: tl.tensor, tile: tl.tensor, n: tl.tensor, m: tl.tensor, rows: tl.tensor, outs: tl.tensor, split: tl.tensor,
    raw_stride: tl.tensor, activated_stride: tl.tensor,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, ACT: tl.constexpr, STATS: tl.constexpr, TILES_OUT: tl.constexpr,
    OUTS: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """Apply bias, activation and residual to a tile ``[N, M]``, store it, and its statistics."""
    if ACT == "swiglu" or ACT == "geglu":
        if BIAS:
            total += tl.load(bias + n).to(tl.float32)[:, None]
        column = tile * (OUTS // 2) + tl.arange(0, OUTS // 2)
        cell = activated + m[None, :] * activated_stride + column[:, None]
        inside = (column < outs)[:, None] & (m < rows)[None, :]
        tl.store(cell, _gated(total, ACT, OUTS, ROWS).to(activated.dtype.element_ty), mask=inside)
    else:
        inside = (n < outs)[:, None] & (m < rows)[None, :]
        if BIAS:
            total += tl.load(bias + n, mask=n < outs, other=0.0).to(tl.float32)[:, None]
        cell = raw + m[None, :] * raw_stride + n[:, None]
        if RESIDUAL:
            total += tl.load(cell, mask=inside, other=0.0).to(tl.float32)
        rounded = total.to(raw.dtype.element_ty)
        value = tl.where(inside, rounded.to(tl.float32), 0.0)
        place = new_stats + tile * rows + m
        if STATS == "moments":
            mean = tl.sum(value, axis=0) / tl.sum((n < outs).to(tl.float32), axis=0)  # [M]
            off = tl.where(inside, value - mean[None, :], 0.0)
            tl.store(place, mean, mask=m < rows)
            tl.store(place + TILES_OUT * rows, tl.sum(off * off, axis=0), mask=m < rows)
        if STATS == "squares":
            slope = tl.load(gain + n, mask=n < outs, other=0.0).to(tl.float32)[:, None]
            target = scaled + m[None, :] * outs + n[:, None]
            tl.store(target, (value * slope).to(scaled.dtype.element_ty), mask=inside)
            tl.store(place, tl.sum(value * value, axis=0), mask=m < rows)
        if RESIDUAL:
            # Several warps may hold the same cell, each having loaded it: one that reads late would add twice.
            tl.debug_barrier()
        tl.store(cell, rounded, mask=inside & (n < split)[:, None])
        if ACT == "gelu":
            target = activated + m[None, :] * activated_stride + (n - split)[:, None]
            value = _gelu(total)
            if activated.dtype.element_ty == tl.float16:
                value = tl.minimum(value, 65504.0)
            tl.store(target, value.to(activated.dtype.element_ty), mask=inside & (n >= split)[:, None])


@triton.jit
def _fold(
    total: tl.tensor, x: tl.tensor, row: tl.tensor, scale: tl.tensor, shift: tl.tensor, m: tl.tensor, rows: tl.tensor,
    x_stride: tl.tensor, first: tl.tensor,
    stop: tl.constexpr, SHARE: tl.constexpr, EVEN: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add the product over columns from `first` on, `SHARE` of them but none from `stop` on, to ``total [N, M]``.

    Scales begin at `scale [N]`; where a row is one group, sums are left to be scaled. Other steps lie in one group, and
    those of int4 are one, see `int4_product`. Scales are loaded one step ahead.
    """
    # Columns of an element of the weight and of the input: words of int4 are of 16 bits, and inputs come in twos.
    packed: tl.constexpr = 4 if FORMAT == "int4" else 1
    joined: tl.constexpr = 2 if FORMAT == "int4" else 1
    slope, offset = _load_scales(scale, shift, first, stop, FORMAT, GROUP)
    for step in tl.range(0, SHARE, STEP, num_stages=STAGES):
        start = first + step
        next_slope, next_offset = _load_scales(scale, shift, start + STEP, stop, FORMAT, GROUP)
        k = tl.arange(0, STEP // packed)[None, :]
        place = x + m[:, None] * x_stride + (start // joined + k)
        there = start + k * packed < stop
        known = (m < rows)[:, None]
        if EVEN:
            w = tl.load(row + (start // packed + k))  # [N, K]
        else:
            known = known & there
            w = tl.load(row + (start // packed + k), mask=there, other=0)
        a = tl.load(place, mask=known, other=0)  # [M, K]
        if FORMAT == "int4":
            b = tl.load(place + STEP // 4, mask=known, other=0)
            total += int4_product(w, a, b, slope, offset, KIND, ASM)
        else:
            if a.dtype == tl.bfloat16 and w.dtype.is_fp8():
                w = w.to(tl.float32)  # cards are slow at converting float16 to bfloat16
            if FORMAT == "groups":
                total += tl.dot(w.to(a.dtype), tl.trans(a)) * slope[:, None]
            else:
                total = tl.dot(w.to(a.dtype), tl.trans(a), total)
        slope, offset = next_slope, next_offset
    return total


@triton.jit
def _load_scales(
    scale: tl.tensor, shift: tl.tensor, start: tl.tensor, stop: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Load slopes and offsets ``[N]`` of the group of a step; behind the end, where inputs are zeros, of the last."""
    slope, offset = 0.0, 0.0
    if FORMAT == "groups" or FORMAT == "int4":
        group = tl.minimum(start, stop - 1) // GROUP
        slope = tl.load(scale + group).to(tl.float32)
        if FORMAT == "int4":
            offset = tl.load(shift + group).to(tl.float32)
    return slope, offset


@triton.jit
def product_kernel(
    x: tl.tensor, weight: tl.tensor, scale: tl.tensor, shift: tl.tensor, bias: tl.tensor, stats: tl.tensor,
    gain: tl.tensor, raw: tl.tensor,
    activated: tl.tensor, scaled: tl.tensor, new_stats: tl.tensor, partial: tl.tensor, counters: tl.tensor,
    ready: tl.tensor, stale: tl.tensor, rows: tl.tensor, outs: tl.tensor, split: tl.tensor, x_stride: tl.tensor,
    weight_stride: tl.tensor, scale_stride: tl.tensor, raw_stride: tl.tensor, activated_stride: tl.tensor,
    eps: tl.tensor, added: tl.tuple,
    INS: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, RESIDUAL: tl.constexpr, ACT: tl.constexpr,
    STATS: tl.constexpr, ANNOUNCE: tl.constexpr, AWAITED: tl.constexpr, LATE: tl.constexpr, FORMAT: tl.constexpr,
    GROUP: tl.constexpr, TILES_IN: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr,
    STEP: tl.constexpr, PARTS: tl.constexpr,
    STAGES: tl.constexpr, AHEAD: tl.constexpr, SLOTS: tl.constexpr, RANK: tl.constexpr, CHUNK: tl.constexpr,
    KIND: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply weight rows `program_id(0)` with part `program_id(1)` of the columns; the last to arrive finishes.

    The first `LATE` columns of the input are written by the kernel in front, the others by an earlier one that has
    announced its end: a program takes its part of those first. `FORMAT` is that of the weight: "full", or "int4",
    "groups" or "rows" of 8 bits; `KIND` is the type of the input. `added` are terms of adapters, which the kernel in
    front has multiplied with A; empty without adapters.
    """
    tile, part = tl.program_id(0), tl.program_id(1)
    n = _weight_rows(tile, outs, OUTS, ACT)
    m = tl.arange(0, ROWS)
    early: tl.constexpr = ((INS - LATE + STEP - 1) // STEP + PARTS - 1) // PARTS * STEP
    late: tl.constexpr = ((LATE + STEP - 1) // STEP + PARTS - 1) // PARTS * STEP
    last = outs * 2 - 1 if ACT == "swiglu" or ACT == "geglu" else outs - 1
    row = weight + tl.minimum(n, last).to(tl.int64)[:, None] * weight_stride
    slopes = scale + tl.minimum(n, last).to(tl.int64) * scale_stride
    offsets = shift + tl.minimum(n, last).to(tl.int64) * scale_stride
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        for step in tl.static_range(0, AHEAD, 64):  # 128 bytes
            prefetch(row + tl.minimum(part * early + step, INS - 1))
        if len(added) > 0 and SLOTS <= 32:
            prefetch_terms(added, n, m, rows, SLOTS, RANK)
    if AWAITED > 0:
        _await(ready, AWAITED)
    elif PDL:
        tl.extra.cuda.gdc_wait()
    squares = tl.zeros([1, ROWS], tl.float32)
    if NORM == "squares":
        squares = _load_squares(stats, m, rows, TILES_IN, TILES)
    total = tl.zeros([OUTS, ROWS], tl.float32)
    total = _fold(
        total, x, row, slopes, offsets, m, rows, x_stride, LATE + part * early, INS,
        early, (INS - LATE) % (STEP * PARTS) == 0, STEP, STAGES, FORMAT, GROUP, KIND, ASM,
    )  # fmt: skip
    if AWAITED > 0:
        if PDL:
            tl.extra.cuda.gdc_wait()
        total = _fold(
            total, x, row, slopes, offsets, m, rows, x_stride, part * late, LATE,
            late, LATE % (STEP * PARTS) == 0, STEP, STAGES, FORMAT, GROUP, KIND, ASM,
        )  # fmt: skip
    if FORMAT == "rows":
        total *= tl.load(slopes).to(tl.float32)[:, None]
    if len(added) > 0:
        total = add_terms(total, added, n, m, rows, part, SLOTS, RANK, CHUNK, PARTS)
    if NORM == "squares":
        total *= (1.0 / tl.sqrt(tl.sum(squares, axis=0) / INS + eps))[None, :]

    if PARTS == 1:
        _finish(
            total, bias, raw, activated, new_stats, gain, scaled, tile, n, m, rows, outs, split, raw_stride,
            activated_stride, BIAS, RESIDUAL, ACT, STATS, 0, OUTS, ROWS,
        )  # fmt: skip
    else:
        width = tl.num_programs(0) * OUTS
        place = partial + m[None, :] * width + (tile * OUTS + tl.arange(0, OUTS))[:, None]
        there = (m < rows)[None, :]
        tl.store(place + part * ROWS * width, total, mask=there)
        tl.debug_barrier()  # partial sums are stored before this program counts itself in
        if tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == PARTS - 1:
            whole = tl.zeros([OUTS, ROWS], tl.float32)
            for other in tl.static_range(PARTS):
                whole += tl.load(place + other * ROWS * width, mask=there, other=0.0, cache_modifier=".cg")
            _finish(
                whole, bias, raw, activated, new_stats, gain, scaled, tile, n, m, rows, outs, split, raw_stride,
                activated_stride, BIAS, RESIDUAL, ACT, STATS, 0, OUTS, ROWS,
            )  # fmt: skip
            tl.store(counters + tile, 0)
    if ANNOUNCE:
        _announce(ready, stale)


@triton.jit
def _announce(ready: tl.tensor, stale: tl.tensor) -> None:
    """Announce that this program is done, and reset a count that every program has read."""
    if tl.program_id(0) + tl.program_id(1) == 0:
        tl.store(stale, 0)
    tl.debug_barrier()  # everything is written before the announcement
    tl.atomic_add(ready, 1, sem="release", scope="gpu")


@triton.jit
def single_kernel(
    x: tl.tensor, weight: tl.tensor, scales: tl.tensor, shifts: tl.tensor, bias: tl.tensor, stats: tl.tensor,
    gain: tl.tensor, shift: tl.tensor, raw: tl.tensor, activated: tl.tensor, scaled: tl.tensor, new_stats: tl.tensor,
    ready: tl.tensor, stale: tl.tensor,
    outs: tl.tensor, split: tl.tensor, weight_stride: tl.tensor, scale_stride: tl.tensor, eps: tl.tensor,
    INS: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, RESIDUAL: tl.constexpr, ACT: tl.constexpr,
    STATS: tl.constexpr, ANNOUNCE: tl.constexpr, AWAITED: tl.constexpr, LATE: tl.constexpr, FORMAT: tl.constexpr,
    GROUP: tl.constexpr, TILES_IN: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr, TILES_OUT: tl.constexpr,
    OUTS: tl.constexpr, STEP: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply one row with weight rows `program_id(0)`; the first columns are prefetched before the wait.

    As in `product_kernel`, the first `LATE` columns come last, and `FORMAT` is that of the weight.
    """
    tile = tl.program_id(0)
    n = _weight_rows(tile, outs, OUTS, ACT)
    last = outs * 2 - 1 if ACT == "swiglu" or ACT == "geglu" else outs - 1
    row = weight + tl.minimum(n, last).to(tl.int64)[:, None] * weight_stride
    slopes = scales + tl.minimum(n, last).to(tl.int64)[:, None] * scale_stride
    offsets = shifts + tl.minimum(n, last).to(tl.int64)[:, None] * scale_stride
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    w = _single_weights(row, LATE, INS, STEP, FORMAT, GROUP)
    if AWAITED > 0:
        _await(ready, AWAITED)
    elif PDL:
        tl.extra.cuda.gdc_wait()
    mean, scale = 0.0, 0.0
    if NORM == "moments":
        means, scales = _merged_statistics(stats, 1, eps, INS, 1, TILES, TILE)
        mean, scale = tl.sum(means, axis=0), tl.sum(scales, axis=0)
    squares = tl.zeros([1, 1], tl.float32)
    if NORM == "squares":
        squares = _load_squares(stats, tl.arange(0, 1), 1, TILES_IN, TILES)
    # Weights of 16 bits begin with zeros: registers spill on an RTX 3090 where they begin with the first product.
    nothing = tl.zeros(w.shape, tl.float32) if FORMAT == "full" else None
    total = _single_fold(
        nothing, w, row, x, gain, shift, mean, scale, slopes, offsets, LATE, INS, STEP, FORMAT, GROUP,
        NORM == "moments",
    )  # fmt: skip
    if AWAITED > 0:
        v = _single_weights(row, 0, LATE, STEP, FORMAT, GROUP)
        if PDL:
            tl.extra.cuda.gdc_wait()
        total = _single_fold(
            total, v, row, x, gain, shift, mean, scale, slopes, offsets, 0, LATE, STEP, FORMAT, GROUP,
            NORM == "moments",
        )  # fmt: skip
    # One axis after the other: the sum of a reshaped tensor is garbage for four rows and fewer (Triton 3.6, H100).
    sums = (tl.sum(total, axis=1) if FORMAT == "full" else tl.sum(total, axis=0))[:, None]
    if FORMAT == "rows":
        sums *= tl.load(slopes).to(tl.float32)
    if NORM == "squares":
        sums *= (1.0 / tl.sqrt(tl.sum(squares, axis=0) / INS + eps))[None, :]
    _finish(
        sums, bias, raw, activated, new_stats, gain, scaled, tile, n, tl.arange(0, 1), 1, outs, split, 0, 0,
        BIAS, RESIDUAL, ACT, STATS, TILES_OUT, OUTS, 1,
    )  # fmt: skip
    if ANNOUNCE:
        _announce(ready, stale)


@triton.jit
def _single_fold(
    total: tl.tensor, w: tl.tensor, row: tl.tensor, x: tl.tensor, gain: tl.tensor, shift: tl.tensor, mean: tl.tensor,
    scale: tl.tensor, slopes: tl.tensor, offsets: tl.tensor,
    first: tl.constexpr, stop: tl.constexpr, STEP: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
    NORM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add the products of columns from `first` on, whose weights begin with `w`, to ``total``, if there is one."""
    for step in tl.static_range(first, stop, STEP):
        if step > first:
            w = _single_weights(row, step, stop, STEP, FORMAT, GROUP)
        part = _single_step(w, x, gain, shift, mean, scale, slopes, offsets, step, stop, STEP, FORMAT, GROUP, NORM)
        total = part if total is None else total + part
    return total


@triton.jit
def _single_weights(
    row: tl.tensor, start: tl.constexpr, stop: tl.constexpr, STEP: tl.constexpr, FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Load columns of some rows of a weight, ``[N, STEP]``, or of 8 bits ``[STEP / 8, N, 8]``; see `int4_words`."""
    if FORMAT == "int4":
        return int4_words(row, start, stop, STEP)
    else:
        k = _columns(start, STEP, FORMAT)
        places = row + k if FORMAT == "full" else tl.trans(row)[:, :, None] + k
        return tl.load(places, mask=k < stop, other=0.0)


@triton.jit
def _columns(start: tl.constexpr, STEP: tl.constexpr, FORMAT: tl.constexpr) -> tl.tensor:
    """Return the columns of a step, ``[1, STEP]``, of weights of 8 bits ``[STEP / 8, 1, 8]``.

    A thread then loads eights of the same columns of all rows, and of the input, and adds up their products at once.
    With weights of 16 bits registers spill that way.
    """
    if FORMAT == "full":
        return start + tl.arange(0, STEP)[None, :]
    else:
        return start + tl.arange(0, STEP // 8)[:, None, None] * 8 + tl.arange(0, 8)[None, None, :]


@triton.jit
def _single_step(
    w: tl.tensor, x: tl.tensor, gain: tl.tensor, shift: tl.tensor, mean: tl.tensor, scale: tl.tensor,
    slopes: tl.tensor, offsets: tl.tensor,
    start: tl.constexpr, stop: tl.constexpr, STEP: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
    NORM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return products of what `_single_weights` has loaded with the only row, in float32, to be summed up."""
    if FORMAT == "int4":
        return int4_step(w, x, gain.dtype.element_ty, slopes, offsets, start, stop, STEP, GROUP)
    else:
        a = _input(x, gain, shift, mean, scale, _columns(start, STEP, FORMAT), stop, NORM)
        if FORMAT == "full":
            products = w.to(tl.float32) * a.to(x.dtype.element_ty).to(tl.float32)
        else:
            products = tl.sum(w.to(tl.float32) * a, axis=2)
        if FORMAT == "groups":  # of which a step has one
            products *= tl.trans(tl.load(slopes + min(start, stop - 1) // GROUP).to(tl.float32))
        return products


@triton.jit
def _input(
    x: tl.tensor, gain: tl.tensor, shift: tl.tensor, mean: tl.tensor, scale: tl.tensor, k: tl.tensor,
    stop: tl.constexpr, NORM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Load columns of the only row in float32, normalised with `NORM`."""
    a = tl.load(x + k, mask=k < stop, other=0.0).to(tl.float32)
    if NORM:
        g = tl.load(gain + k, mask=k < stop, other=0.0).to(tl.float32)
        b = tl.load(shift + k, mask=k < stop, other=0.0).to(tl.float32)
        a = (a - mean) * scale * g + b
    return a
