"""Which tokens may follow in which state: a trie of tokens walked through a table of bytes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from photonlite.grammar.automata.arrays import BoolArray, Int32Array, Int64Array, UInt8Array
from photonlite.grammar.automata.trie import Tier

OPENING, STEADY, CLOSING = 1, 2, 3
"""What a token does to the shortest way to the end: makes it longer, leaves it as it is, makes it shorter."""

_CHUNK = 64
"""States that are walked at once, which bounds the memory."""


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
