"""Sampling params as rows of int32, the heads that they require, and how results are read. No torch.

The columns are those of `kernels.columns`. Random numbers are made here, from the sequence's seed and the token's index
alone: what a row draws depends neither on its batch nor on the device.
"""

import functools
import struct
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from photonlite.grammar.decoding.grammars import MaskCache
from photonlite.request import MAX_SCORED, Allowed

Variant = Literal["text", "coordinate", "size", "decide", "mixed", "scored", "penalized"]
"""Heads that a finalize computes: ids, coordinate bins, size bins, the first two ("decide") or all ("mixed"); "scored"
also gives the probabilities of the ids that rows ask for, and "penalized" has repetition penalties as well."""

# Variants that give probabilities of ids; that read the head over ids, and masks with it; over coordinate bins; over
# size bins.
WITH_SCORES: frozenset[Variant] = frozenset({"scored", "penalized"})
WITH_IDS: frozenset[Variant] = frozenset({"text", "decide", "mixed", "scored", "penalized"})
WITH_COORDINATES: frozenset[Variant] = frozenset({"coordinate", "decide", "mixed", "scored", "penalized"})
WITH_SIZES: frozenset[Variant] = frozenset({"size", "mixed", "scored", "penalized"})

_PARAMS = struct.Struct("=5i5fif")
_RESULT = struct.Struct("=4i3f")
_ANY_ID = 2**31 - 1
_UNUSED = (0, -1, -1, -1, _ANY_ID, 0.0, 1.0, 0.0, 0.0, 0.0, 0, 1.0)
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_64_BITS = 2**64 - 1
_WEYL = 0x9E3779B97F4A7C15  # 2**64 / the golden ratio, odd: its multiples spread over all 64-bit numbers
_LANES = 4
_TEXT, _COORDINATE, _SIZE, _SCORED, _DRAWS, _PENALIZED = 1, 2, 4, 8, 16, 32
_VARIANTS: dict[int, Variant] = {
    0: "text",
    _TEXT: "text",
    _COORDINATE: "coordinate",
    _SIZE: "size",
    _TEXT | _COORDINATE: "decide",
}


class SampledRow(NamedTuple):
    id: int
    bin0: int  # of the coordinate or the width; -1 for none
    bin1: int  # of the height; -1 for none
    finite: int  # 0 if the logits that the row used hold a NaN or nothing finite: the other fields are then undefined
    probability: float  # of going on, where the position decided that and did; else 1
    mass0: float  # probability around bin0; 0 for none
    mass1: float


def uniform(seed: int, index: int, lane: int) -> float:
    """Return number `lane`, 0 to 3, of token `index` of a sequence with a seed in [0, 2**64).

    Seed and counter are hashed by SplitMix64's finaliser (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom
    number generators"). The result is a multiple of 2**-24 in [0, 1), exact in float32: rounding never makes it 1.
    """
    return (_mix(_start(seed) + (index * _LANES + lane) * _WEYL) >> 40) * 2.0**-24


def _mix(x: int) -> int:
    x &= _64_BITS
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return x ^ (x >> 31)


# A sequence's seed is hashed once, not for each of its tokens.
@functools.lru_cache(maxsize=1024)
def _start(seed: int) -> int:
    return _mix(seed + _WEYL)


def write_unused(row: npt.NDArray[np.int32]) -> None:
    """Write the params of a row whose token is not wanted: it gives id 0."""
    _PARAMS.pack_into(row.data, 0, *_UNUSED)


def write_params(
    row: npt.NDArray[np.int32],
    mask: npt.NDArray[np.int32],
    masks: MaskCache,
    allowed: Allowed,
    temperature: float,
    top_p: float,
    seed: int,
    index: int,
    top_k: int = 0,
    penalty: float = 1.0,
) -> None:
    """Write the params of a row, and its mask if needed. ValueError for ids not in the vocabulary.

    `index` is that of the token: with the sequence's seed it gives the random numbers. A temperature of 0 is greedy.
    """
    forced = allowed.forced
    for named in (forced, allowed.coordinate, allowed.size, allowed.end):
        # The device uses it as an index, and CUDA does not recover from one out of range: all requests would fail.
        if named is not None and not 0 <= named < masks.vocab_size:
            raise ValueError(f"a grammar names id {named} of a vocabulary of {masks.vocab_size}")
    if forced is None or allowed.scored:
        masks.fill(allowed, mask)
    u0 = u1 = u2 = 0.0
    if temperature > 0:
        u0, u1, u2 = (uniform(seed, index, lane) for lane in range(3))
    ids = [-1 if named is None else named for named in (forced, allowed.coordinate, allowed.size, allowed.end)]
    draws = min(temperature, _LARGEST_FLOAT32), top_p, u0, u1, u2, min(top_k, _ANY_ID), penalty
    _PARAMS.pack_into(row.data, 0, *ids, _ties(allowed), *draws)


def write_scored(scored: Sequence[int], row: npt.NDArray[np.int32], vocab_size: int) -> None:
    """Write the ids, at least one, whose probabilities a row needs; ValueError if too many or not in the vocabulary."""
    if len(scored) > MAX_SCORED:
        raise ValueError(f"a grammar wants the probabilities of {len(scored)} ids, over the limit of {MAX_SCORED}")
    if not 0 <= min(scored) <= max(scored) < vocab_size:
        raise ValueError(f"a grammar scores ids {min(scored)} to {max(scored)} of a vocabulary of {vocab_size}")
    row[: len(scored)] = scored
    row[len(scored) :] = -1


def required_heads(allowed: Allowed, temperature: float, penalty: float = 1.0) -> int:
    """Return as bits what a row needs of a finalize; rows are combined by ``|``, see `variant_of`."""
    heads = _heads(allowed)
    draws = _DRAWS if heads and temperature > 0 else 0
    return heads | draws | (_SCORED if allowed.scored else 0) | (_PENALIZED if penalty != 1 else 0)


def variant_of(needs: int) -> tuple[Variant, bool]:
    """Return the variant with every head that some row needs, and whether any row draws."""
    heads = _VARIANTS.get(needs & (_TEXT | _COORDINATE | _SIZE), "mixed")
    variant: Variant = "penalized" if needs & _PENALIZED else "scored" if needs & _SCORED else heads
    return variant, bool(needs & _DRAWS)


def read_results(rows: npt.NDArray[np.int32], count: int) -> list[SampledRow]:
    """Read the first `count` rows of results, int32 ``[B, RESULT_COLUMNS]``, contiguous."""
    return [SampledRow._make(values) for values in _RESULT.iter_unpack(rows[:count].tobytes())]


def _ties(allowed: Allowed) -> int:
    """Return the value of `TIES`: the first in the list wins; without a list, the smaller id does."""
    if allowed.end is None:
        return _ANY_ID
    if allowed.ids is None:
        return allowed.end
    return 0 if allowed.ids[0] == allowed.end else _ANY_ID


def _heads(allowed: Allowed) -> int:
    forced = allowed.forced
    if forced is not None:
        return _COORDINATE if forced == allowed.coordinate else _SIZE if forced == allowed.size else 0
    heads = _TEXT
    # Deciding whether to go on needs a variant with coordinates: only those weigh `end` against all others.
    if allowed.end is not None or (allowed.coordinate is not None and allowed.permits(allowed.coordinate)):
        heads |= _COORDINATE
    if allowed.size is not None and allowed.permits(allowed.size):
        heads |= _SIZE
    return heads
