"""Device code that turns codes of int4 into numbers without converting integers; see `kernels.reference.quantised`."""

from __future__ import annotations

from photonlite.kernels.triton_utils import tl, triton


@triton.jit
def raised(code: tl.tensor, like: tl.tensor) -> tl.tensor:
    """Return codes plus 128 in bfloat16 or 1024 in float16: the lowest bits of such a number are the code."""
    if like.dtype == tl.bfloat16:
        return (code.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
    else:
        return (code.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True)


@triton.jit
def base(like: tl.tensor) -> tl.constexpr:
    """Return what is to be subtracted from numbers of `raised`: then they are codes less 8."""
    if like.dtype == tl.bfloat16:
        return 128.0 + 8.0
    else:
        return 1024.0 + 8.0


@triton.jit
def int4_words(
    row: tl.tensor, start: tl.constexpr, stop: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr
) -> tl.tensor:
    """Load columns of some rows ``[N, 1]`` as words of eight, ``[N, G, GROUP / 8]``."""
    group = (start // GROUP + tl.arange(0, STEP // GROUP))[None, :, None]
    word = tl.arange(0, GROUP // 8)[None, None, :]
    return tl.load(row[:, :, None] + group * (GROUP // 8) + word, mask=group < stop // GROUP, other=0)


@triton.jit
def int4_step(
    w: tl.tensor, fours: tl.tensor, KIND: tl.constexpr, slopes: tl.tensor, offsets: tl.tensor,
    start: tl.constexpr, stop: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return products of words with a row, ``[N, G, GROUP / 8]`` in float32, to be summed up.

    The row's numbers, of the type `KIND` of 16 bits, come in fours. A code among the mantissa's lowest bits of a power
    of two is added to it: no integers are converted, and bits are shifted once a word.
    """
    eighth: tl.constexpr = GROUP // 8
    group = start // GROUP + tl.arange(0, STEP // GROUP)[:, None]
    there = group < stop // GROUP
    place = fours + group * (2 * eighth) + tl.arange(0, eighth)[None, :]
    # Broadcast before they are taken apart: only then do all of a row's numbers change threads at once.
    low = tl.broadcast_to(tl.load(place, mask=there, other=0)[None, :, :], w.shape)
    high = tl.broadcast_to(tl.load(place + eighth, mask=there, other=0)[None, :, :], w.shape)
    total = tl.zeros(w.shape, tl.float32)
    sums = tl.zeros(w.shape, tl.float32)
    for i in tl.static_range(4):
        a, b = _sixteen(low, i, KIND), _sixteen(high, i, KIND)
        pair = w if i < 2 else w >> 16  # the bytes of numbers 0 and 1, or 2 and 3
        total += _code(pair, i % 2 * 8) * a
        total += _code(pair, i % 2 * 8 + 4) * b
        sums += a + b
    place = start // GROUP + tl.arange(0, STEP // GROUP)[None, :]
    known = place < stop // GROUP
    slope = tl.load(slopes + place, mask=known, other=0.0).to(tl.float32)[:, :, None]
    offset = tl.load(offsets + place, mask=known, other=0.0).to(tl.float32)[:, :, None]
    return total * slope + sums * offset


@triton.jit
def _sixteen(four: tl.tensor, i: tl.constexpr, KIND: tl.constexpr) -> tl.tensor:
    """Return the i-th of four numbers of 16 bits in float32."""
    return (four >> 16 * i).to(tl.int16).to(KIND, bitcast=True).to(tl.float32)


@triton.jit
def _code(word: tl.tensor, bit: tl.constexpr) -> tl.tensor:
    """Return four bits of a word, at most from the twelfth on, less 8, in float32."""
    power: tl.constexpr = 23 - bit  # the last place of its mantissa is 2 ** -bit
    bits = (word & (15 << bit)) | ((127 + power) << 23)
    return bits.to(tl.float32, bitcast=True) - (2.0**power + 8.0)
