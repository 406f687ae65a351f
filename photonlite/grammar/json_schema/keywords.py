"""The keywords of JSON Schema: which there are, what they may hold, and errors that say where they stand."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn
from urllib.parse import unquote

from photonlite.errors import SchemaError

BY_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "object": ("properties", "required", "additionalProperties", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "boolean": (),
    "null": (),
}
"""The keywords that hold for each type."""

WHOLE = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
"""Keywords that say all there is to say about a value."""

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"}
    | {"$schema", "$comment", "$defs", "definitions"}
)
"""Keywords that hold nobody to anything."""

KNOWN = ANNOTATIONS.union({"type", "$id"}, WHOLE, *BY_TYPE.values())


def refuse(message: str, keyword: str, where: str, cause: Exception | None = None) -> NoReturn:
    """Raise a `SchemaError` that names the keyword and its place."""
    start = f"{keyword!r} at" if keyword else "at"
    raise SchemaError(f"{start} {named(where)}: {message}", keyword, where) from cause


def named(where: str) -> str:
    """Give a place as it stands in messages: as text that can be sent, whatever the names are."""
    where = where.encode(errors="backslashreplace").decode()
    return (where if len(where) <= 100 else f"...{where[-97:]}") or "the schema itself"


def check_known(schema: Mapping[str, Any], where: str) -> None:
    """Refuse keywords that an answer would not be held to."""
    for keyword in schema:
        if keyword not in KNOWN:
            refuse("photonlite cannot hold an answer to this keyword: leave it out", str(keyword), where)
    if "$id" in schema and where:
        refuse("only the outermost schema may have an id: references below would lead elsewhere", "$id", where)


def below(where: str, *parts: str | int) -> str:
    """Give the JSON pointer (RFC 6901) to something inside."""
    return where + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def mapping_of(schema: Mapping[str, Any], keyword: str, where: str) -> Mapping[str, Any]:
    """Give an object; an empty one where the keyword is absent."""
    given = schema.get(keyword, {})
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        refuse("must be an object", keyword, where)
    return given


def sequence_of(schema: Mapping[str, Any], keyword: str, where: str) -> Sequence[Any]:
    """Give a list; an empty one where the keyword is absent."""
    given = schema.get(keyword, ())
    if not isinstance(given, list | tuple):
        refuse("must be a list", keyword, where)
    return given


def names_of(schema: Mapping[str, Any], keyword: str, where: str) -> Sequence[str]:
    """Give a list of texts; an empty one where the keyword is absent."""
    given = sequence_of(schema, keyword, where)
    if not all(isinstance(name, str) for name in given):
        refuse("must be a list of texts", keyword, where)
    return given


def types_of(schema: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Give the types that a schema names, each once; none where it names none."""
    given = schema.get("type", ())
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or ("type" in schema and not names):
        refuse("must be the name of a type, or a list of some", "type", where)
    for name in names:
        if not isinstance(name, str) or name not in BY_TYPE:
            refuse(f"{name!r:.100} is not a type: there are {', '.join(BY_TYPE)}", "type", where)
    return tuple(dict.fromkeys(names))


def count_of(schema: Mapping[str, Any], keyword: str, where: str) -> int | None:
    """Give a count; None where the keyword is absent."""
    given = schema.get(keyword)
    if keyword not in schema:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not _finite(given) or given < 0 or given % 1:
        refuse("must be an integer of at least 0", keyword, where)
    return int(given)


def _finite(number: float) -> bool:
    return isinstance(number, int) or math.isfinite(number)  # an integer may be too large to ask


def range_of(schema: Mapping[str, Any], low: str, high: str, where: str) -> tuple[int, int | None]:
    """Give the least count, 0 without the keyword, and the greatest, None without it."""
    least, most = count_of(schema, low, where) or 0, count_of(schema, high, where)
    if most is not None and least > most:
        refuse(f"{least} is more than {high} allows ({most})", low, where)
    return least, most


def decimal_of(schema: Mapping[str, Any], keyword: str, where: str) -> Decimal | None:
    """Give a finite number, as it is spelled; None where the keyword is absent."""
    given = schema.get(keyword)
    if keyword not in schema:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not _finite(given):
        refuse("must be a finite number", keyword, where)
    return Decimal(given) if isinstance(given, int) else Decimal(repr(given))


def resolved(root: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> tuple[Any, str]:
    """Follow one `$ref`: give what it leads to, and the JSON pointer to that."""
    given = schema["$ref"]
    if not isinstance(given, str) or not (given == "#" or given.startswith("#/")):
        refuse(f"{given!r:.100} does not lead to a place in this schema, such as #/$defs/Name", "$ref", where)
    target: Any = root
    for part in unquote(given[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and name in target:
            target = target[name]
        elif isinstance(target, list | tuple) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            refuse(f"{given!r:.100} leads nowhere", "$ref", where)
    return target, unquote(given[1:])
