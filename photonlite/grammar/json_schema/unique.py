"""Lists whose items are all different, of items that have few values.

An automaton remembers what a list holds by where it is, so each order takes states of its own. Short lists of few
values come in any order. Others come in the order of their values, which is right for a set, and takes few states.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from photonlite.errors import GrammarTooLargeError
from photonlite.grammar.json_schema.disjoint import value_key
from photonlite.grammar.json_schema.keywords import Schema, decimal_of, named, refuse, resolved, sequence_of, types_of
from photonlite.grammar.json_schema.numbers import whole_bounds
from photonlite.grammar.json_schema.scalars import bounds_of, of_types
from photonlite.grammar.json_schema.text import COMMA, bracketed, some_of, value
from photonlite.grammar.regex.fragment import EMPTY, Fragment, either, optional, sequence

MAX_VALUES = 1000  # of an item: integers of a range too
_DEPTH = 16  # references and choices inside one another
_MOST_BYTES = 20_000  # of a pattern that writes out each list


def unique_items(root: Schema, item: Any, low: int, high: int | None, where: str) -> Fragment:
    """Match a list of different items; raises a `SchemaError` where these have too many values."""
    given = _values(root, item, where, _DEPTH)
    if given is None:
        refuse(
            "items must have few values: give an enum, a const, a boolean or an integer of a small range, or leave "
            "it out",
            "uniqueItems",
            where,
        )
    values = [value(each) for each in {value_key(each): each for each in reversed(given)}.values()][::-1]
    count = len(values)
    if low > count:
        refuse(f"{low} different items are wanted, but there are {count} values", "minItems", where)
    high = count if high is None else min(high, count)
    size = sum(one.size + COMMA.size for one in values) / count
    for ordered, lists in ((False, math.perm), (True, math.comb)):
        if sum(lists(count, length) * size for length in range(1, min(high, 20) + 1)) <= _MOST_BYTES:
            return bracketed("[", _chosen(tuple(values), low, high, ordered=ordered), "]")
    inner = some_of(values)
    if low > 1 or high < count or inner is None:
        raise GrammarTooLargeError(
            f"'uniqueItems' at {named(where)}: {low} to {high} of {count} values make too many lists: allow fewer "
            "values, or any number of items"
        )
    return bracketed("[", inner if low else optional(inner), "]")


def _chosen(left: tuple[Fragment, ...], low: int, high: int, *, ordered: bool, before: Fragment = EMPTY) -> Fragment:
    """Match `low` to `high` of some values, each once, with commas between them."""
    parts = []
    for place, one in enumerate(left if high else ()):
        others = left[place + 1 :] if ordered else left[:place] + left[place + 1 :]
        if len(others) >= low - 1:
            behind = _chosen(others, max(0, low - 1), high - 1, ordered=ordered, before=COMMA)
            parts.append(sequence(before, one, behind))
    if not parts:
        return EMPTY
    return either(parts) if low else optional(either(parts))


def _values(root: Schema, schema: Any, where: str, depth: int) -> list[Any] | None:
    """Return all values of a schema that was read before; None where they are too many, or not known."""
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    if "$ref" in schema:
        return _values(root, *resolved(root, schema, where), depth - 1)
    types = types_of(schema, where)
    for keyword in ("enum", "const"):
        if keyword in schema:
            return of_types([schema["const"]] if keyword == "const" else list(schema["enum"]), types)[:MAX_VALUES]
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return _joined([_values(root, each, where, depth - 1) for each in sequence_of(schema, keyword, where)])
    return _joined([_values_of_type(schema, name, where) for name in types]) if types else None


def _values_of_type(schema: Schema, name: str, where: str) -> list[Any] | None:
    if name != "integer":
        few: dict[str, list[Any]] = {"boolean": [True, False], "null": [None]}
        return few.get(name)
    low, high = whole_bounds(*bounds_of(schema, where))
    if low is None or high is None or high - low >= MAX_VALUES:
        return None
    step = decimal_of(schema, "multipleOf", where)
    # A whole number is a multiple of 5/2 where it is one of 5.
    unit = 1 if step is None else step.as_integer_ratio()[0]
    return [number for number in range(low, high + 1) if number % unit == 0]


def _joined(parts: Sequence[list[Any] | None]) -> list[Any] | None:
    known = [part for part in parts if part is not None]
    return [each for part in known for each in part] if len(known) == len(parts) else None
