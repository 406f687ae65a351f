"""Strings, numbers and listed values of JSON Schema."""

import math
from collections.abc import Mapping
from typing import Any

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.json_schema.formats import FORMATS
from photonlite.grammar.json_schema.keywords import BY_TYPE, decimal_of, named, range_of, refuse, types_of
from photonlite.grammar.json_schema.numbers import Edge, integers, numbers
from photonlite.grammar.json_schema.text import matching, string, value
from photonlite.grammar.regex.fragment import Fragment, either
from photonlite.grammar.regex.rewrite import Lengths

MAX_ENUM = 5000
"""Values of one list."""


def string_of(schema: Mapping[str, Any], where: str) -> Fragment:
    """Give the strings that a schema allows."""
    low, high = range_of(schema, "minLength", "maxLength", where)
    if "format" in schema and "pattern" in schema:
        refuse("stands beside 'format', and both cannot be held at once: give one of them", "pattern", where)
    for keyword, search in (("format", False), ("pattern", True)):
        if keyword not in schema:
            continue
        given = schema[keyword]
        if keyword == "format":
            if not isinstance(given, str) or given not in FORMATS:
                refuse(f"{given!r:.100} is not a known format: there are {', '.join(FORMATS)}", keyword, where)
            given = FORMATS[given]
        return _matching(given, keyword, Lengths(low, high), where, search)
    return string(low, high)


def _matching(pattern: Any, keyword: str, wanted: Lengths, where: str, search: bool) -> Fragment:
    try:
        found = matching(pattern, wanted, search=search)
    except GrammarTooLargeError:
        raise
    except GrammarError as cause:
        refuse(str(cause), keyword, where, cause)
    if found is None:
        length = "maxLength" if wanted.high is not None else "minLength"
        refuse(f"'{keyword}' allows other lengths: put the length into the pattern", length, where)
    return found


def number_of(schema: Mapping[str, Any], where: str, *, whole: bool) -> Fragment:
    """Give the numbers that a schema allows; only integers if `whole`."""
    step = decimal_of(schema, "multipleOf", where)
    if step is not None and not (whole and step == 1):
        refuse("multiples cannot be held: leave it out", "multipleOf", where)
    lows = [_edge(schema, keyword, where) for keyword in ("minimum", "exclusiveMinimum")]
    highs = [_edge(schema, keyword, where) for keyword in ("maximum", "exclusiveMaximum")]
    low = max((edge for edge in lows if edge), key=lambda edge: (edge.value, edge.exclusive), default=None)
    high = min((edge for edge in highs if edge), key=lambda edge: (edge.value, not edge.exclusive), default=None)
    if whole:
        found = integers(
            None if low is None else math.floor(low.value) + 1 if low.exclusive else math.ceil(low.value),
            None if high is None else math.ceil(high.value) - 1 if high.exclusive else math.floor(high.value),
        )
    else:
        found = numbers(low, high)
    if found is None:
        keyword = next(name for name in (*BY_TYPE["number"],) if name in schema)
        refuse("no number that can be written is within the bounds", keyword, where)
    return found


def _edge(schema: Mapping[str, Any], keyword: str, where: str) -> Edge | None:
    given = decimal_of(schema, keyword, where)
    return None if given is None else Edge(given, keyword.startswith("exclusive"))


def values_of(given: list[Any], schema: Mapping[str, Any], keyword: str, where: str) -> Fragment:
    """Give those of some values that are of the schema's types."""
    if len(given) > MAX_ENUM:
        raise GrammarTooLargeError(f"{keyword!r} at {named(where)} has {len(given)} values: the limit is {MAX_ENUM}")
    types = types_of(schema, where)
    fitting = [each for each in given if not types or any(_is(each, name) for name in types)]
    if not fitting:
        refuse(f"none of the values is of the type {', '.join(types)}", keyword, where)
    try:
        return either([value(each) for each in fitting])
    except GrammarTooLargeError:
        raise
    except GrammarError as cause:
        refuse(str(cause), keyword, where, cause)


def _is(given: Any, name: str) -> bool:
    kinds: dict[str, Any] = {
        "string": str,
        "object": Mapping,
        "array": list | tuple,
        "boolean": bool,
        "null": type(None),
    }
    if name in kinds:
        return isinstance(given, kinds[name])
    number = isinstance(given, int | float) and not isinstance(given, bool)
    return number and (name == "number" or isinstance(given, int) or given.is_integer())
