"""The tables of a typed answer: states, transitions, and the tokens that may stand in each state.

Every state has three sets of tokens. Which one holds depends on how many tokens of the budget are left over the
shortest way to the end:

```
all       every token that a valid answer can go on with
steady    those that make the shortest way no longer          at least 1 token is left over
closing   those that make it shorter                          always: an answer is complete before its budget ends
```
"""

from dataclasses import dataclass

import numpy as np

from photonlite.grammar.automata.alphabet import BoolArray, Int32Array, UInt8Array


def words(vocab_size: int) -> int:
    """Return the number of 32-bit words of a mask: bit i % 32 of word i // 32 is 1 where id i may stand."""
    return -(-vocab_size // 32)


@dataclass(frozen=True, eq=False)
class SpecialIds:
    """Token ids that are not text, and the number of all ids."""

    end: int
    coordinate: int | None  # None where the checkpoint has none
    size: int | None
    vocab_size: int
    # Of 0 to 9, where places are whole numbers in text: `coordinate` then stands for a number, and never comes.
    digits: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class TokenSets:
    """Different sets of tokens: many ids as bits, few as a list. Those kept as bits come first."""

    masks: Int32Array  # [M, words], see `words`
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


@dataclass(frozen=True, eq=False)
class AutomatonTables:
    """A grammar over tokens, as `builder.build_automaton` makes it; immutable."""

    ids: SpecialIds
    start: int
    delta: Int32Array  # [S, C]: next state, -1 for none
    column: UInt8Array  # [256]: column of each letter
    accepts: BoolArray  # [S]: whether an answer may end there
    complete: BoolArray  # [S]: whether it must
    distance: Int32Array  # [S]: tokens of the shortest way to the end, including the end id where that is needed
    longer: Int32Array  # [S]: by how many tokens the next token may lengthen that way, at least 0
    rows: TokenSets
    row_of: Int32Array  # [S, 3]: which sets hold in a state: all, steady, closing
    free_names: bool = False  # answers are JSON whose objects have any names, none of them twice
