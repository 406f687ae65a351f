"""Allowed ids as bits, which a step uploads, in signed words: every device computes with int32."""

from itertools import islice

import numpy as np
import numpy.typing as npt

from photonlite.grammar.automata.tables import words
from photonlite.request import Allowed

CACHED_ROWS = 512  # grammars reuse what they allow: one or two rows for each running request


class MaskCache:
    """Writes masks, and caches rows by the identity of their `Allowed`, which is slow to compare.

    The object is kept with its row, so that no other object gets its id.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._words = words(vocab_size)
        self._rows: dict[int, tuple[Allowed, npt.NDArray[np.int32]]] = {}

    def fill(self, allowed: Allowed, out: npt.NDArray[np.int32]) -> None:
        """Write a mask to `out`, int32 [words]; raises a ValueError for ids or masks of another vocabulary."""
        if allowed.mask is not None:
            if allowed.mask.shape != (self._words,):
                raise ValueError(f"a mask has {allowed.mask.size} words, but this vocabulary's have {self._words}")
            out[:] = allowed.mask
            return
        known = self._rows.get(id(allowed))
        if known is None:
            known = self._remember(allowed)
        out[:] = known[1]

    def _remember(self, allowed: Allowed) -> tuple[Allowed, npt.NDArray[np.int32]]:
        if len(self._rows) >= CACHED_ROWS:
            # Drop the oldest half; rows of running requests come back with their next token.
            for key in list(islice(self._rows, CACHED_ROWS // 2)):
                del self._rows[key]
        entry = self._rows[id(allowed)] = (allowed, self._row(allowed))
        return entry

    def _row(self, allowed: Allowed) -> npt.NDArray[np.int32]:
        listed = allowed.suppressed if allowed.ids is None else allowed.ids
        ids = np.array(listed, np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise ValueError(f"a grammar lists ids {ids.min()} to {ids.max()} of a vocabulary of {self.vocab_size}")
        bits = np.zeros(32 * self._words, np.uint8)
        bits[: self.vocab_size] = allowed.ids is None
        bits[ids] = allowed.ids is not None
        return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)
