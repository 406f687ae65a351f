"""The tokens of a vocabulary as tries of bytes, in arrays.

```
tier 0   tokens of 1 to 4 bytes       level 0 ── level 1 ── level 2 ── level 3
tier 1   tokens of 5 to 8 bytes       level 0 ── ...                         level 7
tier 2   tokens of 9 to 16 bytes      ...
```

Which tokens of at most 4 bytes may follow depends on the next 4 bytes alone. Many states of an automaton agree on those
and not on the 100 bytes of the longest token: with tiers, most tokens are worked out once for all these states.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from photonlite.grammar.automata.alphabet import RESERVED
from photonlite.grammar.automata.arrays import Int32Array, UInt8Array

_LOWEST_TIER = 4  # bytes of the longest token in the first tier; doubles from tier to tier


class TokenBytes:
    """The bytes of every token, in two blocks of memory."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._data = b"".join(pieces)
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        self._ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"id {index} of a vocabulary of {len(self)}")
        return self._data[self._ends[index] : self._ends[index + 1]]

    def holding(self, letter: bytes) -> list[int]:
        """Return the tokens that contain a byte, in order."""
        places = np.flatnonzero(np.frombuffer(self._data, np.uint8) == letter[0])
        found: list[int] = np.unique(np.searchsorted(self._ends, places, side="right") - 1).tolist()
        return found

    def of_length(self, length: int) -> list[int]:
        found: list[int] = np.flatnonzero(np.diff(self._ends) == length).tolist()
        return found


@dataclass(frozen=True, eq=False)
class Level:
    """The nodes of one depth, sorted by the bytes that lead to them."""

    first: Int32Array  # [parents + 1]: children of node i of the level above are first[i] to first[i + 1]
    letter: UInt8Array  # [nodes]: the last byte on the way to a node
    done: Int32Array  # [nodes + 1]: tokens complete at node i are tokens[done[i] : done[i + 1]]
    tokens: Int32Array  # positions in `Tier.ids`


@dataclass(frozen=True, eq=False)
class Tier:
    """Tokens of similar length."""

    ids: Int32Array  # sorted by their bytes
    levels: tuple[Level, ...]  # one for each byte of the longest token


class TokenTrie:
    """The tokens of typed answers: all that have bytes, and none of `alphabet.RESERVED`."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = TokenBytes(pieces)
        reserved = frozenset(RESERVED)
        spelled = sorted((piece, index) for index, piece in enumerate(pieces) if piece and reserved.isdisjoint(piece))
        self._singles = [(piece[0], index) for piece, index in spelled if len(piece) == 1]
        self.tiers = _tiers(spelled)

    def singles(self, left_out: Collection[int] = ()) -> Int32Array:
        """Return the smallest id of each single byte, those left out aside: [256], -1 for none."""
        single = np.full(256, -1, np.int32)
        for byte, index in reversed(self._singles):
            if index not in left_out:
                single[byte] = index
        return single


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
    # Each token is at one node of each level that it reaches, and at first at the root.
    node, nodes = np.zeros(len(spelled), np.int64), 1
    differs = np.zeros(len(spelled), np.bool_)
    differs[0] = True
    for depth in range(height):
        differs[1:] |= padded[1:, depth] != padded[:-1, depth]
        # A shorter token between two others is their common prefix, or they have none: it never parts one node.
        reaching = np.flatnonzero(lengths > depth)
        label = np.cumsum(differs, dtype=np.int64)[reaching]
        new = np.concatenate((np.ones(1, np.bool_), label[1:] != label[:-1]))
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
