"""The ids that repetition penalties are for: words of a sequence's prompt and of its answer so far. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from photonlite.grammar.automata.tables import words
from photonlite.request import IMAGE, Token
from photonlite.sequence import Sequence


@dataclass(slots=True)
class _Row:
    number: int  # of the sequence
    counted: int  # of its committed tokens
    bits: npt.NDArray[np.uint32]  # [words]


class SeenIds:
    """Keeps seen ids as bits, by row of the pending table, and adds to them what has been committed since.

    A sequence never loses a committed token, so that what is kept of it holds in a row that it comes back to.
    """

    def __init__(self, vocab_size: int) -> None:
        self._words = words(vocab_size)
        self._rows: dict[int, _Row] = {}

    def fill(self, sequence: Sequence, row: int, out: npt.NDArray[np.int32]) -> None:
        """Write the ids that a sequence in some row has seen to `out`, int32 [words]."""
        known = self._rows.get(row)
        if known is None or known.number != sequence.number:
            known = self._rows[row] = _Row(sequence.number, 0, np.zeros(self._words, np.uint32))
            _add(known.bits, sequence.prompt)
        _add(known.bits, sequence.tokens[known.counted :])
        known.counted = len(sequence.tokens)
        out[:] = known.bits.view(np.int32)


def _add(bits: npt.NDArray[np.uint32], tokens: Iterable[Token]) -> None:
    """Add words: images and what carries a place are none."""
    places = np.array([token.id for token in tokens if token.id != IMAGE.id and not token.values], np.uint32)
    np.bitwise_or.at(bits, places >> np.uint32(5), np.uint32(1) << (places & np.uint32(31)))
