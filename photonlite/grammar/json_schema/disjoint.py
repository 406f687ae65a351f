"""Whether two schemas have no value in common: only then may either stand where exactly one of them must hold."""

from collections.abc import Mapping, Sequence
from typing import Any

from photonlite.grammar.json_schema.keywords import (
    BY_TYPE,
    below,
    mapping_of,
    names_of,
    resolved,
    sequence_of,
    types_of,
)

_DEPTH = 4
"""Properties of properties that are looked into."""

_ALL = frozenset(BY_TYPE) - {"integer"}


def disjoint(root: Mapping[str, Any], first: Any, second: Any, where: str, depth: int = _DEPTH) -> bool:
    """Tell whether it is certain that no value fits both.

    Args:
        root: Where references begin.
        first: A schema.
        second: Another.
        where: JSON pointer to them.
        depth: Properties of properties that may be looked into.
    """
    one, other = _followed(root, first, where), _followed(root, second, where)
    if one is None or other is None:
        return False
    if not _kinds(root, one, where, depth) & _kinds(root, other, where, depth):
        return True
    some, others = _values(one), _values(other)
    if some is not None and others is not None:
        return not {_key(value) for value in some} & {_key(value) for value in others}
    return depth > 0 and _told_apart(root, one, other, where, depth)


def tags_of(root: Mapping[str, Any], schema: Any, tag: str, where: str, depth: int = _DEPTH) -> frozenset[Any] | None:
    """Return the values that a property may have in the objects of a schema, or None where that is not certain.

    Args:
        root: Where references begin.
        schema: Of objects, or of a choice between such.
        tag: Name of the property, which every object is taken to have.
        where: JSON pointer to the schema.
        depth: Choices inside choices that may be looked into.
    """
    followed = _followed(root, schema, where)
    if followed is None or depth == 0:
        return None
    branches = [*sequence_of(followed, "oneOf", where), *sequence_of(followed, "anyOf", where)]
    if branches:
        found = [tags_of(root, branch, tag, where, depth - 1) for branch in branches]
        return None if None in found else frozenset().union(*(each or () for each in found))
    value = _followed(root, mapping_of(followed, "properties", where).get(tag), where)
    values = None if value is None else _values(value)
    return None if values is None else frozenset(map(_key, values))


def _told_apart(
    root: Mapping[str, Any], one: Mapping[str, Any], other: Mapping[str, Any], where: str, depth: int
) -> bool:
    """Tell whether both are objects with a property that both must have, and that fits one of them only."""
    if types_of(one, where) != ("object",) or types_of(other, where) != ("object",):
        return False
    required = set(names_of(one, "required", where)) & set(names_of(other, "required", where))
    mine, theirs = mapping_of(one, "properties", where), mapping_of(other, "properties", where)
    shared = [name for name in mine if name in theirs and name in required]
    return any(disjoint(root, mine[name], theirs[name], below(where, name), depth - 1) for name in shared)


def _followed(root: Mapping[str, Any], schema: Any, where: str) -> Mapping[str, Any] | None:
    for _ in range(len(BY_TYPE) * 4):  # a chain that is longer than this proves nothing
        if not isinstance(schema, Mapping):
            return None
        if "$ref" not in schema:
            return schema
        schema, where = resolved(root, schema, where)
    return None


def _kinds(root: Mapping[str, Any], schema: Mapping[str, Any], where: str, depth: int) -> frozenset[str]:
    """Give the types that a value may have; an integer is a number."""
    values = _values(schema)
    if values is not None:
        return frozenset(_kind(value) for value in values)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            found: frozenset[str] = frozenset()
            for branch in sequence_of(schema, keyword, where):
                inner = _followed(root, branch, where) if depth > 0 else None
                found |= _ALL if inner is None else _kinds(root, inner, where, depth - 1)
            return found
    types = types_of(schema, where)
    return frozenset("number" if name == "integer" else name for name in types) if types else _ALL


def _values(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    given = schema.get("enum")
    return given if isinstance(given, list | tuple) else None


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = ((bool, "boolean"), (str, "string"), (int | float, "number"), (Mapping, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "array")


def _key(value: Any) -> Any:
    """Give something that is equal for values that JSON Schema takes for equal."""
    if isinstance(value, Mapping):
        return "object", frozenset((name, _key(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return "array", tuple(_key(each) for each in value)
    return _kind(value), value
