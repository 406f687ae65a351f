r"""Sets of characters in patterns.

Dialects disagree on what `\d`, `\w`, `\s` and `.` stand for beyond ASCII. Here they stand for what all dialects agree
on, so that an answer also matches by the rules of Python and of ECMA-262. A disputed character is neither in `\d` nor
in `\D`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from photonlite.errors import GrammarError
from photonlite.grammar.automata.alphabet import RESERVED
from photonlite.grammar.regex.fragment import Fragment, code, either, literal

_BYTES = 8  # size of a set with more than ASCII: its UTF-8 takes several states
_ASCII = frozenset(range(128))


@dataclass(frozen=True)
class Item:
    text: str  # as it stands inside brackets
    ascii: frozenset[int] | None  # its ASCII characters; None where they are not known
    single: int | None = None  # the character, where it is just one
    wide: bool = True  # whether it may hold other characters than ASCII


@dataclass(frozen=True)
class Characters:
    """A set of characters: those of the items, or all others."""

    items: tuple[Item, ...]
    negated: bool = False

    @property
    def ascii(self) -> frozenset[int]:
        """The ASCII characters that it surely holds."""
        known = [item.ascii for item in self.items]
        if self.negated:
            return frozenset() if None in known else _ASCII.difference(*(each or () for each in known))
        return frozenset().union(*(each or () for each in known))

    @property
    def single(self) -> int | None:
        return self.items[0].single if len(self.items) == 1 and not self.negated else None

    def without(self, codes: Iterable[int]) -> Fragment:
        """Match a character of the set, but none of these ASCII characters."""
        left_out = sorted(codes)
        inner = f"[{'^' if self.negated else ''}{''.join(item.text for item in self.items)}]"
        size = _BYTES if self.negated or any(item.wide for item in self.items) else 1
        return Fragment(f"[{inner}--[{''.join(map(code, left_out))}]]" if left_out else inner, size)


def span(low: int, high: int) -> Item:
    single = low if low == high else None
    text = code(low) if low == high else f"{code(low)}-{code(high)}"
    return Item(text, frozenset(range(low, min(high, 127) + 1)), single, high > 127)


def _named(text: str, *spans: tuple[int, int], wide: bool = True) -> Item:
    return Item(text, frozenset().union(*(range(low, high + 1) for low, high in spans)), wide=wide)


_DIGITS, _WORDS, _SPACES = [(48, 57)], [(48, 57), (65, 90), (95, 95), (97, 122)], [(9, 13), (32, 32)]
_NARROW = {
    "d": _named("0-9", *_DIGITS, wide=False),
    "w": _named("0-9A-Za-z_", *_WORDS, wide=False),
    "s": _named(r"\t-\r\x{20}", *_SPACES, wide=False),
}
# What at least one dialect takes for a digit, a letter or a space.
_WIDE = {
    "d": _named(r"\p{N}", *_DIGITS),
    "w": _named(r"\w\p{N}\p{M}", *_WORDS),
    "s": _named(r"\s\x{1c}-\x{1f}\x{180e}\x{feff}", *_SPACES, (28, 31)),
}


def shorthand(letter: str, negated: bool) -> Item:
    r"""Return what `\d`, `\D`, `\w`, ... stands for; `negated` is for a set of the other characters."""
    kind = letter.lower()
    if letter.islower():
        return _WIDE[kind] if negated else _NARROW[kind]
    others = _NARROW[kind] if negated else _WIDE[kind]
    return Item(f"[^{others.text}]", _ASCII - (others.ascii or frozenset()))


ANY = Characters((span(0, 0x10FFFF),))
DOT = Characters(tuple(span(each, each) for each in (10, 13, 0x85, 0x2028, 0x2029)), negated=True)


def in_text(characters: Characters) -> Fragment:
    """Match a character of a set in plain text, which holds no reserved letters."""
    if characters.single in RESERVED:
        raise GrammarError(f"the pattern spells the control character 0x{characters.single:02x}: no answer holds it")
    return characters.without(set(RESERVED) & characters.ascii if _known(characters) else RESERVED)


_ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
ESCAPED = {  # how JSON spells the characters that need an escape, one way each
    number: f"\\{_ESCAPES[number]}" if number in _ESCAPES else f"\\u{number:04x}" for number in (*range(32), 34, 92)
}
_EVERY_ESCAPE = Fragment(r'\\(?:["\\bfnrt]|u00(?:0[0-7bef]|1[0-9a-f]))', 8)


def in_json(characters: Characters) -> Fragment:
    """Match a character of a set inside a JSON string."""
    special = sorted(characters.ascii & ESCAPED.keys())
    spelled = [literal(ESCAPED[number]) for number in special] if len(special) < len(ESCAPED) else [_EVERY_ESCAPE]
    if characters.single is not None and spelled:
        return spelled[0]
    return either([characters.without(special if _known(characters) else ESCAPED), *spelled])


def _known(characters: Characters) -> bool:
    return all(item.ascii is not None for item in characters.items)
