"""Builds the automaton over the tokens of one vocabulary from a table of bytes."""

from collections.abc import Sequence

import numpy as np

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.automata.alphabet import COORDINATE, NATIVE, SIZE, BoolArray, Int32Array, Int64Array, UInt8Array
from photonlite.grammar.automata.dfa import Dfa, columns_of, distances, edges_of, refine, restricted
from photonlite.grammar.automata.tables import AutomatonTables, SpecialIds, TokenSets, words
from photonlite.grammar.automata.trie import (
    CLOSING,
    OPENING,
    STEADY,
    Effects,
    Steps,
    Tier,
    TokenTrie,
    effects,
    gathered,
    joined,
)

MAX_STEPS = 40_000_000  # pairs of a class of states and a token allowed there: five bytes each during the build
FEW = 32  # largest set that is kept as a list: the bits of a vocabulary of 51,200 take 6,400 bytes
MAX_BYTES = 128 * 2**20  # of all sets of a grammar

_Reached = tuple[Effects, Int64Array]  # effects of some tokens in each class of states; class of each state: [S]


def build_automaton(dfa: Dfa, trie: TokenTrie, ids: SpecialIds, *, free_names: bool = False) -> AutomatonTables:
    """Work out which tokens may stand in which state; special ids never stand for their bytes."""
    dfa, distance = _spellable(dfa, _usable_bytes(dfa, trie, ids))
    targets, column = columns_of(dfa.delta)
    steps = Steps(targets, column, distance)
    reached = [_special_tokens(steps, ids, dfa.accepts), *_text_tokens(trie.tiers, steps, ids)]
    longer = np.maximum.reduce([effects.longer[classes] for effects, classes in reached])
    rows, row_of = _token_sets(reached, ids)
    return AutomatonTables(
        ids, dfa.start, targets, column, dfa.accepts, dfa.complete, distance, longer, rows, row_of, free_names
    )


def _special(ids: SpecialIds) -> list[int]:
    return [index for index in (ids.end, ids.coordinate, ids.size) if index is not None]


def _usable_bytes(dfa: Dfa, trie: TokenTrie, ids: SpecialIds) -> BoolArray:
    """Return which bytes have a token of their own: [256]."""
    usable = trie.singles(_special(ids)) >= 0
    for letter, index, name in ((COORDINATE, ids.coordinate, "coordinates"), (SIZE, ids.size, "sizes")):
        usable[letter] = index is not None
        if index is None and (dfa.delta[:, letter] >= 0).any():
            raise GrammarError(f"the answer holds boxes or points, but this checkpoint has no {name}: leave them out")
    return usable


def _spellable(dfa: Dfa, usable: BoolArray) -> tuple[Dfa, Int32Array]:
    """Drop states that single bytes cannot lead to the end, and return the distance of the others: [S]."""
    # The end id costs a token where an answer may go on, and none where nothing may follow.
    ends = [(int(state), 0) for state in np.flatnonzero(dfa.complete)]
    ends += [(int(state), 1) for state in np.flatnonzero(dfa.accepts & ~dfa.complete)]
    distance = distances(edges_of(np.where(usable, dfa.delta, -1))[::-1], ends, len(dfa.delta))
    kept = distance >= 0
    if not kept[dfa.start]:
        missing = ", ".join(f"0x{byte:02x}" for byte in np.flatnonzero(~usable & (dfa.delta >= 0).any(axis=0))[:8])
        raise GrammarError(f"this vocabulary cannot spell any answer: it has no tokens for the single bytes {missing}")
    if kept.all():
        return dfa, distance
    # A state that loses all its successors is complete now, so distances change.
    return _spellable(restricted(dfa, kept), usable)


def _text_tokens(tiers: Sequence[Tier], steps: Steps, ids: SpecialIds) -> list[_Reached]:
    # Equivalent states must also agree on how steps change the distance: sets of tokens depend on it.
    gains = np.where(steps.targets >= 0, steps.distance[steps.targets] - steps.distance[:, None], 0)
    gains -= gains.min(initial=0)
    classes, depth, settled = np.zeros(len(steps.targets), np.int64), 0, False
    found: list[_Reached] = []
    total = 0
    for tier in tiers:
        while depth < len(tier.levels) and not settled:
            finer = refine(classes, steps.targets, gains)
            settled = finer.max() == classes.max()
            classes, depth = finer, depth + 1
        _, first = np.unique(classes, return_index=True)
        parts: list[Effects] = []
        for part in effects(tier, steps, first, np.isin(tier.ids, _special(ids))):
            parts.append(part)
            total += len(part.ids)
            if total > MAX_STEPS:
                raise GrammarTooLargeError(
                    f"the answer has too many places at which almost anything may stand (over {MAX_STEPS} pairs of a "
                    f"place and a token): limit fewer or shorter texts by maxLength or counts"
                )
        found.append((joined(parts), classes))
    return found


def _special_tokens(steps: Steps, ids: SpecialIds, accepts: BoolArray) -> _Reached:
    origins, tokens, gains = [np.flatnonzero(accepts)], [ids.end], [-steps.distance[accepts]]
    for letter, index in zip(NATIVE, (ids.coordinate, ids.size), strict=True):
        if index is not None:
            targets = steps.targets[:, steps.column[letter]]
            states = np.flatnonzero(targets >= 0)
            origins.append(states)
            tokens.append(index)
            gains.append(steps.distance[targets[states]] - steps.distance[states])
    named = np.repeat(np.array(tokens, np.int32), [len(states) for states in origins])
    count = len(steps.targets)
    return gathered(count, np.concatenate(origins), named, np.concatenate(gains)), np.arange(count)


def _token_sets(reached: Sequence[_Reached], ids: SpecialIds) -> tuple[TokenSets, Int32Array]:
    """Return the different sets of tokens, and those of each state: [S, 3]."""
    # States that share their class in every tier and their special tokens have the same sets.
    writer = TokenSetWriter(ids.vocab_size)
    known: dict[tuple[object, ...], tuple[int, int, int]] = {}
    row_of = []
    (special, _), texts = reached[0], reached[1:]
    classes = np.stack([one for _, one in texts], axis=1).tolist() if texts else [[]] * len(special.longer)
    for state, places in enumerate(classes):
        own = slice(special.bounds[state], special.bounds[state + 1])
        key = (*places, special.ids[own].tobytes(), special.kinds[own].tobytes())
        if key not in known:
            slices = [(special, own)]
            slices += [
                (source, slice(source.bounds[place], source.bounds[place + 1]))
                for (source, _), place in zip(texts, places, strict=True)
            ]
            tokens = np.concatenate([source.ids[part] for source, part in slices])
            known[key] = writer.add(tokens, np.concatenate([source.kinds[part] for source, part in slices]))
        row_of.append(known[key])
    return writer.sets(), writer.numbered(np.array(row_of, np.int32))


class TokenSetWriter:
    """Deduplicates sets of tokens."""

    def __init__(self, vocab_size: int) -> None:
        self._words = words(vocab_size)
        self._masks: dict[bytes, int] = {}
        self._lists: dict[bytes, int] = {}
        self._size = 0

    def add(self, ids: Int32Array, kinds: UInt8Array) -> tuple[int, int, int]:
        """Add the sets of one state, all, steady and closing; returns their places for `numbered`."""
        first = self._place(ids)
        if kinds.min(initial=CLOSING) == CLOSING:
            return first, first, first
        steady = first if kinds.min() > OPENING else self._place(ids[kinds >= STEADY])
        return first, steady, self._place(ids[kinds == CLOSING])

    def _place(self, ids: Int32Array) -> int:
        """Return the place of a set: lists count up from 0, masks down from -1."""
        if len(ids) <= FEW:
            key = np.sort(ids).tobytes()
            if key not in self._lists:
                self._grow(len(key) + 4)
                self._lists[key] = len(self._lists)
            return self._lists[key]
        bits = np.zeros(32 * self._words, np.uint8)
        bits[ids] = 1
        key = np.packbits(bits, bitorder="little").tobytes()
        if key not in self._masks:
            self._grow(len(key))
            self._masks[key] = -1 - len(self._masks)
        return self._masks[key]

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MAX_BYTES:
            raise GrammarTooLargeError(
                f"the sets of tokens of the answer take over {MAX_BYTES >> 20} MiB: limit fewer or shorter texts"
            )

    def sets(self) -> TokenSets:
        masks = np.frombuffer(b"".join(self._masks), "<i4").astype(np.int32).reshape(-1, self._words)
        listed = np.frombuffer(b"".join(self._lists), np.int32)
        lengths = [len(key) // 4 for key in self._lists]
        return TokenSets(masks, listed, np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))

    def numbered(self, places: Int32Array) -> Int32Array:
        """Turn places into rows of `sets`."""
        return np.where(places < 0, -1 - places, places + len(self._masks)).astype(np.int32)
