"""Sets of tokens: few ids as a list, many as bits."""

from dataclasses import dataclass

import numpy as np

from photonlite.errors import GrammarTooLargeError
from photonlite.grammar.automata.arrays import Int32Array, UInt8Array
from photonlite.grammar.automata.mask import words
from photonlite.grammar.automata.walk import CLOSING, OPENING, STEADY

FEW = 32
"""Largest set that is kept as a list: the bits of a vocabulary of 51,200 take 6,400 bytes."""

MAX_BYTES = 128 * 2**20
"""Bytes of all sets of a grammar, at most."""


@dataclass(frozen=True, eq=False)
class TokenSets:
    """Different sets; those kept as bits come first."""

    masks: Int32Array  # [M, words], laid out by `grammar.automata.mask`
    listed: Int32Array  # ids of the others, one set after the other
    bounds: Int32Array  # [L + 1]: set M + k is listed[bounds[k] : bounds[k + 1]]

    def __len__(self) -> int:
        return len(self.masks) + len(self.bounds) - 1

    def mask(self, row: int) -> Int32Array | None:
        """Return a set as bits; None where it is kept as a list."""
        return self.masks[row] if row < len(self.masks) else None

    def ids(self, row: int) -> tuple[int, ...]:
        """Return a set as ids, in rising order."""
        if row < len(self.masks):
            bits = np.unpackbits(self.masks[row].astype("<i4").view(np.uint8), bitorder="little")
            return tuple(np.flatnonzero(bits).tolist())
        place = row - len(self.masks)
        return tuple(self.listed[self.bounds[place] : self.bounds[place + 1]].tolist())


class TokenSetWriter:
    """Collects sets, each once."""

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
