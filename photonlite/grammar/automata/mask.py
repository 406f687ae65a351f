"""Allowed ids as bits: what a step uploads so that the device can leave the other ids out.

```
bit:    i % 32  of word  i // 32  is 1 where id i may stand; bits past the vocabulary are 0
```
"""

from itertools import islice

import numpy as np
import numpy.typing as npt

from photonlite.request import Allowed

WORD_BITS = 32
"""Bits of a word; words are signed, because that is the integer every device computes with."""

CACHED_ROWS = 512
"""Finished rows that are kept, at most: grammars reuse what they allow, one or two of them for each running request."""


def words(vocab_size: int) -> int:
    """Give the 32-bit words of a mask over so many ids."""
    return -(-vocab_size // WORD_BITS)


class MaskCache:
    """Writes masks; those written before are copied.

    A row is kept for the very object it was made from, which is cheaper to recognise than to compare: it may list a
    thousand ids. The object is kept as well, so that its identity cannot pass to another one.

    Args:
        vocab_size: Ids that there are.

    Attributes:
        vocab_size: As given.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._words = words(vocab_size)
        self._rows: dict[int, tuple[Allowed, npt.NDArray[np.int32]]] = {}

    def fill(self, allowed: Allowed, out: npt.NDArray[np.int32]) -> None:
        """Write the mask of what is allowed.

        Args:
            allowed: Any ids, forced or not.
            out: int32 ``[words(vocab_size)]``.

        Raises:
            ValueError: It lists an id that is not in the vocabulary, or its own mask is of another one.
        """
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
            # The oldest half goes at once: what still runs comes back with the next token.
            for key in list(islice(self._rows, CACHED_ROWS // 2)):
                del self._rows[key]
        entry = self._rows[id(allowed)] = (allowed, self._row(allowed))
        return entry

    def _row(self, allowed: Allowed) -> npt.NDArray[np.int32]:
        listed = allowed.suppressed if allowed.ids is None else allowed.ids
        ids = np.array(listed, np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise ValueError(f"a grammar lists ids {ids.min()} to {ids.max()} of a vocabulary of {self.vocab_size}")
        bits = np.zeros(self._words * WORD_BITS, np.uint8)
        bits[: self.vocab_size] = allowed.ids is None
        bits[ids] = allowed.ids is not None
        return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)
