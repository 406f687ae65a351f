"""Device code that turns codes of int4 into numbers without converting integers; see `kernels.reference.quantised`."""

from __future__ import annotations

from photonlite.kernels.triton_utils import tl, triton

_HALFWAY = tl.constexpr(90)  # power of two of a row's numbers: with it, products with codes are far from both ends


@triton.jit
def int4_product(
    words: tl.tensor, first: tl.tensor, second: tl.tensor, slope: tl.tensor, offset: tl.tensor,
    KIND: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Multiply a group of columns on tensor cores: float32 ``[N, M]``.

    Words ``[N, G / 4]`` have 16 bits; inputs of the type `KIND`, of the first and the second half of the group, come in
    twos ``[M, G / 4]``. Codes are cut out of their words and multiplied as the tiny numbers that their bits are.
    """
    tiny: tl.constexpr = 24 if tl.float16 == KIND else 133  # a number whose bits are an integer is that over 2 ** tiny
    scaled: tl.constexpr = 0 if tl.float16 == KIND else 90  # powers of two by which inputs make up for that
    c, d, e, f = _cut(words, KIND, ASM)
    even, odd = _halves(first, KIND, scaled, ASM)
    low = tl.dot(e, tl.trans(odd), tl.dot(c, tl.trans(even)))
    ones = tl.full(words.shape, 1.0, KIND)
    sums = tl.dot(ones, tl.trans(odd), tl.dot(ones, tl.trans(even)))
    even, odd = _halves(second, KIND, scaled, ASM)
    high = tl.dot(f, tl.trans(odd), tl.dot(d, tl.trans(even)))
    sums = tl.dot(ones, tl.trans(odd), tl.dot(ones, tl.trans(even), sums))
    part = (low * 16.0 + high) * (slope * 2.0 ** (tiny - scaled - 4))[:, None]
    return part + ((offset - 8.0 * slope) * 2.0**-scaled)[:, None] * sums


@triton.jit
def _cut(words: tl.tensor, KIND: tl.constexpr, ASM: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return the four codes of words of 16 bits, from the lowest on; the second and the fourth are times 16."""
    if ASM:  # two words in an operation
        c, d, e, f = tl.inline_asm_elementwise(
            """{
            .reg .b32 upper;
            shr.u32 upper, $4, 8;
            and.b32 $0, $4, 0x000f000f;
            and.b32 $1, $4, 0x00f000f0;
            and.b32 $2, upper, 0x000f000f;
            and.b32 $3, upper, 0x00f000f0;
            }""",
            "=r,=r,=r,=r,r", [words], dtype=(tl.int16, tl.int16, tl.int16, tl.int16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        c, d, e, f = words & 15, words & 240, words >> 8 & 15, words >> 8 & 240
    return c.to(KIND, bitcast=True), d.to(KIND, bitcast=True), e.to(KIND, bitcast=True), f.to(KIND, bitcast=True)


@triton.jit
def _halves(
    twos: tl.tensor, KIND: tl.constexpr, scaled: tl.constexpr, ASM: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return the first and the second of two numbers of 16 bits each, times ``2 ** scaled``."""
    if ASM:
        first, second = tl.inline_asm_elementwise(
            "prmt.b32 $0, $2, $3, 0x5410; prmt.b32 $1, $2, $3, 0x7632;",
            "=r,=r,r,r", [twos], dtype=(tl.int16, tl.int16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        first, second = twos.to(tl.int16), (twos >> 16).to(tl.int16)
    first, second = first.to(KIND, bitcast=True), second.to(KIND, bitcast=True)
    if scaled:
        first, second = (first * 2.0**scaled).to(KIND), (second * 2.0**scaled).to(KIND)
    return first, second


@triton.jit
def _words(start: tl.constexpr, STEP: tl.constexpr) -> tl.tensor:
    """Return the places of a step's words of eight codes, ``[C, 1, 2]``."""
    return start // 8 + tl.arange(0, STEP // 16)[:, None, None] * 2 + tl.arange(0, 2)[None, None, :]


@triton.jit
def int4_words(row: tl.tensor, start: tl.constexpr, stop: tl.constexpr, STEP: tl.constexpr) -> tl.tensor:
    """Load columns of some rows ``[N, 1]`` as words of eight, ``[C, N, 2]``."""
    word = _words(start, STEP)
    return tl.load(tl.trans(row)[:, :, None] + word, mask=word < stop // 8, other=0)


@triton.jit
def int4_step(
    w: tl.tensor, fours: tl.tensor, KIND: tl.constexpr, slopes: tl.tensor, offsets: tl.tensor,
    start: tl.constexpr, stop: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return sums of products of words with a row, ``[C, N]`` in float32.

    The row's numbers, of the type `KIND` of 16 bits, come in fours. The bits of an integer below ``2 ** 24`` are, as
    float32, that integer times ``2 ** -149``: a code is cut out of its word, and the number that it is multiplied with
    makes up for its place.
    """
    eighth: tl.constexpr = GROUP // 8
    word = _words(start, STEP)
    there = word < stop // 8
    place = fours + word // eighth * eighth + word
    low = tl.load(place, mask=there, other=0)
    high = tl.load(place + eighth, mask=there, other=0)
    total = tl.zeros(w.shape, tl.float32)
    sums = tl.zeros(low.shape, tl.float32)
    for i in tl.static_range(4):  # bytes
        codes = w if i < 3 else w >> 8
        a, b = _sixteen(low, i, KIND), _sixteen(high, i, KIND)
        total += _product_of_codes(codes, 8 * min(i, 2), a)
        total += _product_of_codes(codes, 8 * min(i, 2) + 4, b)
        sums += a + b
    group = start // GROUP + tl.arange(0, STEP // 16)[:, None] // (GROUP // 16)
    known = group < stop // GROUP
    slope = tl.load(tl.trans(slopes) + group, mask=known, other=0.0).to(tl.float32)
    offset = tl.load(tl.trans(offsets) + group, mask=known, other=0.0).to(tl.float32) - 8.0 * slope
    return tl.sum(total, axis=2) * (slope * 2.0 ** (149 - _HALFWAY)) + tl.sum(sums, axis=2) * offset


@triton.jit
def _product_of_codes(words: tl.tensor, bit: tl.constexpr, numbers: tl.tensor) -> tl.tensor:
    """Return four bits of each word times a number times ``2 ** (_HALFWAY - 149)``; `bit` is 20 at most."""
    return (words & (15 << bit)).to(tl.float32, bitcast=True) * (numbers * 2.0 ** (_HALFWAY - bit))


@triton.jit
def _sixteen(numbers: tl.tensor, i: tl.constexpr, KIND: tl.constexpr) -> tl.tensor:
    """Return the i-th of some numbers of 16 bits in float32."""
    return (numbers >> 16 * i).to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
