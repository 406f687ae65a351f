"""The tables of a typed answer: states, transitions, and the tokens that may stand in each state.

Every state has three sets of tokens. Which one holds depends on how many tokens of the budget are left over the
shortest way to the end:

```
all       every token that a valid answer can go on with
steady    those that make the shortest way no longer          at least 1 token is left over
closing   those that make it shorter                          always: an answer is complete before its budget ends
```
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from photonlite.grammar.automata.arrays import BoolArray, Int32Array, UInt8Array
from photonlite.grammar.automata.token_sets import TokenSets
from photonlite.grammar.automata.trie import TokenBytes
from photonlite.request import Allowed

DEAD_END = -1
"""The target of a letter that may not stand."""


@dataclass(frozen=True, eq=False)
class SpecialIds:
    """Token ids that are not text, and the number of all ids."""

    end: int
    coordinate: int | None  # None where the checkpoint has none
    size: int | None
    vocab_size: int


@dataclass(frozen=True, eq=False)
class Automaton:
    """A grammar over tokens, as `builder.build_automaton` makes it; immutable, can be pickled."""

    ids: SpecialIds
    pieces: TokenBytes  # the bytes of every token
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

    @property
    def shortest(self) -> int:
        """Tokens of the shortest answer: a smaller budget holds none."""
        return int(self.distance[self.start])

    @cached_property
    def guide(self) -> "Guide":
        """The tables for one step at a time; made at the first use, shared by all answers."""
        return Guide(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "guide"}


class Guide:
    """An automaton's tables as plain Python objects, which are quicker to index one by one than arrays."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._pieces = automaton.pieces
        self._special = {
            index: letter
            for index, letter in ((automaton.ids.coordinate, b"\x04"), (automaton.ids.size, b"\x05"))
            if index is not None
        }
        # Memory views: no copy, and their items are plain ints.
        self._delta = np.ascontiguousarray(automaton.delta).reshape(-1).data
        self._width = automaton.delta.shape[1]
        self._column = automaton.column.tobytes()
        self._row_of = np.ascontiguousarray(automaton.row_of).reshape(-1).data
        self._allowed: list[Allowed | None] = [None] * len(automaton.rows)
        self.complete = automaton.complete.tobytes()
        self.distance = automaton.distance.data
        self.longer = automaton.longer.data

    def letters(self, token_id: int) -> bytes:
        """Return the letters that a token stands for."""
        return self._special.get(token_id) or self._pieces[token_id]

    def after(self, state: int, token_id: int) -> int:
        """Follow a token; `DEAD_END` where it may not stand."""
        delta, column, width = self._delta, self._column, self._width
        for letter in self.letters(token_id):
            state = delta[state * width + column[letter]]
            if state < 0:
                return DEAD_END
        return state

    def allowed(self, state: int, left: int) -> Allowed:
        """Return what may stand in a state with `left` tokens left, at least its `distance`."""
        over = left - self.distance[state]
        row = self._row_of[3 * state + (0 if over > self.longer[state] else 1 if over > 0 else 2)]
        allowed = self._allowed[row]
        if allowed is None:
            allowed = self._allowed[row] = self._make(row)
        return allowed

    def limits(self, state: int, left: int) -> bool:
        """Whether having only `left` tokens left excludes a token that the grammar alone allows."""
        over = left - self.distance[state]
        rows = self._row_of
        if over > self.longer[state]:
            return False
        return rows[3 * state] != rows[3 * state + (1 if over > 0 else 2)]

    def _make(self, row: int) -> Allowed:
        rows, ids = self._automaton.rows, self._automaton.ids
        mask = rows.mask(row)
        allowed = Allowed(rows.ids(row)) if mask is None else Allowed(mask=mask)
        coordinate, size = (
            index if index is not None and allowed.permits(index) else None for index in (ids.coordinate, ids.size)
        )
        return replace(allowed, coordinate=coordinate, size=size)
