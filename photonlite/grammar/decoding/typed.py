"""Answers that an automaton accepts, complete before their budget ends.

An automaton has no states for all names, so `UniqueNamesGrammar` keeps the names of each open JSON object, and excludes
tokens that would end a name for the second time: those with one quotation mark, if the bytes before it complete a known
name, and the few with several, which are followed byte by byte.

```
{"pear":1,"pe    tokens `ar"`, `ar":`, ... are excluded; `ach":` and `a` are not
```

One token of the budget is held back: where the budget would force a repeated name, it pays for one more letter.
"""

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from photonlite.errors import GrammarError
from photonlite.grammar.decoding.automaton import Automaton, TokenBytes
from photonlite.grammar.decoding.grammars import BudgetedGrammar
from photonlite.grammar.decoding.numbers import NumberAutomaton
from photonlite.grammar.decoding.spelling import REACH
from photonlite.request import Allowed, Token

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPENING, _CLOSING = b"{[", b"}]"
_BRACE: Final = _OPENING[0]


class TypedGrammar(BudgetedGrammar):
    """An answer that an automaton accepts, complete before its budget ends; no end id where nothing may follow."""

    def __init__(self, automaton: Automaton | NumberAutomaton, budget: int) -> None:
        super().__init__(budget)
        if budget < automaton.shortest:
            raise GrammarError(
                f"the shortest answer takes {automaton.shortest} tokens, and {budget} are left for it: "
                f"raise max_tokens, or ask for less"
            )
        self._automaton = automaton
        self._end = automaton.tables.ids.end
        self._state = automaton.start
        self._before = b""  # the end of the text so far
        self._limited = False
        if automaton.is_complete(self._state):
            self._finish_reason = "stop"  # only the empty text is an answer

    @property
    def allowed(self) -> Allowed:
        return self._automaton.allowed(self._state, self._left, self._before)

    @property
    def run(self) -> tuple[int, ...]:
        return self._walk()

    def _held_back(self, left: int) -> int:
        """Return how many of the tokens left may be used."""
        return left

    def _advance(self, token: Token) -> str | None:
        left = self._held_back(self._left + 1)
        self._limited = self._limited or self._automaton.limits(self._state, left, self._before)
        if token.id != self._end:
            self._state = self._automaton.after(self._state, token.id)
            self._before = (self._before + self._automaton.letters(token.id))[-REACH:]
            if not self._automaton.is_complete(self._state):
                return None
        return "length" if self._limited else "stop"


class JsonPosition(NamedTuple):
    """A position in a JSON text."""

    open: tuple[frozenset[bytes] | None, ...] = ()  # innermost last: names so far of an object, None for a list
    name: bytes | None = None  # the part so far of a name; None outside names
    quoted: bool = False  # inside a name or a text
    escaped: bool = False  # behind a backslash
    expects_name: bool = False  # the next quotation mark opens a name

    def after(self, letters: bytes) -> "JsonPosition | None":
        """Return the position behind some more valid JSON; None if a name comes a second time."""
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
    def has_new_name(self) -> bool:
        """Whether the name, if it ended here, would be new to its object."""
        return self.name is not None and self.name not in (self.open[-1] or ())


class _Quotes:
    """The tokens that can end a name: with one quotation mark, by the bytes before it, and with several."""

    def __init__(self, pieces: TokenBytes) -> None:
        self.all = [(index, pieces[index]) for index in pieces.holding(b'"')]
        self.several = [(index, piece) for index, piece in self.all if piece.count(b'"') > 1]
        self.one: dict[bytes, list[int]] = {}
        for index, piece in self.all:
            head, _, rest = piece.partition(b'"')
            if b'"' not in rest and not _ends_in_escape(head):
                self.one.setdefault(head, []).append(index)
        self.singles = [(index, pieces[index]) for index in pieces.of_length(1)]


# All automata of a model share their token bytes.
_quotes = functools.lru_cache(maxsize=4)(_Quotes)


def _ends_in_escape(text: bytes) -> bool:
    return (len(text) - len(text.rstrip(b"\\"))) % 2 == 1


class UniqueNamesGrammar(TypedGrammar):
    """JSON whose objects never repeat a name, see the module; GrammarError if the budget has no room for a new one."""

    def __init__(self, automaton: Automaton | NumberAutomaton, budget: int) -> None:
        super().__init__(automaton, budget)
        self._pieces = automaton.pieces
        self._quotes = _quotes(automaton.pieces)
        self._position = JsonPosition()
        self._allowed: Allowed | None = None

    @property
    def allowed(self) -> Allowed:
        if self._allowed is None:
            self._allowed = self._choose()
        return self._allowed

    def _choose(self) -> Allowed:
        held_back = self._held_back(self._left)
        allowed = self._automaton.allowed(self._state, held_back, self._before)
        if not any(self._position.open):  # there are no names to repeat
            return allowed
        left = _without(allowed, self._repeating(allowed))
        if left is not None:
            return left
        # The budget forces the end of a repeated name: use the token held back for one more letter.
        allowed, self._limited = self._automaton.allowed(self._state, self._left, self._before), True
        singles = self._quotes.singles
        letters = tuple(index for index, letter in singles if allowed.permits(index) and self._makes_new(letter))
        if not letters:
            raise GrammarError("no name fits the budget that the object does not have already: raise max_tokens")
        return Allowed(letters)

    def _advance(self, token: Token) -> str | None:
        self._allowed = None
        if token.id != self._end and not token.values:
            position = self._position.after(self._pieces[token.id])
            if position is None:
                raise AssertionError(f"token {token.id} repeats a name, and was allowed")
            self._position = position
        return super()._advance(token)

    def _held_back(self, left: int) -> int:
        return left - 1 if left > self._automaton.distance(self._state) else left

    def _repeating(self, allowed: Allowed) -> list[int]:
        """Return the tokens that would end a name for the second time, and perhaps some that are not allowed anyway."""
        position, quotes = self._position, self._quotes
        suspects = quotes.all if position.name is not None and position.escaped else quotes.several
        found = [index for index, piece in suspects if allowed.permits(index) and position.after(piece) is None]
        if position.name is not None and not position.escaped:
            begun = len(position.name)
            for name in position.open[-1] or ():
                if name.startswith(position.name):
                    found += quotes.one.get(name[begun:], ())
        return found

    def _makes_new(self, letter: bytes) -> bool:
        position = self._position.after(letter)
        return position is not None and position.has_new_name


def _without(allowed: Allowed, left_out: Iterable[int]) -> Allowed | None:
    """Return `allowed` without some ids; None if nothing is left."""
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
