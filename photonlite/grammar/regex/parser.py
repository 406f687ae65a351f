r"""Parses users' regular expressions.

The dialect is what Python's `re` and ECMA-262 share, with sets of Unicode categories (`\p{L}`): sets, groups,
alternatives, repetitions, and `^` and `$` at the ends. What no finite automaton can do, or what dialects understand
differently, is refused with its position.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import NoReturn

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.regex.characters import DOT, Characters, Item, shorthand, span

MAX_LENGTH = 10_000  # characters of a pattern
MAX_GROUPS = 32  # groups inside one another
MAX_COUNT = 10_000  # the largest number of a repetition

_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "0": 0}
_CODE = re.compile(
    r"x\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2})|u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})"
)
_CATEGORY = re.compile(r"[pP](?:([A-Z])|\{\^?([A-Za-z][A-Za-z0-9_=]{0,60})\})")
_COUNT = re.compile(r"\{([0-9]+)(,?)([0-9]*)\}")
_FLAGS = re.compile(r"\(\?[aiLmsux-]+[:)]")
_OPENING = re.compile(r"\(\?:|\(\?P?<[A-Za-z_][A-Za-z0-9_]*>|\((?!\?)")


@dataclass(frozen=True)
class Anchor:
    kind: str  # "^" or "$"


@dataclass(frozen=True)
class Concat:
    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class Alternation:
    branches: "tuple[Node, ...]"


@dataclass(frozen=True)
class Repetition:
    part: "Node"
    low: int
    high: int | None


Node = Characters | Anchor | Concat | Alternation | Repetition


def parse_regex(pattern: str) -> Node:
    """Parse a pattern; raises a GrammarError where it is malformed, not supported or over a limit."""
    if not isinstance(pattern, str):
        raise GrammarError(f"a pattern is text, not of type {type(pattern).__name__}")
    if len(pattern) > MAX_LENGTH:
        raise GrammarTooLargeError(f"the pattern has {len(pattern)} characters, over the limit of {MAX_LENGTH}")
    reader = _Reader(pattern)
    node = reader.either()
    if reader.rest:
        reader.refuse("this ) closes no group")
    return node


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    @property
    def rest(self) -> bool:
        return self._at < len(self._pattern)

    def refuse(self, what: str) -> NoReturn:
        place = f"character {self._at} ({self._pattern[self._at : self._at + 20]!r})" if self.rest else "its end"
        raise GrammarError(f"the pattern is not accepted at {place}: {what}")

    def _next(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _take(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self._pattern, self._at)
        self._at = found.end() if found else self._at
        return found

    def either(self) -> Node:
        branches = [self._sequence()]
        while self._next("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Alternation(tuple(branches))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self.rest and self._pattern[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def _repeated(self, part: Node) -> Node:
        begin = self._at
        counts = self._counts()
        if counts is None:
            return part
        if isinstance(part, Anchor):
            self._at = begin
            self.refuse("^ and $ cannot be repeated")
        self._next("?")  # lazy or greedy, the texts are the same
        if self.rest and (self._pattern[self._at] in "*+?" or _COUNT.match(self._pattern, self._at)):
            self.refuse("to repeat a repetition, put a group around it (possessive ones are not supported)")
        return Repetition(part, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._next(sign):
                return counts
        if re.compile(r"\{,[0-9]*\}").match(self._pattern, self._at):
            self.refuse("a repetition needs a lower bound, such as {0,3}")
        found = self._take(_COUNT)
        if found is None:
            return None
        numbers = [int(each) if len(each) < 9 else MAX_COUNT + 1 for each in found.group(1, 3) if each]
        if max(numbers) > MAX_COUNT:
            raise GrammarTooLargeError(f"the pattern repeats something {found.group()}, over the limit of {MAX_COUNT}")
        if len(numbers) == 2 and numbers[0] > numbers[1]:
            self._at = found.start()
            self.refuse("the bounds of this repetition are in the wrong order")
        if not found.group(2):
            return numbers[0], numbers[0]
        return numbers[0], numbers[1] if len(numbers) == 2 else None

    def _atom(self) -> Node:
        letter = self._pattern[self._at]
        if letter == "(":
            return self._group()
        if letter == "[":
            return self._set()
        if letter in "*+?" or _COUNT.match(self._pattern, self._at):
            self.refuse("there is nothing to repeat")
        if letter == "\\":
            return self._escape()
        self._at += 1
        if letter in "^$":
            return Anchor(letter)
        return DOT if letter == "." else Characters((self._literal(letter),))

    def _literal(self, letter: str) -> Item:
        number = ord(letter)
        if unicodedata.category(letter) == "Cs":
            self.refuse("a surrogate is half a character and no text")
        return span(number, number)

    def _group(self) -> Node:
        if not self._take(_OPENING):
            if _FLAGS.match(self._pattern, self._at):
                self.refuse("flags are not supported: write out both cases, such as [aA]")
            self.refuse("this kind of group is not supported (look-around, conditions)")
        self._depth += 1
        if self._depth > MAX_GROUPS:
            raise GrammarTooLargeError(f"the pattern has groups more than {MAX_GROUPS} deep: make it flatter")
        node = self.either()
        if not self._next(")"):
            self.refuse("a group is not closed: add its )")
        self._depth -= 1
        return node

    def _escape(self) -> Node:
        for anchor, spellings in (("^", (r"\A",)), ("$", (r"\Z", r"\z"))):
            if any(self._next(each) for each in spellings):
                return Anchor(anchor)
        return Characters((self._escaped(negated=False),))

    def _escaped(self, *, negated: bool, inside: bool = False) -> Item:
        self._at += 1
        letter = self._pattern[self._at : self._at + 1]
        if found := self._take(_CODE):
            number = int(next(group for group in found.groups() if group), 16)
            if number > 0x10FFFF:
                self.refuse("the code before this belongs to no character")
            return self._literal(chr(number))
        if found := self._take(_CATEGORY):
            return Item("\\" + found.group(), None)
        self._at += 1
        if letter and letter in "dDwWsS":
            return shorthand(letter, negated)
        if letter in _CONTROLS and not (letter == "0" and self._pattern[self._at : self._at + 1].isdigit()):
            return span(_CONTROLS[letter], _CONTROLS[letter])
        if inside and letter == "b":
            return span(8, 8)
        if not letter or letter.isalnum():
            self._at -= 2
            self.refuse("this escape is not supported (nor are boundaries and back-references)")
        return self._literal(letter)

    def _set(self) -> Characters:
        begin = self._at
        self._at += 1
        negated = self._next("^")
        items: list[Item] = []
        while not self._next("]"):
            if not self.rest:
                self._at = begin
                self.refuse("this set is not closed: add its ]")
            items.append(self._range(negated))
        if not items:
            self._at = begin
            self.refuse(r"this set is empty (write a ] in a set as \])")
        return Characters(tuple(items), negated)

    def _range(self, negated: bool) -> Item:
        begin, low = self._at, self._member(negated)
        if self._pattern[self._at : self._at + 1] != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            return low
        self._at += 1
        high = self._member(negated)
        if low.single is None or high.single is None or low.single > high.single:
            self._at = begin
            self.refuse("a range needs two characters in order")
        return span(low.single, high.single)

    def _member(self, negated: bool) -> Item:
        letter = self._pattern[self._at]
        if letter == "\\":
            return self._escaped(negated=negated, inside=True)
        if self._pattern.startswith(("[:", "[.", "[="), self._at):
            self.refuse(r"named sets are not supported (write a [ in a set as \[)")
        self._at += 1
        return self._literal(letter)
