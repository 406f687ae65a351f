"""Strings, numbers and listed values of JSON Schema."""

from decimal import Decimal
from typing import Any

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.json_schema.keywords import (
    BY_TYPE,
    Schema,
    decimal_of,
    kind_of,
    named,
    range_of,
    refuse,
    types_of,
)
from photonlite.grammar.json_schema.multiples import multiples
from photonlite.grammar.json_schema.numbers import Edge, integers, numbers, whole_bounds
from photonlite.grammar.json_schema.text import matching, string, value
from photonlite.grammar.regex.fragment import Fragment, either
from photonlite.grammar.regex.rewrite import Lengths

MAX_ENUM = 5000  # values of one list

_DAY_OF_ANY_YEAR = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_LEAP_YEAR = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = f"(?:[1-9][0-9]{{3}}-{_DAY_OF_ANY_YEAR}|{_LEAP_YEAR}-02-29)"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_CLOCK}:[0-5][0-9](?:\\.[0-9]{{1,6}})?(?:Z|[+-]{_CLOCK})"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_WORD = "[a-z0-9_+-]"
_LETTER = "[a-z0-9]"
_NUMBER = "(?:0|[1-9][0-9]{0,5})"

# Formats of strings in the dialect of `regex.parser`: as strict as their standards, one spelling of each value, and all
# of a bounded length.
FORMATS = {
    # RFC 3339, from the year 1000 on and without leap seconds.
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    # ISO 8601 as in appendix A of RFC 3339, down to seconds.
    "duration": f"P(?:{_NUMBER}W|{_NUMBER}D(?:T{_NUMBER}H{_NUMBER}M{_NUMBER}S)?"
    f"|T{_NUMBER}H(?:{_NUMBER}M(?:{_NUMBER}S)?)?|T{_NUMBER}M(?:{_NUMBER}S)?|T{_NUMBER}S)",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",  # RFC 4122
    "ipv4": f"{_BYTE}(?:\\.{_BYTE}){{3}}",  # RFC 2673, section 3.2
    # A part of RFC 5321: names without quotes, hosts by name, in lower case. The counts, besides those of dots and
    # hyphens, run over all words and all labels: a model that knows no address would fill each of them.
    "email": f"{_WORD}(?:\\.?{_WORD}){{0,31}}@{_LETTER}(?:(?:\\.|-{{0,2}}){_LETTER}){{0,39}}\\.[a-z]{{2,12}}",
}

# OpenAPI's formats of numbers. All but int32 have room for every number that is written.
NUMBER_FORMATS = ("int32", "int64", "float", "double")


def string_of(schema: Schema, where: str) -> Fragment:
    low, high = range_of(schema, "minLength", "maxLength", where)
    if "format" in schema and "pattern" in schema:
        refuse("stands beside 'format', and both cannot be held at once: give one of them", "pattern", where)
    if "format" in schema:
        given = schema["format"]
        if not isinstance(given, str) or given not in FORMATS:
            refuse(f"{given!r:.100} is not a known format: there are {', '.join(FORMATS)}", "format", where)
        return _matching(FORMATS[given], "format", Lengths(low, high), where, search=False)
    if "pattern" in schema:
        return _matching(schema["pattern"], "pattern", Lengths(low, high), where, search=True)
    return string(low, high)


def _matching(pattern: Any, keyword: str, wanted: Lengths, where: str, *, search: bool) -> Fragment:
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


def number_of(schema: Schema, where: str, *, whole: bool) -> Fragment:
    step = decimal_of(schema, "multipleOf", where)
    others = {"string", "object"} & {*types_of(schema, where)}  # it may be theirs
    if "format" in schema and (given := schema["format"]) not in NUMBER_FORMATS and not others:
        refuse(f"{given!r:.100} is no format of numbers: there are {', '.join(NUMBER_FORMATS)}", "format", where)
    if step is not None and step <= 0:
        refuse("must be above 0", "multipleOf", where)
    low, high = bounds_of(schema, where)
    try:
        if step is not None:
            found = multiples(step, low, high, whole=whole)
        else:
            found = integers(*whole_bounds(low, high)) if whole else numbers(low, high)
    except GrammarTooLargeError:
        raise
    except GrammarError as cause:
        refuse(str(cause), "multipleOf", where, cause)
    if found is None:
        keyword = next(name for name in BY_TYPE["number"] if name in schema)
        refuse("no number that can be written is within the bounds", keyword, where)
    return found


def bounds_of(schema: Schema, where: str) -> tuple[Edge | None, Edge | None]:
    """Return the tighter ones of a number's bounds."""
    lows = [_edge(schema, keyword, where) for keyword in ("minimum", "exclusiveMinimum")]
    highs = [_edge(schema, keyword, where) for keyword in ("maximum", "exclusiveMaximum")]
    if schema.get("format") == "int32":
        lows, highs = [*lows, Edge(Decimal(-(2**31)))], [*highs, Edge(Decimal(2**31 - 1))]
    low = max((edge for edge in lows if edge), key=lambda edge: (edge.value, edge.exclusive), default=None)
    return low, min((edge for edge in highs if edge), key=lambda edge: (edge.value, not edge.exclusive), default=None)


def _edge(schema: Schema, keyword: str, where: str) -> Edge | None:
    given = decimal_of(schema, keyword, where)
    return None if given is None else Edge(given, keyword.startswith("exclusive"))


def values_of(given: list[Any], schema: Schema, keyword: str, where: str) -> Fragment:
    """Match those of some values that have the schema's types."""
    if len(given) > MAX_ENUM:
        raise GrammarTooLargeError(f"{keyword!r} at {named(where)} has {len(given)} values: the limit is {MAX_ENUM}")
    types = types_of(schema, where)
    fitting = of_types(given, types)
    if not fitting:
        refuse(f"none of the values is of the type {', '.join(types)}", keyword, where)
    try:
        return either([value(each) for each in fitting])
    except GrammarTooLargeError:
        raise
    except GrammarError as cause:
        refuse(str(cause), keyword, where, cause)


def of_types(given: list[Any], types: tuple[str, ...]) -> list[Any]:
    """Return the values that have one of some types; all where none is named."""
    return [each for each in given if not types or any(_has_type(each, name) for name in types)]


def _has_type(given: Any, name: str) -> bool:
    if name == "integer":
        return kind_of(given) == "number" and (isinstance(given, int) or given.is_integer())
    return kind_of(given) == name
