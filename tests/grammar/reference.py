"""Regular expressions once more, in the plainest form: sets of positions, followed character by character.

A pattern is a tree of tuples, made by `PATTERNS`. Nothing here is shared with photonlite.grammar.
"""

import functools
import re
from typing import Any

from hypothesis import strategies as st

LETTERS = 'ab7.-" é€😀\\{'
DOT_LEAVES_OUT = "\n\r\x85\u2028\u2029"
RESERVED = "\x02\x03\x04\x05"

SETS = st.sets(st.sampled_from(LETTERS), min_size=1, max_size=3).map(lambda drawn: "".join(sorted(drawn)))
LEAVES = st.one_of(
    st.sampled_from(LETTERS).map(lambda letter: ("set", letter, False)),
    st.tuples(st.just("set"), SETS, st.booleans()),
    st.just(("set", DOT_LEAVES_OUT, True)),
)
COUNTS = st.sampled_from([(0, 1), (0, None), (1, None), (2, 2), (0, 3), (2, None), (0, 0)])


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.tuples(st.just("sequence"), several),
        st.tuples(st.just("either"), several),
        st.tuples(st.just("repeat"), inner, COUNTS),
    )


PATTERNS = st.recursive(LEAVES, _grown, max_leaves=6)


def text(pattern: Any) -> str:
    """Spell a pattern as users do."""
    match pattern:
        case ("set", letters, True) if letters == DOT_LEAVES_OUT:
            return "."
        case ("set", letters, negated):
            spelled = "".join(re.escape(letter) for letter in letters)
            return f"[^{spelled}]" if negated else spelled if len(letters) == 1 else f"[{spelled}]"
        case ("sequence", parts):
            return "".join(f"(?:{text(part)})" for part in parts)
        case ("either", parts):
            return "(?:" + "|".join(text(part) for part in parts) + ")"
        case ("repeat", part, (low, high)):
            return f"(?:{text(part)}){{{low},{'' if high is None else high}}}"
    raise AssertionError(pattern)


class Matcher:
    """Follows a pattern; what is left of it are lists of parts still to come (partial derivatives, Antimirov, 1996)."""

    def __init__(self, pattern: Any) -> None:
        self.begin = frozenset({(pattern,)})
        self._known: dict[str, frozenset[Any]] = {}

    def permits(self, letters: bytes) -> bool:
        """Whether some text of the pattern begins with these bytes."""
        whole, rest = cut(letters)
        if whole is None:
            return False
        left = self._after(whole)
        if not left or not rest:
            return bool(left)
        return any(onward(left, letter) for letter in candidates(rest))

    def accepts(self, letters: bytes) -> bool:
        whole, rest = cut(letters)
        return whole is not None and not rest and any(all(map(empty, parts)) for parts in self._after(whole))

    def _after(self, whole: str) -> frozenset[Any]:
        if not whole:
            return self.begin
        if whole not in self._known:
            self._known[whole] = onward(self._after(whole[:-1]), whole[-1])
        return self._known[whole]


def onward(left: frozenset[Any], letter: str) -> frozenset[Any]:
    return frozenset(after for parts in left for after in step(parts, letter))


def step(parts: tuple[Any, ...], letter: str) -> set[tuple[Any, ...]]:
    """What may come behind a character."""
    if not parts:
        return set()
    found = {(*first, *parts[1:]) for first in step_in(parts[0], letter)}
    return found | step(parts[1:], letter) if empty(parts[0]) else found


def step_in(pattern: Any, letter: str) -> set[tuple[Any, ...]]:
    match pattern:
        case ("set", letters, negated):
            return {()} if (letter in letters) != negated and letter not in RESERVED else set()
        case ("sequence", parts):
            return step(parts, letter)
        case ("either", parts):
            return {after for part in parts for after in step_in(part, letter)}
        case ("repeat", part, (low, high)) if high != 0:
            again = ("repeat", part, (max(0, low - 1), None if high is None else high - 1))
            return {(*first, again) for first in step_in(part, letter)}
    return set()


def empty(pattern: Any) -> bool:
    """Whether a pattern matches the empty text."""
    match pattern:
        case ("sequence", parts):
            return all(map(empty, parts))
        case ("either", parts):
            return any(map(empty, parts))
        case ("repeat", part, (low, _)):
            return low == 0 or empty(part)
    return False


def cut(letters: bytes) -> tuple[str | None, bytes]:
    """Part bytes into whole characters and the beginning of one; None where they are no UTF-8."""
    for length in range(4):
        end = len(letters) - length
        if end < 0:
            break
        try:
            whole = letters[:end].decode()
        except UnicodeDecodeError:
            continue
        rest = letters[end:]
        return (whole, rest) if not rest or candidates(rest) else (None, b"")
    return None, b""


@functools.cache
def candidates(beginning: bytes) -> list[str]:
    """Some characters that begin with these bytes: all that sets name, and enough others that one is in any set."""
    length = 2 if beginning[0] >= 0xC2 and beginning[0] < 0xE0 else 3 if beginning[0] < 0xF0 else 4
    if not 0xC2 <= beginning[0] <= 0xF4 or len(beginning) >= length:
        return []
    found = [letter for letter in (*LETTERS, *DOT_LEAVES_OUT) if letter.encode().startswith(beginning)]
    missing = length - len(beginning)
    for second in range(0x80, 0xC0):
        for last in (0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x9F, 0xBF):
            try:
                found.append((beginning + bytes([second, 0x80, last][:missing] if missing > 1 else [second])).decode())
            except UnicodeDecodeError:
                continue
    return found
