"""The tokens of a vocabulary as tries of bytes, in arrays, and which of them may follow in a state of an automaton.

```
tier 0   tokens of 1 to 4 bytes       level 0 ── level 1 ── level 2 ── level 3
tier 1   tokens of 5 to 8 bytes       level 0 ── ...                         level 7
tier 2   tokens of 9 to 16 bytes      ...
```

Which tokens of at most 4 bytes may follow depends on the next 4 bytes alone. Many states of an automaton agree on those
and not on the 100 bytes of the longest token: with tiers, most tokens are worked out once for all these states.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from photonlite.grammar.automata.alphabet import RESERVED, BoolArray, Int32Array, Int64Array, UInt8Array

OPENING, STEADY, CLOSING = 1, 2, 3  # the token makes the shortest way to the end longer, keeps it, makes it shorter

_CHUNK = 64  # states that are walked at once, which bounds the memory
_LOWEST_TIER = 4  # bytes of the longest token in the first tier; doubles from tier to tier


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


@dataclass(frozen=True, eq=False)
class Steps:
    """A table of bytes, and the distance to the end."""

    targets: Int32Array  # [S, C]: next state, -1 for none
    column: UInt8Array  # [256]: column of each byte
    distance: Int32Array  # [S]: tokens of the shortest way to the end


@dataclass(frozen=True, eq=False)
class Effects:
    """The tokens that may stand in each of K states, one state after the other."""

    bounds: Int64Array  # [K + 1]: state k has the entries bounds[k] to bounds[k + 1]
    ids: Int32Array  # token of each entry
    kinds: UInt8Array  # OPENING, STEADY or CLOSING
    longer: Int32Array  # [K]: by how many tokens one of them may lengthen the shortest way, at least 0


def gathered(count: int, origin: Int64Array, ids: Int32Array, gain: Int32Array) -> Effects:
    """Sort entries by their states; `gain` is by how many tokens each lengthens the shortest way. Arrays are [E]."""
    longer = np.zeros(count, np.int32)
    np.maximum.at(longer, origin, gain)
    order = np.argsort(origin, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(origin, minlength=count))))
    return Effects(bounds, ids[order], (STEADY - np.sign(gain[order])).astype(np.uint8), longer)


def effects(tier: Tier, steps: Steps, states: Int64Array, excluded: BoolArray) -> Iterator[Effects]:
    """Follow the tokens of a tier from each state, some states at a time; `excluded` marks positions of the tier."""
    for begin in range(0, len(states), _CHUNK):
        some = states[begin : begin + _CHUNK]
        found = list(_walk(tier, steps, some))
        origin, token, gain = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if excluded.any():
            kept = ~excluded[token]
            origin, token, gain = origin[kept], token[kept], gain[kept]
        yield gathered(len(some), origin, tier.ids[token], gain)


def joined(parts: list[Effects]) -> Effects:
    lengths = np.concatenate([np.diff(part.bounds) for part in parts])
    ids, kinds, longer = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "kinds", "longer")
    )
    return Effects(np.concatenate(([0], np.cumsum(lengths))), ids, kinds, longer)


def _walk(tier: Tier, steps: Steps, states: Int64Array) -> Iterator[tuple[Int64Array, Int32Array, Int32Array]]:
    """Yield for each level the tokens that are complete there: index of their first state, position, gain."""
    # One entry for each pair of a first state and a node of the trie that it can reach.
    begin, state, node = np.arange(len(states)), states, np.zeros(len(states), np.int64)
    width, flat = steps.targets.shape[1], steps.targets.reshape(-1)
    for level in tier.levels:
        entry, node = _expand(level.first, node)
        state = flat.take(state.take(entry) * width + steps.column.take(level.letter.take(node)))
        alive = np.flatnonzero(state >= 0)
        begin, state, node = begin.take(entry.take(alive)), state.take(alive).astype(np.int64), node.take(alive)
        entry, position = _expand(level.done, node)
        origin = begin.take(entry)
        gain = steps.distance.take(state.take(entry)) - steps.distance.take(states.take(origin))
        yield origin, level.tokens.take(position), gain


def _expand(bounds: Int32Array, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """List bounds[r] to bounds[r + 1] for each row r: the index into `rows`, and the value."""
    begin = bounds.take(rows).astype(np.int64)
    counts = bounds.take(rows + 1) - begin
    entry = np.repeat(np.arange(len(rows)), counts)
    before = np.cumsum(counts) - counts
    return entry, np.arange(len(entry)) + (begin - before).take(entry)
