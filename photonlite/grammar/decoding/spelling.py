"""Texts that an automaton leaves no choice about, in the tokens in which the tokenizer writes them.

```
state ── { ── " ── b ── o ── x ── " ── : ──┬── space ...       forced     {"box":
                                           └── "               settled    {"box        `":` may go on
                                                               tokens     {"  box
```

A vocabulary has many spellings of a text, of which models are trained to write one. Where the text is forced, that one
alone is allowed: nothing is left to sample, and its tokens can be appended at once.

Tokens depend on the text around them, since a tokenizer splits text into words, numbers and punctuation before it
looks for tokens: in `!"}` the quotation mark may belong to another token than in `"}`. So tokens are kept by state and
by the text back to the end of the last word. A token is settled if it ends before the last piece of the forced text, or
if nothing can follow that would belong to this piece; a single sign or a space may belong to the word after it.
"""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from photonlite.errors import PromptError
from photonlite.grammar.automata.alphabet import COORDINATE, NATIVE, BoolArray
from photonlite.grammar.automata.tables import AutomatonTables

Spell = Callable[[str], Sequence[int]]
"""Encodes text as the model writes it; PromptError for text that it does not encode."""


class Pieces(Protocol):
    """The bytes of each token, and which pairs of bytes are in one token: [256, 256]."""

    def __getitem__(self, index: int, /) -> bytes: ...
    @property
    def pairs(self) -> BoolArray: ...


_LONGEST = 256  # bytes of forced text that are encoded at a time
_AHEAD = 2048  # encodings that are made at once: some 0.1 s at most
_KEPT = 2**12  # tokens besides those of each state: free text decides what stands before forced text
_NONE = -1
_SPACES = b" \t\r\n"
# Up to the end of the last word or place.
_WORD = re.compile(rb"(?s).*(?:[0-9A-Za-z\x80-\xff](?=[^0-9A-Za-z\x80-\xff])|[\x04\x05])")

REACH = 48
"""Bytes before a forced text that its tokens may depend on; after a longer piece nothing is forced."""


class ForcedTexts:
    """The first token of each state's forced text, by the text before it.

    Texts at the start of an answer, and after a choice for one text before it, are encoded at once, with at most
    `_AHEAD` encodings; others when they are first asked for. What is allowed does not depend on earlier answers.
    """

    def __init__(self, tables: AutomatonTables, pieces: Pieces, spell: Spell) -> None:
        self._tables = tables
        self._pieces = pieces
        self._spell = spell
        self._pairs = pieces.pairs.tobytes()
        self._letters, self._onward, beginnings = _forced_letters(tables)
        self._first: dict[tuple[int, bytes], int | None] = {}
        left = _AHEAD
        for state, before in beginnings:
            while left and (key := self._key(state, before)) is not None and key not in self._first:
                left -= 1
                state, before = self._encode(*key)

    def first(self, state: int, before: bytes) -> int | None:
        """Return the only token that may begin the text from a state on; None where there is a choice.

        `before` is the text of the answer up to the state, at least its last `REACH` bytes.
        """
        key = self._key(state, before)
        if key is None:
            return None
        if key not in self._first:
            self._encode(*key)
        return self._first[key]

    def _key(self, state: int, before: bytes) -> tuple[int, bytes] | None:
        """Return a state and the text before it that its token depends on; None where nothing is forced."""
        if (letter := self._letters[state]) == _NONE:
            return None
        text = before[-REACH:] + bytes((letter,))
        at = len(text)
        while (word := _WORD.match(text, 0, at)) is not None:
            at = word.end()
            if self._ends(text, at):
                return state, text[at:-1]
        return (state, text[:-1]) if len(text) <= REACH else None

    def _ends(self, text: bytes, at: int) -> bool:
        """Whether the word or the place that `_WORD` finds before a position ends there in the tokens, too."""
        one, two = text[at - 1], text[at]
        ends = one < 0x80 or text[max(0, at - 4) : at].decode(errors="ignore")[-1:].isalnum()
        return ends and not self._pairs[256 * one + two]

    def _joined(self, one: int, two: int) -> bool:
        return may_join(one, two) or (_is_word(one) and self._pairs[256 * one + two] != 0)

    def _encode(self, state: int, before: bytes) -> tuple[int, bytes]:
        """Encode the text from a state on, and keep its settled tokens; returns the state and the text after them."""
        text, states = self._forced_text(state, before)
        skipped, whole = len(before), text.decode(errors="ignore")  # it may end inside a character
        try:
            ids = self._spell(whole)
        except PromptError:  # it is blank, or holds what is kept for control
            ids = ()
        if len(self._first) > _KEPT + len(self._letters):
            self._first.clear()
        self._first[state, before] = None  # no token begins there if the tokens before are not the tokenizer's own
        length = len(whole.encode())
        following = self._following(states[max(0, length - skipped)])
        at, end = 0, settled(text[:length], following, self._joined) if ids else 0
        for index in ids:
            piece = self._pieces[index]
            if not piece or at + len(piece) > end or not text.startswith(piece, at):
                break
            if at >= skipped and (key := self._key(states[at - skipped], text[:at])) is not None:
                self._first[key] = index
            at += len(piece)
        at = max(at, skipped)
        if self._letters[states[-1]] == _NONE and (rest := self._key(states[at - skipped], text[:at])) is not None:
            self._first.setdefault(rest, None)
        return states[at - skipped], text[:at]

    def _forced_text(self, state: int, before: bytes) -> tuple[bytes, list[int]]:
        """Return `before` and the text forced after it, up to what is known, and the state after each of its bytes."""
        text, states = bytearray(before), [state]
        while (letter := self._letters[state]) != _NONE and len(states) <= _LONGEST:
            text.append(letter)
            states.append(state := self._onward[state])
            if (state, b"") in self._first and self._key(state, bytes(text)) == (state, b""):
                break
        return bytes(text), states

    def _following(self, state: int) -> bytes:
        """Return the bytes that may follow; a place or the end of the answer is none of the text."""
        tables = self._tables
        onward = np.flatnonzero(tables.delta[state, tables.column] >= 0).tolist()
        digits = b"0123456789" if COORDINATE in onward and tables.ids.digits else b""
        return bytes(byte for byte in onward if byte not in NATIVE) + digits


def may_join(one: int, two: int) -> bool:
    """Whether two bytes may belong to one word or be signs that keep together; other alphabets have both."""
    return one >= 0x80 or two >= 0x80 or _is_word(one) == _is_word(two)


def _is_word(byte: int) -> bool:
    return byte >= 0x80 or bytes((byte,)).isalnum()


def settled(text: bytes, following: bytes, joined: Callable[[int, int], bool] = may_join) -> int:
    """Return up to where the tokens of a text are the same, whichever of the bytes follows."""
    if not following:
        return len(text)
    start = len(text) - 1
    while start and joined(text[start - 1], text[start]):
        start -= 1
    if any(joined(text[-1], byte) for byte in following):
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


def _forced_letters(tables: AutomatonTables) -> tuple[memoryview, memoryview, list[tuple[int, bytes]]]:
    """Return the byte that must follow in each state, the state behind it, and where such texts begin.

    Bytes are `_NONE` where several may follow, or a place, or the end. Memory views have plain ints as items. Each
    beginning comes with a byte that may stand before it, of a word if possible; none at the start.
    """
    columns = tables.delta.shape[1]
    onward = tables.delta >= 0  # [S, C]
    only = (onward @ np.bincount(tables.column, minlength=columns) == 1) & ~tables.accepts
    byte_of = np.zeros(columns, np.int32)
    likely_last = sorted(range(256), key=lambda byte: (byte < 0x80, _is_word(byte)))
    byte_of[tables.column[likely_last]] = likely_last
    column = onward.argmax(axis=1)
    letters = np.where(only, byte_of[column], np.int32(_NONE))
    letters[np.isin(letters, NATIVE)] = _NONE
    behind = np.take_along_axis(tables.delta, column[:, None], axis=1)[:, 0].astype(np.int32)
    reached, places = np.unique(tables.delta[letters == _NONE], return_index=True)
    after = zip(reached.tolist(), byte_of[places % columns].tolist(), strict=True)
    beginnings = [(state, bytes((byte,))) for state, byte in after if state >= 0 and byte < 0x80]
    return letters.data, behind.data, [(tables.start, b""), *beginnings]
