"""JSON as patterns: compact, with a space allowed behind each comma and colon, and every text spelled one way."""

import json
import math
from collections.abc import Sequence
from typing import Any

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.json_schema.numbers import UNBOUNDED
from photonlite.grammar.regex.characters import ANY, Characters, in_json
from photonlite.grammar.regex.fragment import EMPTY, Fragment, either, literal, optional, repeated, sequence
from photonlite.grammar.regex.parser import Concat, Node, Repetition, parse_regex
from photonlite.grammar.regex.rewrite import Lengths, fragment, lengths, whole

MAX_NESTING = 32  # objects and lists inside one another

_SPACE = optional(literal(" "))
COMMA = sequence(literal(","), _SPACE)
COLON = sequence(literal(":"), _SPACE)


def string(low: int = 0, high: int | None = None) -> Fragment:
    return bracketed('"', repeated(in_json(ANY), low, high), '"')


def matching(pattern: str, wanted: Lengths, *, search: bool) -> Fragment | None:
    """Match a string by a user's pattern; None where it cannot be held to the wanted lengths."""
    node = _held(whole(parse_regex(pattern), search=search), wanted)
    has = lengths(node)
    if has.low < wanted.low or (wanted.high is not None and (has.high is None or has.high > wanted.high)):
        return None
    return bracketed('"', fragment(node, in_json), '"')


def _held(node: Node, wanted: Lengths) -> Node:
    """Hold a pattern that repeats one set of characters, such as `[a-z]+`, to some lengths."""
    part = node.parts[0] if isinstance(node, Concat) and len(node.parts) == 1 else node
    if not isinstance(part, Repetition) or not isinstance(part.part, Characters):
        return node
    low = max(part.low, wanted.low)
    high = min((each for each in (part.high, wanted.high) if each is not None), default=None)
    return node if high is not None and high < low else Repetition(part.part, low, high)


def value(given: Any, depth: int = 0) -> Fragment:
    """Match one value of JSON; raises a GrammarError for anything else."""
    if depth > MAX_NESTING:
        raise GrammarTooLargeError(f"a value is nested more than {MAX_NESTING} deep: make it flatter")
    if isinstance(given, str):
        try:
            given.encode()
        except UnicodeEncodeError as cause:
            raise GrammarError(f"a text is not valid Unicode at character {cause.start}: remove that one") from cause
        return literal(json.dumps(given, ensure_ascii=False))
    if given is None or isinstance(given, bool | int) or (isinstance(given, float) and math.isfinite(given)):
        try:
            return literal(json.dumps(given))
        except ValueError as cause:  # Python writes no integer of more than some thousand digits
            raise GrammarError(f"a number cannot be written ({cause}): give a smaller one") from cause
    if isinstance(given, list | tuple):
        return bracketed("[", _separated([value(each, depth + 1) for each in given]), "]")
    if isinstance(given, dict) and all(isinstance(name, str) for name in given):
        return bracketed("{", _separated([entry(name, value(each, depth + 1)) for name, each in given.items()]), "}")
    raise GrammarError(
        f"{given!r:.100} is not a JSON value: give null, a boolean, a number, a text, a list or an object"
    )


def entry(name: str, inner: Fragment) -> Fragment:
    return sequence(value(name), COLON, inner)


def _separated(parts: Sequence[Fragment]) -> Fragment:
    return sequence(*(sequence(COMMA, part) if place else part for place, part in enumerate(parts)))


def bracketed(opening: str, inner: Fragment, closing: str) -> Fragment:
    return sequence(literal(opening), inner, literal(closing))


def entries(given: Sequence[tuple[Fragment, bool]]) -> Fragment:
    """Match entries in their order, with commas between them; each comes with whether it is required."""
    first = next((place for place, (_, required) in enumerate(given) if required), None)
    if first is None:
        some = some_of([part for part, _ in given])
        return EMPTY if some is None else optional(some)
    # A required entry fixes the commas: behind the entries before it, and before those behind it.
    before = [optional(sequence(part, COMMA)) for part, _ in given[:first]]
    behind = [(sequence(COMMA, part), required) for part, required in given[first + 1 :]]
    return sequence(*before, given[first][0], *(part if required else optional(part) for part, required in behind))


def some_of(parts: Sequence[Fragment]) -> Fragment | None:
    """Match at least one of the parts, in their order; by halves, the pattern grows as n to the power of 1.6."""
    if len(parts) < 2:
        return parts[0] if parts else None
    left, right = some_of(parts[: len(parts) // 2]), some_of(parts[len(parts) // 2 :])
    assert left is not None
    assert right is not None
    return either([sequence(left, optional(sequence(COMMA, right))), right])


def items(prefix: Sequence[Fragment], item: Fragment | None, low: int, high: int | None) -> Fragment:
    """Match a list of `low` to `high` items: those of `prefix` first, then any number of `item`, if there is one."""
    if high is not None:
        prefix = prefix[:high]
    known = len(prefix)
    if item is None:
        rest = EMPTY
    elif known:
        rest = repeated(sequence(COMMA, item), max(0, low - known), None if high is None else high - known)
    elif high == 0:
        return bracketed("[", EMPTY, "]")
    else:
        more = repeated(sequence(COMMA, item), max(0, low - 1), None if high is None else high - 1)
        rest = sequence(item, more)
    for place in reversed(range(1, known)):
        one = sequence(COMMA, prefix[place], rest)
        rest = one if place < low else optional(one)
    inner = sequence(*prefix[:1], rest)
    return bracketed("[", inner if low else optional(inner), "]")


def anything(depth: int) -> Fragment:
    """Match any value with lists and objects at most so deep."""
    scalars = [string(), UNBOUNDED, *(literal(each) for each in ("true", "false", "null"))]
    if depth == 0:
        return either(scalars)
    inner = anything(depth - 1)
    return either([*scalars, items([], inner, 0, None), mapping(inner)])


def mapping(inner: Fragment) -> Fragment:
    """Match an object with any names; `decoding.typed` ensures that none comes twice."""
    one = sequence(string(), COLON, inner)
    return bracketed("{", optional(sequence(one, repeated(sequence(COMMA, one), 0))), "}")
