"""What an answer of `/v1/chat/completions` has to be, in OpenAI's words and in vLLM's.

| parameter | becomes |
|---|---|
| `response_format`: `{"type": "text"}` | nothing |
| `{"type": "json_object"}` | any JSON object |
| `{"type": "json_schema", "json_schema": {"name", "schema", "strict"}}` | the schema, which is always kept to |
| `structured_outputs`: `{"json": schema or its text}`, `{"json_object": true}` | the same |
| `{"regex": pattern}`, `{"choice": [texts]}` | a pattern, choices |

Grammars in other notations, and options of their backends, are refused by name.
"""

from collections.abc import Mapping
from typing import Any, Final

from photonlite.server.bodies.conversation import malformed, unusable
from photonlite.server.errors import HttpError

PARAMETERS: Final = ("response_format", "structured_outputs")
_FORMATS: Final = ("text", "json_object", "json_schema")
_DESCRIBED: Final = ("name", "description", "schema", "strict")
_STRUCTURES: Final = ("json", "json_object", "regex", "choice")


def read_format(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read what the answer has to be.

    Args:
        given: The parameters of a request that are not null.

    Returns:
        Of `schema`, `regex` and `choices`, as `VisionModel.query` takes them, one or none.

    Raises:
        HttpError: 422 for another shape, a name that there is not, or both parameters at once.
    """
    read = {"response_format": _response_format, "structured_outputs": _structured_outputs}
    wanted = {name: read[name](given[name]) for name in PARAMETERS if name in given}
    found = [arguments for arguments in wanted.values() if arguments]
    if len(found) > 1:
        raise unusable(f"{' and '.join(map(repr, wanted))} both say what the answer has to be: give one of them")
    return found[0] if found else {}


def _response_format(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise malformed('\'response_format\' must be an object such as {"type": "json_object"}')
    kind = value.get("type")
    if kind not in _FORMATS:
        raise malformed(f"'response_format' has the type {kind!r:.60}: the types are {', '.join(_FORMATS)}")
    _check_names("response_format", value, ("type", "json_schema") if kind == "json_schema" else ("type",))
    if kind == "text":
        return {}
    return {"schema": dict} if kind == "json_object" else _described(value.get("json_schema"))


def _described(value: object) -> dict[str, Any]:
    """Read a schema with its name; it is kept to whether or not it is called strict."""
    if not isinstance(value, Mapping) or not isinstance(value.get("schema"), Mapping):
        raise malformed('\'json_schema\' must be an object such as {"name": "mug", "schema": {"type": "object", ...}}')
    _check_names("json_schema", value, _DESCRIBED)
    return {"schema": value["schema"]}


def _structured_outputs(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise malformed('\'structured_outputs\' must be an object such as {"choice": ["yes", "no"]}')
    _check_names("structured_outputs", value, _STRUCTURES)
    given = {name: one for name, one in value.items() if one is not None and one is not False}
    if len(given) > 1:
        raise unusable(f"'structured_outputs' has {' and '.join(map(repr, given))}: give one of them")
    for name, one in given.items():
        return _STRUCTURED[name](one)
    return {}


def _json(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping | str):
        raise malformed("'json' must be a JSON Schema, as an object or as text")
    return {"schema": value}


def _json_object(value: object) -> dict[str, Any]:
    if value is not True:
        raise malformed("'json_object' must be true or false")
    return {"schema": dict}


def _regex(value: object) -> dict[str, Any]:
    if not isinstance(value, str):
        raise malformed("'regex' must be a pattern as text")
    return {"regex": value}


def _choice(value: object) -> dict[str, Any]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise malformed("'choice' must be a list of texts")
    return {"choices": value}


_STRUCTURED: Final = {"json": _json, "json_object": _json_object, "regex": _regex, "choice": _choice}


def _check_names(parameter: str, value: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in value:
        if name not in known:
            message = f"{parameter!r} has {name!r:.60}, which is unknown: there is {', '.join(known)}"
            raise HttpError(422, message, code="unknown_field")
