"""Schemas drawn at random, each with values that are right by it."""

import json
from typing import Any

from hypothesis import strategies as st

Pair = tuple[Any, st.SearchStrategy[Any]]
"""A schema and its values; objects have their properties in the schema's order."""

TEXT = st.text(st.sampled_from('ab"\\/\n\x01\x1fé€😀 ,:{}[]'), max_size=8)
NAMES = ("fruit", 'a"b', "é", "count", "box ", "", "x\n")


def _counted(kind: str, low: str, high: str) -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.tuples(st.integers(0, 2), st.none() | st.integers(0, 3))
    return bounds.map(
        lambda drawn: {"type": kind, low: drawn[0]} | ({} if drawn[1] is None else {high: drawn[0] + drawn[1]})
    )


def _string(schema: dict[str, Any]) -> Pair:
    low, high = schema["minLength"], schema.get("maxLength", 9)
    return schema, st.text(st.sampled_from('a"\\\n\x00é😀'), min_size=low, max_size=high)


def _integer(drawn: tuple[int, int]) -> Pair:
    low, high = min(drawn), max(drawn)
    return {"type": "integer", "minimum": low, "maximum": high}, st.integers(low, high)


def _enum(values: list[Any]) -> Pair:
    return {"enum": values}, st.sampled_from(values)


def _array(drawn: tuple[Pair, dict[str, Any]]) -> Pair:
    (schema, values), counts = drawn
    low = counts["minItems"]
    return counts | {"items": schema}, st.lists(values, min_size=low, max_size=counts.get("maxItems", low + 3))


def _tuple(drawn: list[Pair]) -> Pair:
    schema = {"type": "array", "prefixItems": [schema for schema, _ in drawn], "minItems": len(drawn), "items": False}
    return schema, st.tuples(*(values for _, values in drawn)).map(list)


def _object(drawn: list[tuple[str, Pair, bool]]) -> Pair:
    schema = {
        "type": "object",
        "properties": {name: inner for name, (inner, _), _ in drawn},
        "required": [name for name, _, required in drawn if required],
        "additionalProperties": False,
    }
    kept = st.tuples(*(st.just(True) if required else st.booleans() for *_, required in drawn))
    values = st.tuples(*(values for _, (_, values), _ in drawn))

    def put(chosen: tuple[Any, Any]) -> dict[str, Any]:
        return {name: value for (name, *_), keep, value in zip(drawn, *chosen, strict=True) if keep}

    return schema, st.tuples(kept, values).map(put)


def _any_of(drawn: list[Pair]) -> Pair:
    return {"anyOf": [schema for schema, _ in drawn]}, st.one_of(*(values for _, values in drawn))


_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-99, 99), TEXT, st.sampled_from([0.5, -1e30, [], [1, "a"], {"k": 1}])
)


def _multiple(drawn: tuple[int, int, int]) -> Pair:
    step, low, size = drawn
    values = [number for number in range(low, low + size + step) if number % step == 0]
    return {"type": "integer", "multipleOf": step, "minimum": low, "maximum": values[-1]}, st.sampled_from(values)


def _unique(drawn: tuple[list[Any], int]) -> Pair:
    values, low = drawn
    schema = {"type": "array", "items": {"enum": values}, "uniqueItems": True, "minItems": min(low, len(values))}
    lists = st.lists(st.sampled_from(values), min_size=min(low, len(values)), unique_by=json.dumps)
    return schema, lists


LEAVES: st.SearchStrategy[Pair] = st.one_of(
    st.tuples(st.integers(1, 70), st.integers(-300, 300), st.integers(0, 300)).map(_multiple),
    st.just(({"type": "number", "multipleOf": 0.25}, st.integers(-5000, 5000).map(lambda n: n / 4))),
    st.tuples(
        st.lists(st.none() | st.booleans() | st.integers(2, 9) | TEXT, min_size=1, max_size=4, unique_by=json.dumps),
        st.integers(0, 2),
    ).map(_unique),
    st.just(({"type": "string"}, TEXT)),
    _counted("string", "minLength", "maxLength").map(_string),
    st.tuples(st.integers(-300, 300), st.integers(-300, 300)).map(_integer),
    st.just(({"type": "number", "minimum": -1, "maximum": 1}, st.integers(-1000, 1000).map(lambda n: n / 1000))),
    st.lists(_VALUES, min_size=1, max_size=4).map(_enum),
    st.just(({"type": ["boolean", "null"], "title": "t"}, st.none() | st.booleans())),
    st.just(({"type": "string", "format": "date"}, st.dates().filter(lambda day: day.year >= 1000).map(str))),
    st.just(({"type": "string", "pattern": '^["a]+b?$'}, st.from_regex('^["a]{1,4}b?\\Z'))),
)


def _grown(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    properties = st.lists(
        st.tuples(st.sampled_from(NAMES), inner, st.booleans()), max_size=4, unique_by=lambda drawn: drawn[0]
    )
    return st.one_of(
        st.tuples(inner, _counted("array", "minItems", "maxItems")).map(_array),
        st.lists(inner, min_size=1, max_size=3).map(_tuple),
        properties.map(_object),
        st.lists(inner, min_size=1, max_size=3).map(_any_of),
    )


SCHEMAS = st.recursive(LEAVES, _grown, max_leaves=6)
