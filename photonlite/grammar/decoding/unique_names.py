"""Answers in JSON whose objects never repeat a name. An automaton cannot ensure this: it has no room for all names.

Beside the automaton's state stands what of the JSON is open: for each object the names that it has so far. A token that
would end a name for the second time is excluded. Few tokens can: those with one quotation mark, if the bytes before it
complete a known name, and the handful with several, which are followed byte by byte.

```
{"pear":1,"pe    tokens `ar"`, `ar":`, ... are excluded; `ach":` and `a` are not
```

An excluded token must not leave an answer without an end. One token of the budget is held back: where the budget asks
for the end of a name that the object has already, it pays for one more letter.
"""

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from photonlite.errors import GrammarError
from photonlite.grammar.automata.tables import Automaton
from photonlite.grammar.automata.trie import TokenBytes
from photonlite.grammar.decoding.typed import TypedGrammar
from photonlite.request import Allowed, Token

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPENING, _CLOSING = b"{[", b"}]"
_BRACE: Final = _OPENING[0]


class JsonPosition(NamedTuple):
    """How far some JSON has been read.

    Attributes:
        open: What is open, the innermost last: of an object the names so far, as they are spelled; of a list None.
        name: What there is of a name that is being written; None outside names.
        quoted: Whether the place is inside a name or a text.
        escaped: Whether a backslash stands right before it.
        expects_name: Whether the next quotation mark opens a name.
    """

    open: tuple[frozenset[bytes] | None, ...] = ()
    name: bytes | None = None
    quoted: bool = False
    escaped: bool = False
    expects_name: bool = False

    def after(self, letters: bytes) -> "JsonPosition | None":
        """Return the place behind some valid JSON; None if a name comes a second time."""
        parts, name, quoted, escaped, expects_name = self
        for letter in letters:
            if quoted and (escaped or letter != _QUOTE):
                escaped = not escaped and letter == _BACKSLASH
                name = None if name is None else name + bytes((letter,))
            elif quoted:
                quoted = False
                names = parts[-1] if name is not None else None
                if name is not None and names is not None:
                    if name in names:
                        return None
                    parts, name, expects_name = (*parts[:-1], names | {name}), None, False
            elif letter == _QUOTE:
                quoted, name = True, b"" if expects_name else None
            elif letter in _OPENING:
                expects_name = letter == _BRACE
                parts = (*parts, frozenset() if expects_name else None)
            elif letter in _CLOSING:
                parts, expects_name = parts[:-1], False
            elif letter == _COMMA:
                expects_name = parts[-1] is not None
        return JsonPosition(parts, name, quoted, escaped, expects_name)

    @property
    def has_names(self) -> bool:
        """Whether an open object has names that could be repeated."""
        return any(self.open)

    @property
    def is_new(self) -> bool:
        """Whether the place is inside a name that the object would not have already if it ended here."""
        return self.name is not None and self.name not in (self.open[-1] or ())


class Quotes:
    """The tokens of a vocabulary that can end a name.

    Args:
        pieces: The bytes of every token.

    Attributes:
        one: Tokens with one quotation mark that is not escaped, by what stands before it.
        several: Tokens with more quotation marks, and their bytes.
        all: All tokens with any quotation mark, and their bytes.
        singles: Tokens of one byte, and that byte.
    """

    def __init__(self, pieces: TokenBytes) -> None:
        self.all = [(index, pieces[index]) for index in pieces.holding(b'"')]
        self.several = [(index, piece) for index, piece in self.all if piece.count(b'"') > 1]
        self.one: dict[bytes, list[int]] = {}
        for index, piece in self.all:
            head, _, rest = piece.partition(b'"')
            if b'"' not in rest and not _ends_in_escape(head):
                self.one.setdefault(head, []).append(index)
        self.singles = [(index, pieces[index]) for index in pieces.of_length(1)]


# All automata of a model share their pieces.
_quotes = functools.lru_cache(maxsize=4)(Quotes)


def _ends_in_escape(text: bytes) -> bool:
    return (len(text) - len(text.rstrip(b"\\"))) % 2 == 1


class UniqueNamesGrammar(TypedGrammar):
    """An answer in JSON that an automaton accepts, and whose objects never repeat a name; arguments as for the base.

    Raises:
        GrammarError: When asked what is allowed, if the budget has no room for a name that is not repeated: an object
            would need a hundred names that differ in their last letter alone.
    """

    def __init__(self, automaton: Automaton, budget: int) -> None:
        super().__init__(automaton, budget)
        self._pieces = automaton.pieces
        self._quotes = _quotes(automaton.pieces)
        self._place = JsonPosition()
        self._allowed: Allowed | None = None

    @property
    def allowed(self) -> Allowed:
        """What may stand at the next position."""
        if self._allowed is None:
            self._allowed = self._choose()
        return self._allowed

    def _choose(self) -> Allowed:
        held_back = self._held_back(self._left)
        allowed = self._guide.allowed(self._state, held_back)
        if not self._place.has_names:
            return allowed
        left = _without(allowed, self._repeating(allowed))
        if left is not None:
            return left
        # Only the end of a repeated name would be short enough: the token that was held back pays for a letter.
        allowed, self._limited = self._guide.allowed(self._state, self._left), True
        singles = self._quotes.singles
        letters = tuple(index for index, letter in singles if allowed.permits(index) and self._makes_new(letter))
        if not letters:
            raise GrammarError("no name fits the budget that the object does not have already: raise max_tokens")
        return Allowed(letters)

    def _advance(self, token: Token) -> str | None:
        self._allowed = None
        if token.id != self._end and not token.values:
            place = self._place.after(self._pieces[token.id])
            if place is None:
                raise AssertionError(f"token {token.id} repeats a name, and was allowed")
            self._place = place
        return super()._advance(token)

    def _held_back(self, left: int) -> int:
        return left - 1 if left > self._guide.distance[self._state] else left

    def _repeating(self, allowed: Allowed) -> list[int]:
        """Return the tokens that would end a name for the second time; some of them may not be allowed anyway."""
        place, quotes = self._place, self._quotes
        suspects = quotes.all if place.name is not None and place.escaped else quotes.several
        found = [index for index, piece in suspects if allowed.permits(index) and place.after(piece) is None]
        if place.name is not None and not place.escaped:
            begun = len(place.name)
            for name in place.open[-1] or ():
                if name.startswith(place.name):
                    found += quotes.one.get(name[begun:], ())
        return found

    def _makes_new(self, letter: bytes) -> bool:
        """Whether a letter makes the name one that the object does not have."""
        place = self._place.after(letter)
        return place is not None and place.is_new


def _without(allowed: Allowed, left_out: Iterable[int]) -> Allowed | None:
    """Return what is allowed but for some ids; None if nothing is left."""
    ids = set(left_out)
    if not ids:
        return allowed
    if allowed.mask is None:
        kept = tuple(index for index in allowed.ids or () if index not in ids)
        return replace(allowed, ids=kept) if kept else None
    mask = allowed.mask.copy()
    bits = mask.view(np.uint32)
    for index in ids:
        bits[index >> 5] &= np.uint32(~(1 << (index & 31)) & 0xFFFFFFFF)
    return replace(allowed, mask=mask) if mask.any() else None
