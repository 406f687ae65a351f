"""Texts that an automaton leaves no choice about, in the tokens in which the tokenizer writes them.

```
state ── { ── " ── b ── o ── x ── " ── : ──┬── space ...       forced     {"box":
                                           └── "               settled    {"box        `":` may go on
                                                               tokens     {"  box
```

A vocabulary has many spellings of a text, of which models are trained to write one. Where the text is forced, that one
alone is allowed: nothing is left to sample, and its tokens can be appended at once.

How a tokenizer cuts a text depends on what follows. Byte-level ones cut it into words, numbers and punctuation before
they look for tokens; a single sign or a space may belong to the word behind it. So a token is settled if it ends before
the last such piece of the forced text, or if nothing can follow that would belong to this piece.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from photonlite.errors import PromptError
from photonlite.grammar.automata.alphabet import COORDINATE, NATIVE
from photonlite.grammar.automata.tables import AutomatonTables

Spell = Callable[[str], Sequence[int]]
"""Encodes text as the model writes it; PromptError for text that it does not encode."""


class Pieces(Protocol):
    """The bytes of each token."""

    def __getitem__(self, index: int, /) -> bytes: ...


_LONGEST = 256  # bytes of forced text that are encoded at a time
_AHEAD = 2048  # encodings that are made at once: some 0.1 s at most
_NONE = -1
_SPACES = b" \t\r\n"


class ForcedTexts:
    """The first token of each state's forced text.

    Texts that begin where an answer does, or behind a choice, are worked out at once, in `_AHEAD` encodings at most;
    others, which a token leads into that goes on behind a choice, when they are asked for. So what is allowed does not
    depend on earlier answers, though how a word is cut depends on where the text begins.
    """

    def __init__(self, tables: AutomatonTables, pieces: Pieces, spell: Spell) -> None:
        self._tables = tables
        self._pieces = pieces
        self._spell = spell
        self._letters, self._onward, beginnings = _forced_letters(tables)
        self._followings: dict[bytes, bytes] = {}
        self._first: dict[int, int | None] = {}
        left = _AHEAD
        for state in beginnings:
            while left and state not in self._first and self._letters[state] != _NONE:
                left -= 1
                found, state = self._work_out(state)
                for begin, first in found:
                    self._first.setdefault(begin, first)

    def first(self, state: int) -> int | None:
        """Return the only token that may begin the text from a state on; None where there is a choice."""
        if self._letters[state] == _NONE:
            return None
        if state not in self._first:
            found, _ = self._work_out(state)
            self._first[state] = found[0][1]
        return self._first[state]

    def _work_out(self, state: int) -> tuple[list[tuple[int, int | None]], int]:
        """Encode the text from a state on; returns the states that its settled tokens lead through, with the next one.

        The second value is the state behind them; it is among the first, with None, where no further text settles it.
        """
        letters, onward = self._letters, self._onward
        text, states = bytearray(), [state]
        while (letter := letters[state]) != _NONE and len(text) < _LONGEST:
            text.append(letter)
            states.append(state := onward[state])
        try:
            text.decode()
        except UnicodeDecodeError as error:  # it ends inside a character, or begins there
            del text[error.start :], states[error.start + 1 :]
        try:
            ids = self._spell(text.decode())
        except PromptError:  # it is blank, or holds what is kept for control
            ids = ()
        found: list[tuple[int, int | None]] = []
        begin, end = 0, settled(bytes(text), self._following(states[-1])) if ids else 0
        for index in ids:
            piece = self._pieces[index]
            if not piece or begin + len(piece) > end or not text.startswith(piece, begin):
                break
            found.append((states[begin], index))
            begin += len(piece)
        if not found or letters[state] == _NONE:
            found.append((states[begin], None))
        return found, states[begin]

    def _following(self, state: int) -> bytes:
        """Return the bytes that may follow; a place or the end of the answer is none of the text."""
        tables = self._tables
        open_columns = tables.delta[state] >= 0
        key = open_columns.tobytes()
        if key not in self._followings:
            onward = np.flatnonzero(open_columns[tables.column]).tolist()
            digits = b"0123456789" if COORDINATE in onward and tables.ids.digits else b""
            self._followings[key] = bytes(byte for byte in onward if byte not in NATIVE) + digits
        return self._followings[key]


def settled(text: bytes, following: bytes) -> int:
    """Return up to where the tokens of a text are the same, whichever of the bytes follows."""
    if not following:
        return len(text)
    start = len(text) - 1
    while start and _may_join(text[start - 1], text[start]):
        start -= 1
    if any(_may_join(text[-1], byte) for byte in following):
        return _behind_signs(text[:start]) if _is_word(text[start]) else start
    if _is_word(text[-1]):
        return len(text)
    if all(byte in b"0123456789" for byte in following) and text[-1] not in _SPACES:
        return len(text)
    return _behind_signs(text)


def _behind_signs(text: bytes) -> int:
    """Return where a text ends for certain that a word follows: several signs keep together, one may join the word."""
    several = len(text) > 1 and not _is_word(text[-2]) and text[-1] not in _SPACES and text[-2] not in _SPACES
    return len(text) if several else max(0, len(text) - 1)


def _may_join(one: int, two: int) -> bool:
    """Whether two bytes may belong to one word or be signs that keep together; other alphabets have both."""
    return one >= 0x80 or two >= 0x80 or _is_word(one) == _is_word(two)


def _is_word(byte: int) -> bool:
    return byte >= 0x80 or bytes((byte,)).isalnum()


def _forced_letters(tables: AutomatonTables) -> tuple[memoryview, memoryview, list[int]]:
    """Return the byte that must follow in each state, the state behind it, and the states where such texts begin.

    Bytes are `_NONE` where several may follow, or a place, or the end. Memory views have plain ints as items.
    """
    columns = tables.delta.shape[1]
    onward = tables.delta >= 0  # [S, C]
    only = (onward @ np.bincount(tables.column, minlength=columns) == 1) & ~tables.accepts
    byte_of = np.zeros(columns, np.int32)
    byte_of[tables.column] = np.arange(256)
    column = onward.argmax(axis=1)
    letters = np.where(only, byte_of[column], np.int32(_NONE))
    letters[np.isin(letters, NATIVE)] = _NONE
    behind = np.take_along_axis(tables.delta, column[:, None], axis=1)[:, 0].astype(np.int32)
    reached = np.union1d(tables.delta[letters == _NONE], [tables.start])
    reached = reached[reached >= 0]
    beginnings: list[int] = reached[letters[reached] != _NONE].tolist()
    return letters.data, behind.data, beginnings
