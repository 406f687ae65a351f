"""What finalize is told about each row, which heads that takes, and how its answers are read. No torch.

The columns are those of `kernels.columns`. Random numbers are made here, from the sequence's seed and the token's index
alone: what a row draws depends neither on its batch nor on the device.
"""

import functools
import struct
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from photonlite.batch import SamplingParams
from photonlite.grammar.automata.mask import MaskCache
from photonlite.request import MAX_SCORED, Allowed

Variant = Literal["text", "coordinate", "size", "decide", "mixed", "scored"]
"""Which heads a finalize computes: over ids, coordinate bins or size bins; ids and coordinate bins; or all of them.

"scored" is all of them, and the probabilities of the ids that rows name.
"""

WITH_IDS: frozenset[Variant] = frozenset({"text", "decide", "mixed", "scored"})
"""Variants that read the head over ids, and masks with it."""

WITH_COORDINATES: frozenset[Variant] = frozenset({"coordinate", "decide", "mixed", "scored"})
"""Variants that read the head over coordinate bins."""

WITH_SIZES: frozenset[Variant] = frozenset({"size", "mixed", "scored"})
"""Variants that read the head over size bins."""

_CHOICE = struct.Struct("=5i5f")
_RESULT = struct.Struct("=4i3f")
_ANY_ID = 2**31 - 1
_NOBODY = (0, -1, -1, -1, _ANY_ID, 0.0, 1.0, 0.0, 0.0, 0.0)
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_64_BITS = 2**64 - 1
_WEYL = 0x9E3779B97F4A7C15  # 2**64 / the golden ratio, odd: its multiples spread over all 64-bit numbers
_LANES = 4
_TEXT, _COORDINATE, _SIZE = 1, 2, 4
_VARIANTS: dict[int, Variant] = {
    0: "text",
    _TEXT: "text",
    _COORDINATE: "coordinate",
    _SIZE: "size",
    _TEXT | _COORDINATE: "decide",
}


class Result(NamedTuple):
    """What finalize chose for a row.

    Attributes:
        id: The id.
        bin0: Bin of the coordinate or the width; -1 where there is none.
        bin1: Bin of the height; -1 where there is none.
        finite: 1, or 0 where the logits that the row used hold a NaN or nothing finite: the rest is then void.
        probability: Of going on, where the position decided that and did; else 1.
        mass0: Probability mass around `bin0`; 0 where there is none.
        mass1: The same for `bin1`.
    """

    id: int
    bin0: int
    bin1: int
    finite: int
    probability: float
    mass0: float
    mass1: float


def uniform(seed: int, index: int, lane: int) -> float:
    """Draw a number that depends on nothing but the arguments.

    The counter is hashed by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom
    number generators"), as is the seed before it.

    Args:
        seed: Of the sequence, 0 to 2**64 - 1.
        index: Which token of the sequence.
        lane: Which of the token's numbers, 0 to 3.

    Returns:
        A multiple of 2**-24 in [0, 1): float32 holds it exactly, so that rounding never makes it 1.
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


def write_choice(
    choice: SamplingParams | None, row: npt.NDArray[np.int32], mask: npt.NDArray[np.int32], masks: MaskCache
) -> None:
    """Write one row's parameters, and its mask where the id is not forced or probabilities are wanted.

    Args:
        choice: How to choose; None where nobody wants the token: then it is id 0, without a look at any logits.
        row: int32 ``[PARAM_COLUMNS]``, contiguous.
        mask: int32 ``[words]``.
        masks: Of the vocabulary.

    Raises:
        ValueError: The choice names ids that are not in the vocabulary.
    """
    if choice is None:
        _CHOICE.pack_into(row.data, 0, *_NOBODY)
        return
    allowed = choice.allowed
    forced = allowed.forced
    for named in (forced, allowed.coordinate, allowed.size, allowed.end):
        # The device looks it up, and an index out of range there would end everybody's requests: CUDA does not recover.
        if named is not None and not 0 <= named < masks.vocab_size:
            raise ValueError(f"a grammar names id {named} of a vocabulary of {masks.vocab_size}")
    if forced is None or allowed.scored:
        masks.fill(allowed, mask)
    u0 = u1 = u2 = 0.0
    if choice.temperature > 0:
        u0, u1, u2 = (uniform(choice.seed, choice.index, lane) for lane in range(3))
    _CHOICE.pack_into(
        row.data,
        0,
        -1 if forced is None else forced,
        -1 if allowed.coordinate is None else allowed.coordinate,
        -1 if allowed.size is None else allowed.size,
        -1 if allowed.end is None else allowed.end,
        _ties(allowed),
        min(choice.temperature, _LARGEST_FLOAT32),
        choice.top_p,
        u0,
        u1,
        u2,
    )


def write_scored(scored: Sequence[int], row: npt.NDArray[np.int32], vocab_size: int) -> None:
    """Write the ids whose probabilities a row wants.

    Args:
        scored: These ids, at least one.
        row: int32 ``[MAX_SCORED]``.
        vocab_size: Ids that there are.

    Raises:
        ValueError: They are too many, or not in the vocabulary.
    """
    if len(scored) > MAX_SCORED:
        raise ValueError(f"a grammar wants the probabilities of {len(scored)} ids, over the limit of {MAX_SCORED}")
    if not 0 <= min(scored) <= max(scored) < vocab_size:
        raise ValueError(f"a grammar scores ids {min(scored)} to {max(scored)} of a vocabulary of {vocab_size}")
    row[: len(scored)] = scored
    row[len(scored) :] = -1


class Needs:
    """What a finalize takes, gathered row by row.

    Attributes:
        sampled: Whether any row draws: has a temperature above 0.
    """

    def __init__(self) -> None:
        self.sampled = False
        self._heads = 0
        self._scored = False

    @property
    def variant(self) -> Variant:
        """The one with every head that a row may need."""
        return "scored" if self._scored else _VARIANTS.get(self._heads, "mixed")

    def add(self, choice: SamplingParams) -> None:
        """Add a row; one that raises adds nothing."""
        heads, scored = _heads(choice.allowed), bool(choice.allowed.scored)
        self._heads |= heads
        self._scored |= scored
        self.sampled |= heads != 0 and choice.temperature > 0


def read_results(rows: npt.NDArray[np.int32], count: int) -> list[Result]:
    """Read the first `count` rows of results, int32 ``[B, RESULT_COLUMNS]``, contiguous."""
    return [Result._make(values) for values in _RESULT.iter_unpack(rows[:count].tobytes())]


def _ties(allowed: Allowed) -> int:
    """Give the value of `TIES`: the first in the list wins; without a list, the smaller id does."""
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
    # To decide whether to go on takes a variant with coordinates: those alone weigh `end` against all others.
    if allowed.end is not None or (allowed.coordinate is not None and allowed.permits(allowed.coordinate)):
        heads |= _COORDINATE
    if allowed.size is not None and allowed.permits(allowed.size):
        heads |= _SIZE
    return heads
