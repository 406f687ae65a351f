"""The tokens of a vocabulary as tries of bytes, in arrays.

```
tier 0   tokens of 1 to 4 bytes       level 0 ── level 1 ── level 2 ── level 3
tier 1   tokens of 5 to 8 bytes       level 0 ── ...                         level 7
tier 2   tokens of 9 to 16 bytes      ...
```

What tokens of at most 4 bytes may follow depends on the next 4 bytes alone. Many states of an automaton agree on those
that do not agree on the 100 bytes of the longest token, and tiers let most tokens be worked out once for all of them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from photonlite.grammar.automata.alphabet import RESERVED

_LOWEST_TIER = 4
"""Bytes of the longest token in the first tier; it doubles from tier to tier."""


class TokenBytes:
    """The bytes of every token, in two blocks of memory.

    Args:
        pieces: Id to bytes.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._data = b"".join(pieces)
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        self._ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        # No negative indices: ids have none, and a sequence protocol would end at an IndexError only.
        if not 0 <= index < len(self):
            raise IndexError(f"id {index} of a vocabulary of {len(self)}")
        return self._data[self._ends[index] : self._ends[index + 1]]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return len(self._data) + self._ends.nbytes

    def holding(self, letter: bytes) -> list[int]:
        """Return the tokens that hold a byte, in order."""
        places = np.flatnonzero(np.frombuffer(self._data, np.uint8) == letter[0])
        found: list[int] = np.unique(np.searchsorted(self._ends, places, side="right") - 1).tolist()
        return found

    def of_length(self, length: int) -> list[int]:
        """Return the tokens of so many bytes, in order."""
        found: list[int] = np.flatnonzero(np.diff(self._ends) == length).tolist()
        return found


@dataclass(frozen=True, eq=False)
class Level:
    """The nodes of one depth, sorted by the bytes that lead to them.

    Attributes:
        first: int32 ``[parents + 1]``: children of node i of the level above are nodes ``first[i]`` to ``first[i+1]``.
        letter: uint8 ``[nodes]``: the last byte on the way to a node.
        done: int32 ``[nodes + 1]``: tokens that are complete at node i are ``tokens[done[i]:done[i+1]]``.
        tokens: int32: positions in `Tier.ids`.
    """

    first: npt.NDArray[np.int32]
    letter: npt.NDArray[np.uint8]
    done: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Tier:
    """Tokens of similar length.

    Attributes:
        ids: int32: sorted by their bytes.
        levels: One for each byte of the longest.
    """

    ids: npt.NDArray[np.int32]
    levels: tuple[Level, ...]


class TokenTrie:
    """All tokens that a typed answer may be made of.

    Args:
        pieces: Id to bytes; ``b""`` for an id that stands for no text. Those with a letter of `letters.RESERVED` are
            left out.

    Attributes:
        pieces: As given, packed.
        tiers: Tokens by length, the shortest first.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = TokenBytes(pieces)
        spelled = [(piece, index) for index, piece in enumerate(pieces) if piece and not _reserved(piece)]
        spelled.sort()
        self._singles = [(piece[0], index) for piece, index in spelled if len(piece) == 1]
        self.tiers = _tiers(spelled)

    def singles(self, left_out: Collection[int] = ()) -> npt.NDArray[np.int32]:
        """Give for each byte the smallest id that is just that, but none of some: int32 ``[256]``, -1 for none."""
        single = np.full(256, -1, np.int32)
        for byte, index in reversed(self._singles):
            if index not in left_out:
                single[byte] = index
        return single


def _reserved(piece: bytes) -> bool:
    return any(letter in piece for letter in RESERVED)


def _tiers(spelled: list[tuple[bytes, int]]) -> tuple[Tier, ...]:
    tiers, low, high = [], 0, _LOWEST_TIER
    longest = max((len(piece) for piece, _ in spelled), default=0)
    while low < longest:
        within = [(piece, index) for piece, index in spelled if low < len(piece) <= high]
        if within:
            tiers.append(_tier(within))
        low, high = high, 2 * high
    return tuple(tiers)


def _tier(spelled: list[tuple[bytes, int]]) -> Tier:
    lengths = np.array([len(piece) for piece, _ in spelled])
    height = int(lengths.max())
    padded = np.array([piece for piece, _ in spelled], f"S{height}").view(np.uint8).reshape(-1, height)
    levels = []
    # A token stands at one node of each level that it reaches: at first all stand at the root.
    node, nodes = np.zeros(len(spelled), np.int64), 1
    differs = np.zeros(len(spelled), np.bool_)
    differs[0] = True
    for depth in range(height):
        differs[1:] |= padded[1:, depth] != padded[:-1, depth]
        # A shorter token between two others has ended in their common prefix, or there was none: it parts them rightly.
        reaching = np.flatnonzero(lengths > depth)
        new = _first_of_run(np.cumsum(differs, dtype=np.int64)[reaching])
        heads = reaching[new]
        first = np.searchsorted(node[heads], np.arange(nodes + 1))
        node[reaching] = np.cumsum(new) - 1
        nodes = len(heads)
        tokens = np.flatnonzero(lengths == depth + 1)
        done = np.searchsorted(node[tokens], np.arange(nodes + 1))
        levels.append(
            Level(first.astype(np.int32), padded[heads, depth], done.astype(np.int32), tokens.astype(np.int32))
        )
    return Tier(np.array([index for _, index in spelled], np.int32), tuple(levels))


def _first_of_run(labels: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    return np.concatenate((np.ones(1, np.bool_), labels[1:] != labels[:-1]))
