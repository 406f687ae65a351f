"""The fake model: a cell of its KV cache hashes all earlier positions, and its heads choose by such hashes.

```
cell p     hash of (cell p - 1, what stands at p)            of BOS and image: a function of the image, all at once
                                                             of a prompt block: a function of all of it, too
hidden p   hash of (cell p, an earlier cell)                 which one depends on cell p
choice     hidden modulo the number of what is allowed
```

A wrong token, page, mask or number anywhere upstream changes all that follows. Nothing here comes from the package's
runner, sampler or mask code: the oracle must not repeat their mistakes.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from photonlite.grammar.decoding.grammars import Vocabulary
from photonlite.request import Allowed, Token

VOCAB_SIZE = 40
END, ANSWER, COORDINATE, SIZE = 0, 3, 5, 6
WORDS = tuple(number for number in range(VOCAB_SIZE) if number not in (END, ANSWER, COORDINATE, SIZE))
VOCABULARY = Vocabulary(
    END, ANSWER, COORDINATE, SIZE, 7, 9, any_id_continues=False, suppressed_in_answer=(ANSWER, 11, 12)
)
VOCABULARY_ANY = Vocabulary(
    END, ANSWER, COORDINATE, SIZE, 7, 9, True, suppressed_in_answer=(ANSWER,), suppressed_in_reasoning=(END, SIZE)
)
COORDINATES = tuple(place / 16 for place in range(16))
SIZES = tuple((place + 0.5) / 8 for place in range(8))
"""No bin's size is another bin's coordinate."""

NAN = 0
"""A cell or hidden state that is no number; whatever depends on it is none either."""

NO_NUMBER = int(np.float32(-1).view(np.int32))
"""Where an input has no first or second value."""

Input = tuple[int, int, int]
"""What stands at a position: id and the bits of its values."""

_BITS = {value: int(np.float32(value).view(np.int32)) for value in (*COORDINATES, *SIZES)}
COORDINATE_BITS = tuple(_BITS[value] for value in COORDINATES)
SIZE_BITS = tuple(_BITS[value] for value in SIZES)
BOS_CELL = hash((17, 4))


class Choice(NamedTuple):
    """What the heads choose; a bin is -1 where there is none."""

    id: int
    bin0: int = -1
    bin1: int = -1
    finite: bool = True
    probability: float = 1.0
    mass0: float = 0.0
    mass1: float = 0.0


def embed(token: Token) -> Input:
    """Return what stands at a token's position."""
    if not token.values:
        return token.id, NO_NUMBER, NO_NUMBER
    bits = [_BITS[value] for value in token.values]
    return (token.id, bits[0], NO_NUMBER) if len(bits) == 1 else (token.id, bits[0], bits[1])


def embed_image(crops: Iterable[int]) -> int:
    """Return the features of an image's crops, in their order."""
    return hash(tuple(crops))


def adapted(value: int, adapter: int) -> int:
    """Return what an adapter, by its number, makes of a crop or a cell; 0 is none."""
    return hash((value, adapter)) if adapter and value != NAN else value


def next_cell(cell: int, token: Input, adapter: int) -> int:
    """Return the cell behind another one."""
    return adapted(hash((cell, token)), adapter) if cell != NAN else NAN


def image_cell(image: int, position: int) -> int:
    """Return a cell of BOS and image tokens, which attend in both directions."""
    return hash((image, position))


def image_input(image: int, place: int) -> Input:
    """Return what stands at a position of an image inside a prompt, which sees what comes before it."""
    return image, place, -7


def block_cells(leading: Sequence[int], inputs: Sequence[Input], adapter: int) -> list[int]:
    """Return the cells of a prompt that attends in both directions, given those of BOS and image, and what follows.

    The last cell is also a function of those before it and of what stands there.
    """
    if NAN in leading:
        return [NAN] * (len(leading) + len(inputs))
    whole = hash((tuple(leading), tuple(inputs)))
    cells = [hash((whole, position)) for position in range(len(leading) + len(inputs))]
    if inputs:
        cells[-1] = next_cell(cells[-2], inputs[-1], adapter)
    return cells


def choose_id(hidden: int, permitted: Sequence[int], draw: float) -> int:
    """Choose among ids in ascending order."""
    return permitted[hash((hidden, draw)) % len(permitted)]


def goes_on(hidden: int) -> float:
    """Return the probability of another object, exact in float32."""
    return (hidden >> 9 & 63) / 64


def probability_of(hidden: int, token_id: int) -> float:
    """Return the probability of an id, exact in float32."""
    return (hash((hidden, token_id)) >> 9 & 63) / 64


def choose_coordinate(hidden: int, draw: float) -> tuple[int, float]:
    """Choose a bin and its probability mass."""
    place = hash((hidden, 1, draw))
    return place % len(COORDINATES), (place >> 9 & 63) / 64


def choose_size(hidden: int, draws: tuple[float, float]) -> tuple[int, int, float, float]:
    """Choose bins of width and height and their probability masses."""
    width, height = hash((hidden, 2, draws[0])), hash((hidden, 3, draws[1]))
    return width % len(SIZES), height % len(SIZES), (width >> 9 & 63) / 64, (height >> 9 & 63) / 64


@lru_cache(maxsize=4096)
def permitted_ids(ids: tuple[int, ...] | None, suppressed: tuple[int, ...]) -> tuple[int, ...]:
    """List what `ids` and `suppressed` of an `Allowed` let through, ascending.

    Raises:
        ValueError: An id is not in the vocabulary.
    """
    listed = suppressed if ids is None else ids
    if not all(0 <= one < VOCAB_SIZE for one in listed):
        raise ValueError(f"{listed} are not all in the vocabulary")
    if ids is None:
        return tuple(one for one in range(VOCAB_SIZE) if one not in suppressed)
    return tuple(sorted(set(ids)))


def nucleus(permitted: Sequence[int], top_p: float) -> Sequence[int]:
    """List the ids that top-p sampling keeps: that share of them, at least one."""
    return permitted[: max(1, int(len(permitted) * top_p))] if top_p < 1 else permitted


def unseen(permitted: tuple[int, ...], seen: Iterable[int]) -> tuple[int, ...]:
    """List the ids that a repetition penalty leaves: those that were not seen, or all where none are left."""
    return tuple(one for one in permitted if one not in seen) or permitted if seen else permitted


def choose(
    hidden: int,
    allowed: Allowed,
    draws: tuple[float, float, float],
    top_p: float = 1.0,
    seen: Iterable[int] = (),
) -> Token:
    """Choose a token for one row: how the oracle reads an `Allowed`; `seen` are the ids that a penalty is for."""
    ids, coordinate, size, end = allowed.ids, allowed.coordinate, allowed.size, allowed.end
    if allowed.mask is not None:
        permitted: tuple[int, ...] = tuple(one for one in range(VOCAB_SIZE) if allowed.permits(one))
    else:
        permitted = permitted_ids(ids, allowed.suppressed)
    if allowed.free:
        permitted = unseen(permitted, seen)
    scores = tuple(probability_of(hidden, one) for one in allowed.scored)
    probability = 1.0
    if ids is not None and len(ids) == 1:
        token_id = ids[0]
    else:
        token_id = choose_id(hidden, nucleus(permitted, top_p), draws[0])
        if end is not None:
            probability = goes_on(hidden)
            if token_id != end and coordinate is not None:
                token_id = coordinate
    if token_id == coordinate:
        place, mass = choose_coordinate(hidden, draws[1])
        return Token(token_id, (COORDINATES[place],), probability, (mass,), scores)
    if token_id == size:
        width, height, mass0, mass1 = choose_size(hidden, draws[1:])
        return Token(token_id, (SIZES[width], SIZES[height]), probability, (mass0, mass1), scores)
    return Token(token_id, (), probability, (), scores)
