"""Bricks of the OpenAPI document: how a schema, a body and a response are written, and what all routes share."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

Json: TypeAlias = dict[str, Any]

NUMBER: Final[Json] = {"type": "number"}
TEXT: Final[Json] = {"type": "string"}
FLAG: Final[Json] = {"type": "boolean"}
UNIT: Final[Json] = {"type": "number", "minimum": 0, "maximum": 1}
COUNT: Final[Json] = {"type": "integer", "minimum": 0}
SECONDS: Final[Json] = {"type": "number", "minimum": 0, "description": "Seconds."}


def ref(name: str) -> Json:
    """Refer to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Json) -> Json:
    """Allow null as well, which counts as left out."""
    if "type" in schema:
        values = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
        return {**schema, "type": [schema["type"], "null"], **values}
    return {"anyOf": [schema, {"type": "null"}]}


def described(schema: Json, description: str) -> Json:
    """Say what a value means."""
    return {**schema, "description": description}


def array(items: Json, **more: Any) -> Json:
    """Describe a list."""
    return {"type": "array", "items": items, **more}


def record(
    properties: Mapping[str, Json], optional: Sequence[str] = (), *, closed: bool = False, **more: Any
) -> Json:
    """Describe an object.

    Args:
        properties: Its fields.
        optional: Those that may be left out.
        closed: Whether other fields are refused.
        **more: Further keywords of the schema.
    """
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": dict(properties),
        **({"required": required} if required else {}),
        **({"additionalProperties": False} if closed else {}),
        **more,
    }


def json_content(schema: Json, example: Any = None) -> Json:
    """Describe a JSON body."""
    return {"application/json": {"schema": schema, **({} if example is None else {"example": example})}}


def event_content(*names: str, end: str | None = None) -> Json:
    """Describe server-sent events, whose data is JSON.

    Args:
        names: Of the schemas of which it is one. The schema that is written is that of one event.
        end: What the last one holds instead.
    """
    data = {**TEXT, "contentMediaType": "application/json", "contentSchema": {"anyOf": [ref(name) for name in names]}}
    either = data if end is None else {"anyOf": [{"const": end}, data]}
    return {"text/event-stream": {"schema": record({"data": either})}}


def response(description: str, content: Json | None = None, headers: Json | None = None) -> Json:
    """Describe a response."""
    return {
        "description": description,
        **({} if content is None else {"content": content}),
        **({} if headers is None else {"headers": headers}),
    }


ERROR: Final = record(
    {
        "error": record(
            {
                "message": described(TEXT, "What was wrong, which limit it met, and what to do."),
                "type": described(TEXT, "The class of error."),
                "code": described(TEXT, "What exactly it was, as a word for programs."),
            }
        )
    }
)

_REASONS: Final = {
    400: "The body or the image cannot be read, or an answer cannot be held to the schema or the pattern.",
    401: "The API key is missing or wrong.",
    403: "A page of another site sent it.",
    404: "There is no such path or model.",
    408: "The body did not come in time.",
    413: "The body, or the image in it, is too large.",
    415: "The body is of a media type that this route does not take.",
    421: "The request is for another host: see --allow-host.",
    422: "A field is unknown or missing, or its value cannot be used: a setting, a text that is empty or too long, "
    "a skill that the checkpoint lacks.",
    429: "Too many requests are open, or came within a minute.",
    500: "The server failed; its log tells more.",
    503: "The model does not answer, or the server is stopping.",
    504: "The deadline passed before the answer was complete, or a schema took too long to compile.",
}
_RETRY_AFTER: Final = {"Retry-After": {"schema": COUNT, "description": "Seconds after which to try again."}}


def errors(*statuses: int) -> Json:
    """Describe the responses that end a request without its answer."""
    return {
        str(status): {
            **response(_REASONS[status], json_content(ref("Error"))),
            **({"headers": _RETRY_AFTER} if status == 429 else {}),
        }
        for status in statuses
    }


ADMISSION: Final = (401, 403, 421, 429, 503)
"""Statuses with which a request may be turned away before it is read."""

ANSWERING: Final = (400, 401, 403, 408, 413, 415, 421, 422, 429, 500, 503, 504)
"""Statuses with which a request for an answer may end."""
