"""Whether two schemas have no value in common, which the schemas of a `oneOf` need."""

from collections.abc import Mapping, Sequence
from typing import Any

from photonlite.grammar.json_schema.keywords import (
    BY_TYPE,
    Schema,
    below,
    kind_of,
    mapping_of,
    names_of,
    resolved,
    sequence_of,
    types_of,
)

_DEPTH = 4  # levels of properties, and of choices inside choices, that are looked into
_ALL = frozenset(BY_TYPE) - {"integer"}


def disjoint(root: Schema, first: Any, second: Any, where: str, depth: int = _DEPTH) -> bool:
    """Whether it is certain that no value fits both."""
    one, other = _followed(root, first, where), _followed(root, second, where)
    if one is None or other is None:
        return False
    if not _kinds(root, one, where, depth) & _kinds(root, other, where, depth):
        return True
    some, others = _values(one), _values(other)
    if some is not None and others is not None:
        return not {value_key(value) for value in some} & {value_key(value) for value in others}
    return depth > 0 and _told_apart(root, one, other, where, depth)


def tags_of(root: Schema, schema: Any, tag: str, where: str, depth: int = _DEPTH) -> frozenset[Any] | None:
    """Return the values that a property may have in objects of a schema; None where not certain, or for other types."""
    followed = _followed(root, schema, where)
    if followed is None or depth == 0:
        return None
    branches = [*sequence_of(followed, "oneOf", where), *sequence_of(followed, "anyOf", where)]
    if branches:
        found = [tags_of(root, branch, tag, where, depth - 1) for branch in branches]
        return None if None in found else frozenset().union(*(each or () for each in found))
    if types_of(followed, where) not in ((), ("object",)):  # without a type it is read as an object
        return None
    value = _followed(root, mapping_of(followed, "properties", where).get(tag), where)
    values = None if value is None else _values(value)
    return None if values is None else frozenset(map(value_key, values))


def _told_apart(root: Schema, one: Schema, other: Schema, where: str, depth: int) -> bool:
    """Whether both are objects with a required property whose value fits one of them only."""
    if types_of(one, where) != ("object",) or types_of(other, where) != ("object",):
        return False
    required = set(names_of(one, "required", where)) & set(names_of(other, "required", where))
    mine, theirs = mapping_of(one, "properties", where), mapping_of(other, "properties", where)
    shared = [name for name in mine if name in theirs and name in required]
    return any(disjoint(root, mine[name], theirs[name], below(where, name), depth - 1) for name in shared)


def _followed(root: Schema, schema: Any, where: str) -> Schema | None:
    for _ in range(len(BY_TYPE) * 4):  # a longer chain is not followed
        if not isinstance(schema, Mapping):
            return None
        if "$ref" not in schema:
            return schema
        schema, where = resolved(root, schema, where)
    return None


def _kinds(root: Schema, schema: Schema, where: str, depth: int) -> frozenset[str]:
    """Return the types that a value may have; an integer is a number."""
    values = _values(schema)
    if values is not None:
        return frozenset(kind_of(value) for value in values)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            found: frozenset[str] = frozenset()
            for branch in sequence_of(schema, keyword, where):
                inner = _followed(root, branch, where) if depth > 0 else None
                found |= _ALL if inner is None else _kinds(root, inner, where, depth - 1)
            return found
    types = types_of(schema, where)
    return frozenset("number" if name == "integer" else name for name in types) if types else _ALL


def _values(schema: Schema) -> Sequence[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    given = schema.get("enum")
    return given if isinstance(given, list | tuple) else None


def value_key(value: Any) -> Any:
    """Return a key that is equal for values that JSON Schema takes for equal."""
    if isinstance(value, Mapping):
        return "object", frozenset((name, value_key(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return "array", tuple(value_key(each) for each in value)
    return kind_of(value), value
