"""Users' regular expressions, written down again for outlines-core."""

from collections.abc import Callable
from dataclasses import dataclass

from photonlite.errors import GrammarError
from photonlite.grammar.regex.characters import ANY, Characters, in_text
from photonlite.grammar.regex.fragment import Fragment, either, repeated, sequence
from photonlite.grammar.regex.parser import Alternation, Anchor, Concat, Node, Repetition, parse_regex

_ANYTHING = Repetition(ANY, 0, None)


@dataclass(frozen=True, slots=True)
class Lengths:
    low: int
    high: int | None  # None: no limit


def rewritten(pattern: str) -> str:
    """Write a user's pattern for outlines-core; it matches whole answers, and no letter of `alphabet.RESERVED`."""
    return fragment(whole(parse_regex(pattern)), in_text).text


def whole(node: Node, *, search: bool = False) -> Node:
    """Remove `^` and `$` from the ends of all alternatives; a `search`, as in JSON Schema, may match anywhere."""
    if isinstance(node, Alternation):
        return Alternation(tuple(whole(each, search=search) for each in node.branches))
    parts = list(node.parts) if isinstance(node, Concat) else [node]
    if len(parts) == 1 and isinstance(parts[0], Alternation | Concat):
        return whole(parts[0], search=search)
    begins = ends = False
    while parts and parts[0] == Anchor("^"):
        begins = bool(parts.pop(0))
    while parts and parts[-1] == Anchor("$"):
        ends = bool(parts.pop())
    if any(map(_anchored, parts)):
        raise GrammarError("the pattern has ^ or $ in the middle: they may stand at the ends of alternatives only")
    before, behind = (() if not search or found else (_ANYTHING,) for found in (begins, ends))
    return Concat((*before, *parts, *behind))


def _anchored(node: Node) -> bool:
    match node:
        case Anchor():
            return True
        case Alternation(below) | Concat(below):
            return any(map(_anchored, below))
        case Repetition(part):
            return _anchored(part)
    return False


def fragment(node: Node, spell: Callable[[Characters], Fragment]) -> Fragment:
    """Write a pattern without anchors; `spell` writes its sets of characters."""
    match node:
        case Characters():
            return spell(node)
        case Concat(parts):
            return sequence(*(fragment(part, spell) for part in parts))
        case Alternation(branches):
            return either(fragment(branch, spell) for branch in branches)
        case Repetition(part, low, high):
            return repeated(fragment(part, spell), low, high)
        case Anchor():
            raise AssertionError("`whole` leaves no anchors")


def lengths(node: Node) -> Lengths:
    """Return how many characters a pattern without anchors matches."""
    match node:
        case Concat(parts):
            each = [lengths(part) for part in parts]
            return Lengths(sum(one.low for one in each), _total([one.high for one in each]))
        case Alternation(branches):
            each = [lengths(branch) for branch in branches]
            highs = [one.high for one in each if one.high is not None]
            return Lengths(min(one.low for one in each), max(highs) if len(highs) == len(each) else None)
        case Repetition(part, low, high):
            one = lengths(part)
            if one.high == 0 or high == 0:
                return Lengths(0, 0)
            return Lengths(low * one.low, None if high is None or one.high is None else high * one.high)
    return Lengths(1, 1)


def _total(highs: list[int | None]) -> int | None:
    known = [high for high in highs if high is not None]
    return sum(known) if len(known) == len(highs) else None
