"""The keywords of JSON Schema: which are known, what they may hold, and errors that name their place."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn, TypeAlias, TypeGuard
from urllib.parse import unquote

from photonlite.errors import SchemaError

Schema: TypeAlias = Mapping[str, Any]  # as `json.loads` returns it

BY_TYPE = {  # the keywords of each type
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"),
    "object": ("properties", "required", "additionalProperties", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "boolean": (),
    "null": (),
}

WHOLE = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")  # these describe a value completely, without others

ANNOTATIONS = frozenset(  # these restrict nothing; "maxDepth", which is our own, only where a schema holds itself
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"}
    | {"$schema", "$comment", "$defs", "definitions", "maxDepth", "$id", "id"}
    | {"example", "externalDocs", "xml", "links"}  # of OpenAPI and Hyper-Schema
)

RULES = {"type"}.union(WHOLE, *BY_TYPE.values())


def refuse(message: str, keyword: str, where: str, cause: Exception | None = None) -> NoReturn:
    """Raise a `SchemaError` that names a keyword and its place."""
    start = f"{keyword!r} at" if keyword else "at"
    raise SchemaError(f"{start} {named(where)}: {message}", keyword, where) from cause


def named(where: str) -> str:
    """Return a place for messages: valid Unicode, whatever the names are."""
    where = where.encode(errors="backslashreplace").decode()
    return (where if len(where) <= 100 else f"...{where[-97:]}") or "the schema itself"


def rules_of(schema: Schema) -> set[str]:
    """Return the keywords that are no annotations; those that begin with "x-" are (OpenAPI)."""
    return {keyword for keyword in schema if keyword not in ANNOTATIONS and not str(keyword).startswith("x-")}


def check_known(schema: Schema, where: str) -> None:
    """Refuse keywords that would not be enforced."""
    if unknown := rules_of(schema) - RULES:
        refuse("photonlite cannot hold an answer to this keyword: leave it out", min(map(str, unknown)), where)
    for keyword in ("$id", "id"):  # the latter until draft 4
        given = schema.get(keyword, "#")
        if not isinstance(given, str) or (where and not given.startswith("#")):
            refuse("only the outermost schema may have an id: references below would lead elsewhere", keyword, where)


def below(where: str, *parts: str | int) -> str:
    """Return the JSON pointer (RFC 6901) to something inside."""
    return where + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def mapping_of(schema: Schema, keyword: str, where: str) -> Schema:
    given = schema.get(keyword, {})
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        refuse("must be an object", keyword, where)
    return given


def sequence_of(schema: Schema, keyword: str, where: str) -> Sequence[Any]:
    given = schema.get(keyword, ())
    if not isinstance(given, list | tuple):
        refuse("must be a list", keyword, where)
    return given


def names_of(schema: Schema, keyword: str, where: str) -> Sequence[str]:
    given = sequence_of(schema, keyword, where)
    if not all(isinstance(name, str) for name in given):
        refuse("must be a list of texts", keyword, where)
    return given


def types_of(schema: Schema, where: str) -> tuple[str, ...]:
    """Return the types that a schema names, each once."""
    given = schema.get("type", ())
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or ("type" in schema and not names):
        refuse("must be the name of a type, or a list of some", "type", where)
    for name in names:
        if not isinstance(name, str) or name not in BY_TYPE:
            refuse(f"{name!r:.100} is not a type: there are {', '.join(BY_TYPE)}", "type", where)
    return tuple(dict.fromkeys(names))


def count_of(schema: Schema, keyword: str, where: str) -> int | None:
    given = schema.get(keyword)
    if keyword not in schema:
        return None
    if not _is_number(given) or given < 0 or given % 1:
        refuse("must be an integer of at least 0", keyword, where)
    return int(given)


def _is_number(given: Any) -> TypeGuard[int | float]:
    # A large integer is too large for isfinite.
    return kind_of(given) == "number" and (isinstance(given, int) or math.isfinite(given))


def kind_of(value: Any) -> str:
    """Return the type of a JSON value; an integer is a number."""
    if value is None:
        return "null"
    kinds = ((bool, "boolean"), (str, "string"), (int | float, "number"), (Mapping, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "array")


def range_of(schema: Schema, low: str, high: str, where: str) -> tuple[int, int | None]:
    least, most = count_of(schema, low, where) or 0, count_of(schema, high, where)
    if most is not None and least > most:
        refuse(f"{least} is more than {high} allows ({most})", low, where)
    return least, most


def decimal_of(schema: Schema, keyword: str, where: str) -> Decimal | None:
    """Return a finite number exactly as it is spelled."""
    given = schema.get(keyword)
    if keyword not in schema:
        return None
    if not _is_number(given):
        refuse("must be a finite number", keyword, where)
    return Decimal(given) if isinstance(given, int) else Decimal(repr(given))


def resolved(root: Schema, schema: Schema, where: str) -> tuple[Any, str]:
    """Follow one `$ref`: return its target, and the JSON pointer to it."""
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
