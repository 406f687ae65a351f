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


_LONGEST = 256  # bytes of forced text that are looked at from one state
_NONE = -1
_SPACES = b" \t\r\n"


class ForcedTexts:
    """The first token of each state's forced text, worked out when it is asked for: some 50 us."""

    def __init__(self, tables: AutomatonTables, pieces: Pieces, spell: Spell) -> None:
        self._tables = tables
        self._pieces = pieces
        self._spell = spell
        self._letters = _only_letters(tables)
        self._first: dict[int, int | None] = {}

    def first(self, state: int) -> int | None:
        """Return the only token that may begin the text from a state on; None where there is a choice."""
        if self._letters[state] == _NONE:
            return None
        if state not in self._first:
            self._first[state] = self._work_out(state)
        return self._first[state]

    def _work_out(self, state: int) -> int | None:
        tables, letters, found = self._tables, self._letters, bytearray()
        while (letter := letters[state]) != _NONE and len(found) < _LONGEST:
            found.append(letter)
            state = int(tables.delta[state, tables.column[letter]])
        try:
            first = self._spell(found.decode())[0]
        except (UnicodeDecodeError, PromptError):  # begins or ends inside a character; is blank
            return None
        piece = self._pieces[first]
        if not found.startswith(piece) or len(piece) > settled(bytes(found), self._following(state)):
            return None
        return first

    def _following(self, state: int) -> bytes:
        """Return the bytes that may follow; a place or the end of the answer is none of the text."""
        tables = self._tables
        onward = np.flatnonzero(tables.delta[state, tables.column] >= 0).tolist()
        digits = b"0123456789" if COORDINATE in onward and tables.ids.digits else b""
        return bytes(byte for byte in onward if byte not in NATIVE) + digits


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


def _only_letters(tables: AutomatonTables) -> list[int]:
    """Return the byte that must follow in each state; `_NONE` where several may, or a place, or the end."""
    columns = tables.delta.shape[1]
    onward = tables.delta >= 0  # [S, C]
    only = (onward @ np.bincount(tables.column, minlength=columns) == 1) & ~tables.accepts
    byte_of = np.zeros(columns, np.int64)
    byte_of[tables.column] = np.arange(256)
    letters = np.where(only, byte_of[onward.argmax(axis=1)], _NONE)
    letters[np.isin(letters, NATIVE)] = _NONE
    found: list[int] = letters.tolist()
    return found
