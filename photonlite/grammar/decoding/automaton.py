"""An automaton over the tokens of a vocabulary, as grammars step through it."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from photonlite.grammar.automata.alphabet import COORDINATE, BoolArray
from photonlite.grammar.automata.tables import AutomatonTables
from photonlite.grammar.decoding.spelling import ForcedTexts, Spell
from photonlite.request import Allowed

DEAD_END = -1  # target of a letter that is not allowed


class TokenBytes:
    """The bytes of every token, in two blocks of memory."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._data = b"".join(pieces)
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        self._ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"id {index} of a vocabulary of {len(self)}")
        bound = self._ends.item  # a plain int
        return self._data[bound(index) : bound(index + 1)]

    def holding(self, letter: bytes) -> list[int]:
        """Return the tokens that contain a byte, in order."""
        places = np.flatnonzero(np.frombuffer(self._data, np.uint8) == letter[0])
        found: list[int] = np.unique(np.searchsorted(self._ends, places, side="right") - 1).tolist()
        return found

    @functools.cached_property
    def pairs(self) -> BoolArray:
        """Whether a byte stands before another in some token: [256, 256]."""
        data = np.frombuffer(self._data, np.uint8)
        begins = np.zeros(len(data) + 1, np.bool_)
        begins[self._ends] = True
        second = np.flatnonzero(~begins[:-1])
        found = np.zeros((256, 256), np.bool_)
        found[data[second - 1], data[second]] = True
        return found

    def of_length(self, length: int) -> list[int]:
        found: list[int] = np.flatnonzero(np.diff(self._ends) == length).tolist()
        return found


class Automaton:
    """Tables as plain Python objects, which are quicker to index one by one than arrays; shared by all answers."""

    def __init__(self, tables: AutomatonTables, pieces: TokenBytes) -> None:
        self.tables = tables
        self.pieces = pieces
        self.start = tables.start
        self._special = {
            index: letter
            for index, letter in ((tables.ids.coordinate, b"\x04"), (tables.ids.size, b"\x05"))
            if index is not None
        }
        # Memory views: no copy, and their items are plain ints.
        self._delta = np.ascontiguousarray(tables.delta).reshape(-1).data
        self._width = tables.delta.shape[1]
        self._column = tables.column.tobytes()
        self._row_of = np.ascontiguousarray(tables.row_of).reshape(-1).data
        self._allowed: list[Allowed | None] = [None] * (2 * len(tables.rows))  # the second half with digits
        self._longer = tables.longer.data
        self._complete = tables.complete.tobytes()
        self._distance = tables.distance.data
        self._forced: ForcedTexts | None = None

    def spell_with(self, spell: Spell) -> None:
        """Allow forced texts in the spelling of the tokenizer alone; the first call counts, before any answer."""
        if self._forced is None:
            self._forced = ForcedTexts(self.tables, self.pieces, spell)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest answer: a smaller budget holds none."""
        return self._distance[self.start]

    def is_complete(self, state: int) -> bool:
        """Whether an answer must end there."""
        return bool(self._complete[state])

    def distance(self, state: int) -> int:
        """Return the tokens of the shortest way to the end."""
        return self._distance[state]

    def expects_number(self, state: int) -> bool:
        """Whether a coordinate may stand there."""
        target: int = self._delta[state * self._width + self._column[COORDINATE]]
        return target >= 0

    def letters(self, token_id: int) -> bytes:
        return self._special.get(token_id) or self.pieces[token_id]

    def after(self, state: int, token_id: int) -> int:
        """Follow a token; `DEAD_END` where it may not stand."""
        delta, column, width = self._delta, self._column, self._width
        for letter in self.letters(token_id):
            state = delta[state * width + column[letter]]
            if state < 0:
                return DEAD_END
        return state

    def allowed(self, state: int, left: int, before: bytes | None = None, *, digits: bool = False) -> Allowed:
        """Return what may stand in a state with `left` tokens left, at least its `distance`; with digits on request.

        All spellings of forced text may stand there unless `before` is given: at least the last `REACH` bytes of text.
        """
        if not digits and (only := self._first_forced(state, before)) is not None:
            return _only(only)
        over = left - self._distance[state]
        row = self._row_of[3 * state + (0 if over > self._longer[state] else 1 if over > 0 else 2)]
        place = row + digits * len(self.tables.rows)
        allowed = self._allowed[place]
        if allowed is None:
            made = self._make(row)
            allowed = self._allowed[place] = _with_digits(made, self.tables.ids.digits) if digits else made
        return allowed

    def limits(self, state: int, left: int, before: bytes | None = None) -> bool:
        """Whether having only `left` tokens left excludes a token that the grammar alone allows."""
        over = left - self._distance[state]
        rows = self._row_of
        if over > self._longer[state] or self._first_forced(state, before) is not None:
            return False
        return rows[3 * state] != rows[3 * state + (1 if over > 0 else 2)]

    def _first_forced(self, state: int, before: bytes | None) -> int | None:
        return None if self._forced is None or before is None else self._forced.first(state, before)

    def _make(self, row: int) -> Allowed:
        rows, ids = self.tables.rows, self.tables.ids
        mask = rows.mask(row)
        allowed = Allowed(rows.ids(row)) if mask is None else Allowed(mask=mask)
        coordinate, size = (
            index if index is not None and allowed.permits(index) else None for index in (ids.coordinate, ids.size)
        )
        return replace(allowed, coordinate=coordinate, size=size)


@functools.lru_cache(maxsize=4096)
def _only(index: int) -> Allowed:
    return Allowed((index,))


def _with_digits(allowed: Allowed, digits: tuple[int, ...]) -> Allowed:
    """Allow digits as well, and ask for the probabilities of those only: what else may stand there may be much."""
    if allowed.mask is None:
        return Allowed((*digits, *(allowed.ids or ())), scored=digits)
    mask = allowed.mask.copy()
    bits = mask.view(np.uint32)
    for index in digits:
        bits[index >> 5] |= np.uint32(1 << (index & 31))
    return Allowed(mask=mask, scored=digits)
