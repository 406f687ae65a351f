"""Which tokens may follow in which state: words of a trie, followed through a table of letters."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from photonlite.grammar.automata.trie import Level, Tier

OPENING, STEADY, CLOSING = 1, 2, 3
"""What a token does: it makes the shortest way to the end longer, leaves it as long as it is, or makes it shorter."""

_CHUNK = 64
"""States that are walked at once: it bounds the memory."""


@dataclass(frozen=True, eq=False)
class Steps:
    """A table of letters with the way that is left to the end.

    Attributes:
        targets: int32 ``[S, C]``: the next state, -1 for none.
        column: uint8 ``[256]``: the column of each byte.
        distance: int32 ``[S]``: tokens that the shortest way to the end takes.
    """

    targets: npt.NDArray[np.int32]
    column: npt.NDArray[np.uint8]
    distance: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Effects:
    """The tokens that may stand in each of K states, one state after the other.

    Attributes:
        bounds: int64 ``[K + 1]``: those of state k are entries ``bounds[k]`` to ``bounds[k + 1]``.
        ids: int32: the tokens.
        kinds: uint8: what each does.
        longer: int32 ``[K]``: by how many tokens one of them may make the shortest way longer, at least 0.
    """

    bounds: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    longer: npt.NDArray[np.int32]


def gathered(
    count: int, origin: npt.NDArray[np.int64], ids: npt.NDArray[np.int32], gain: npt.NDArray[np.int32]
) -> Effects:
    """Sort entries by the state that they are of.

    Args:
        count: States that there are.
        origin: int64 ``[E]``: the state of each entry.
        ids: int32 ``[E]``: the token.
        gain: int32 ``[E]``: by how many tokens it makes the shortest way longer.
    """
    longer = np.zeros(count, np.int32)
    np.maximum.at(longer, origin, gain)
    order = np.argsort(origin, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(origin, minlength=count))))
    return Effects(bounds, ids[order], (STEADY - np.sign(gain[order])).astype(np.uint8), longer)


def effects(
    tier: Tier, steps: Steps, states: npt.NDArray[np.int64], left_out: npt.NDArray[np.bool_]
) -> Iterator[Effects]:
    """Follow every token of a tier from every one of some states.

    Args:
        tier: Of n tokens.
        steps: The table.
        states: int64 ``[K]``.
        left_out: bool ``[n]``: tokens that never stand.

    Returns:
        What they do, for some of the states at a time.
    """
    for begin in range(0, len(states), _CHUNK):
        some = states[begin : begin + _CHUNK]
        found = list(_walk(tier, steps, some))
        origin, token, gain = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if left_out.any():
            kept = ~left_out[token]
            origin, token, gain = origin[kept], token[kept], gain[kept]
        yield gathered(len(some), origin, tier.ids[token], gain)


def joined(parts: list[Effects]) -> Effects:
    """Join what is known of several groups of states."""
    lengths = np.concatenate([np.diff(part.bounds) for part in parts])
    ids, kinds, longer = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "kinds", "longer")
    )
    return Effects(np.concatenate(([0], np.cumsum(lengths))), ids, kinds, longer)


def _walk(
    tier: Tier, steps: Steps, states: npt.NDArray[np.int64]
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
    # One entry for each pair of a state of the beginning and a node of the trie that it can reach.
    begin, state, node = np.arange(len(states)), states, np.zeros(len(states), np.int64)
    width, flat = steps.targets.shape[1], steps.targets.reshape(-1)
    for level in tier.levels:
        entry, node = _spread(level.first, node)
        state = flat.take(state.take(entry) * width + steps.column.take(level.letter.take(node)))
        alive = np.flatnonzero(state >= 0)
        begin, state, node = begin.take(entry.take(alive)), state.take(alive).astype(np.int64), node.take(alive)
        yield _complete(level, steps, states, begin, state, node)


def _complete(
    level: Level,
    steps: Steps,
    states: npt.NDArray[np.int64],
    begin: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
    node: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Give the tokens that are complete at these nodes: where each began, which it is, and its gain."""
    entry, position = _spread(level.done, node)
    origin = begin.take(entry)
    gain = steps.distance.take(state.take(entry)) - steps.distance.take(states.take(origin))
    return origin, level.tokens.take(position), gain


def _spread(
    bounds: npt.NDArray[np.int32], rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """List ``bounds[r]`` to ``bounds[r + 1]`` for each of the rows: which entry of `rows` it is of, and the value."""
    begin = bounds.take(rows).astype(np.int64)
    counts = bounds.take(rows + 1) - begin
    entry = np.repeat(np.arange(len(rows)), counts)
    before = np.cumsum(counts) - counts
    return entry, np.arange(len(entry)) + (begin - before).take(entry)
