"""The tables that a typed answer is written by: states, what leads where, and the tokens that may stand in each.

Of every state three sets of tokens are kept, and which of them holds depends on how many tokens of the budget are left
over the shortest way to the end:

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
import numpy.typing as npt

from photonlite.grammar.automata.token_sets import TokenSets
from photonlite.grammar.automata.trie import TokenBytes
from photonlite.request import Allowed

DEAD_END = -1
"""Where a letter leads that may not stand."""


@dataclass(frozen=True, eq=False)
class SpecialIds:
    """The ids that are no text.

    Attributes:
        end: Ends an answer.
        coordinate: Carries a coordinate; None where the checkpoint has none.
        size: Carries a width and a height; None where the checkpoint has none.
        vocab_size: SpecialIds that there are.
    """

    end: int
    coordinate: int | None
    size: int | None
    vocab_size: int


@dataclass(frozen=True, eq=False)
class Automaton:
    """A grammar over tokens, as `automaton.build_automaton` makes it. It can be pickled, and is never changed.

    Attributes:
        ids: The ids that are no text.
        pieces: The bytes of every token.
        start: The state at the beginning.
        delta: int32 ``[S, C]``: the next state, -1 for none.
        column: uint8 ``[256]``: the column of each letter.
        accepts: bool ``[S]``: whether an answer may end there.
        complete: bool ``[S]``: whether it must.
        distance: int32 ``[S]``: tokens of the shortest way to the end, the end id among them where it is needed.
        longer: int32 ``[S]``: by how many tokens the next one may make that way longer, at least 0.
        rows: Different sets of tokens.
        row_of: int32 ``[S, 3]``: which of them holds in a state: all, steady, closing.
        free_names: Whether answers are JSON with objects whose names the schema leaves open; no name may come twice.
    """

    ids: SpecialIds
    pieces: TokenBytes
    start: int
    delta: npt.NDArray[np.int32]
    column: npt.NDArray[np.uint8]
    accepts: npt.NDArray[np.bool_]
    complete: npt.NDArray[np.bool_]
    distance: npt.NDArray[np.int32]
    longer: npt.NDArray[np.int32]
    rows: TokenSets
    row_of: npt.NDArray[np.int32]
    free_names: bool = False

    @property
    def shortest(self) -> int:
        """Tokens of the shortest answer: a smaller budget holds none."""
        return int(self.distance[self.start])

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are its own: without `pieces`, which others may share."""
        arrays = (self.delta, self.column, self.accepts, self.complete, self.distance, self.longer, self.row_of)
        return self.rows.nbytes + sum(array.nbytes for array in arrays)

    @cached_property
    def guide(self) -> "Guide":
        """The same tables for one step at a time; made at the first use and then shared by all answers."""
        return Guide(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "guide"}


class Guide:
    """An automaton's tables as plain Python objects, which are quicker to look into one by one than arrays are.

    Args:
        automaton: Whose tables they are.

    Attributes:
        complete: For each state, whether an answer must end there.
        distance: For each state, tokens to the end.
        longer: For each state, by how many tokens the next one may make that way longer.
    """

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._pieces = automaton.pieces
        self._special = {
            index: letter
            for index, letter in ((automaton.ids.coordinate, b"\x04"), (automaton.ids.size, b"\x05"))
            if index is not None
        }
        # Views of the arrays' memory: no copy, and what is read from them is a plain int.
        self._delta = np.ascontiguousarray(automaton.delta).reshape(-1).data
        self._width = automaton.delta.shape[1]
        self._column = automaton.column.tobytes()
        self._row_of = np.ascontiguousarray(automaton.row_of).reshape(-1).data
        self._allowed: list[Allowed | None] = [None] * len(automaton.rows)
        self.complete = automaton.complete.tobytes()
        self.distance = automaton.distance.data
        self.longer = automaton.longer.data

    def letters(self, token_id: int) -> bytes:
        """Give the letters that a token stands for."""
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
        """Give what may stand in a state with so many tokens left, at least `distance` of it."""
        over = left - self.distance[state]
        row = self._row_of[3 * state + (0 if over > self.longer[state] else 1 if over > 0 else 2)]
        allowed = self._allowed[row]
        if allowed is None:
            allowed = self._allowed[row] = self._make(row)
        return allowed

    def limits(self, state: int, left: int) -> bool:
        """Whether so few tokens left exclude a token that the grammar alone allows in a state."""
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
