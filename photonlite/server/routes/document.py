"""The OpenAPI document: a table of the routes, and the schemas of the models that check their bodies."""

import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, Field
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from photonlite import __version__
from photonlite.results import Metrics
from photonlite.server.backend import Skill
from photonlite.server.bodies.base import Json
from photonlite.server.bodies.chat import ChatCompletionRequest
from photonlite.server.bodies.chat_answers import ChatCompletion, ChatCompletionChunk, Model, ModelList
from photonlite.server.bodies.parsing import json_fields
from photonlite.server.bodies.skills import EVENTS, REQUESTS, RESPONSES
from photonlite.server.config import ServerConfig
from photonlite.skills.base import MAX_OBJECT_CHARACTERS, MAX_QUESTION_CHARACTERS

MEDIA_TYPES: Final = (
    "image/jpeg",
    "image/png",
    "image/webp",
    "image/gif",
    "image/bmp",
    "image/tiff",
    "image/avif",
    "image/x-portable-pixmap",
    "application/octet-stream",
)
"""Of bodies that are the file of an image."""

_TEXT: Final[Json] = {"type": "string"}
_TAGS: Final = {
    "Skills": "Moondream's interface. Coordinates run from 0 to 1, with (0, 0) in the top-left corner of the image.",
    "Real time": "A loop over the frames of a camera.",
    "OpenAI": "What OpenAI's clients call.",
    "Service": "Health, metrics and pages.",
}
_SCHEMES: Final[Json] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "moondream": {"type": "apiKey", "in": "header", "name": "X-Moondream-Auth"},
}
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
_RETRY_AFTER: Final[Json] = {
    "Retry-After": {"schema": {"type": "integer", "minimum": 0}, "description": "Seconds after which to try again."}
}
_ADMISSION: Final = (401, 403, 421, 429, 503)
"""Statuses with which a request may be turned away before it is read."""
_ANSWERING: Final = (400, 401, 403, 404, 408, 413, 415, 421, 422, 429, 500, 503, 504)
"""Statuses with which a request for an answer may end."""
_EXAMPLES: Final[dict[Skill, Json]] = {
    "caption": {"length": "short"},
    "query": {"question": "How many bananas are there?"},
    "detect": {"object": "banana"},
    "point": {"object": "banana"},
    "segment": {"object": "banana"},
}
_CONVERSATION: Final = (
    "The model was trained on single questions about one image, so a conversation becomes one question. One message of "
    "the user's is asked as it is. Earlier turns go before the last one's text as lines `User: ...` and "
    "`Assistant: ...`, and the instructions of system and developer messages before everything. The checkpoint decides "
    "what it makes of them. Unknown parameters are refused. `temperature` is 0 unless given."
)
_REALTIME: Final = (
    'Text messages are JSON. The first one says what to ask, such as `{"task": "detect", "object": "mug", '
    '"deadline_ms": 33}`; later ones change it from the next frame on. `{"stats": true}` asks for statistics. Binary '
    "messages are frames: JPEG, PNG, WebP, or raw pixels behind `RGB8`, width and height as 32-bit unsigned integers "
    "with the least significant byte first. The newest frame wins: older ones that wait are dropped and counted. The "
    "server sends JSON objects whose `type` is `task`, `result`, `error` or `stats`; `frame` counts the client's "
    "frames from 0. A page, which cannot set headers, offers two subprotocols: `photonlite`, which the server takes, "
    "and `photonlite-key.` with its API key."
)


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str = Field(description="What was wrong, which limit it met, and what to do.")
    type: str = Field(description="The class of error.")
    code: str = Field(description="What exactly it was, as a word for programs.")


class Error(BaseModel):
    """A request that ended without its answer."""

    error: ErrorBody


class Status(BaseModel):
    """How the server stands."""

    status: str = Field(description="alive, dead, ready or unavailable.")
    reason: str | None = Field(None, description="Why it is dead or unavailable.")
    model: str | None = Field(None, description="Name of the model that is ready.")


def document(config: ServerConfig) -> Json:
    """Return the document of a server, whose limits become those of the schemas."""
    schemas = _schemas(config)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "photonlite",
            "version": __version__,
            "summary": "An image and a few words in, structured answers out.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "security": [{name: []} for name in _SCHEMES] if config.api_keys else [],
        "paths": {**_skills(schemas), **_openai(), **_service()},
        "components": {"securitySchemes": _SCHEMES, "schemas": schemas},
    }


def _skills(schemas: Json) -> Json:
    return {f"/v1/{skill}": {"post": _skill(skill, schemas)} for skill in REQUESTS}


def _skill(skill: Skill, schemas: Json) -> Json:
    request, answer = REQUESTS[skill], _json(RESPONSES[skill])
    if skill in EVENTS:
        answer |= _events(EVENTS[skill])
    properties = schemas[_form_name(request)]["properties"]
    return {
        **_operation(skill, "Skills", str(request.__doc__), answer, _ANSWERING),
        "description": "The image comes as a data URI in JSON, as a file of a form, or as the whole body with the "
        "other fields in the query string. In a form or a query string these are JSON: "
        f"{', '.join(f'`{name}`' for name in json_fields(request)[1])}.",
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in properties.items()
            if name not in ("image", "image_url")
        ],
        "requestBody": {
            "required": True,
            "content": {
                **_json(request, {"image_url": "data:image/jpeg;base64,...", **_EXAMPLES[skill]}),
                "multipart/form-data": {"schema": {"$ref": f"#/components/schemas/{_form_name(request)}"}},
                **{name: {"schema": {**_TEXT, "description": "The bytes of the file."}} for name in MEDIA_TYPES},
            },
        },
    }


def _openai() -> Json:
    parts = [
        {"type": "text", "text": "How many bananas are there?"},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,..."}},
    ]
    summary = "Answer a conversation about at most one image"
    answer = _json(ChatCompletion) | _events(ChatCompletionChunk, end="[DONE]")
    body = _json(ChatCompletionRequest, {"messages": [{"role": "user", "content": parts}]})
    name = {"name": "model", "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}
    return {
        "/v1/chat/completions": {
            "post": {
                **_operation("create_chat_completion", "OpenAI", summary, answer, _ANSWERING),
                "description": _CONVERSATION,
                "requestBody": {"required": True, "content": body},
            }
        },
        "/v1/models": {
            "get": _operation("list_models", "OpenAI", "List the model that is served", _json(ModelList), _ADMISSION)
        },
        "/v1/models/{model}": {
            "get": {
                **_operation(
                    "get_model", "OpenAI", "Describe the model that is served", _json(Model), (404, *_ADMISSION)
                ),
                "parameters": [{**name, "description": "Its name, as the list gives it."}],
            }
        },
    }


def _service() -> Json:
    page, header = {"text/html": {"schema": _TEXT}}, {"in": "header", "required": True}
    stopped = {"503": {"description": "It cannot be sent work.", "content": _json(Status)}}
    realtime = _operation("realtime", "Real time", "Open a WebSocket for frames", {}, (404, *_ADMISSION))
    realtime["responses"]["101"] = {"description": "The connection is a WebSocket from now on."}
    del realtime["responses"]["200"]
    tables: Json = {
        "/health": ("health", "Tell whether the engine lives", _json(Status)),
        "/ready": ("ready", "Tell whether the model answers", _json(Status)),
        "/metrics": ("metrics", "Counters and histograms for Prometheus", {"text/plain": {"schema": _TEXT}}),
        "/openapi.json": ("openapi", "Return this document", {"application/json": {"schema": {"type": "object"}}}),
        "/docs": ("docs", "Show this document as a page", page),
        "/": ("playground", "Show a page to try the model", page),
    }
    paths: Json = {
        path: {"get": {**_operation(name, "Service", summary, content, (421,)), "security": [{}]}}
        for path, (name, summary, content) in tables.items()
    }
    for path in ("/health", "/ready"):
        paths[path]["get"]["responses"] |= stopped
    metrics = paths["/metrics"]["get"]
    del metrics["security"]  # it needs a key where there are some
    metrics["responses"] |= _errors((401,))
    return {
        "/v1/realtime": {
            "get": {
                **realtime,
                "description": _REALTIME,
                "parameters": [
                    {"name": "Upgrade", "schema": {"type": "string", "enum": ["websocket"]}, **header},
                    {"name": "Sec-WebSocket-Key", "schema": _TEXT, **header},
                ],
            }
        },
        **paths,
    }


def _operation(name: str, tag: str, summary: str, content: Json, statuses: Sequence[int]) -> Json:
    return {
        "operationId": name,
        "tags": [tag],
        "summary": summary.rstrip("."),
        "responses": {"200": {"description": "The answer.", "content": content}, **_errors(statuses)},
    }


def _errors(statuses: Sequence[int]) -> Json:
    return {
        str(status): {
            "description": _REASONS[status],
            "content": _json(Error),
            **({"headers": _RETRY_AFTER} if status == 429 else {}),
        }
        for status in statuses
    }


def _json(model: type[BaseModel], example: Any = None) -> Json:
    return {"application/json": {"schema": _ref(model), **({} if example is None else {"example": example})}}


def _events(model: type[BaseModel], end: str | None = None) -> Json:
    """Describe server-sent events, whose data is JSON, or the text of the last one."""
    content = {"anyOf": [_ref(model), _ref(Error)]}
    data: Json = {**_TEXT, "contentMediaType": "application/json", "contentSchema": content}
    data = data if end is None else {"anyOf": [{"const": end}, data]}
    return {"text/event-stream": {"schema": {"type": "object", "properties": {"data": data}, "required": ["data"]}}}


def _ref(model: type[BaseModel]) -> Json:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _form_name(request: type[BaseModel]) -> str:
    return request.__name__.replace("Request", "Form")


class _Untitled(GenerateJsonSchema):
    """Leaves titles out: they repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _schemas(config: ServerConfig) -> Json:
    """Return the schemas of all bodies, with the limits of the server."""
    models = {*REQUESTS.values(), *RESPONSES.values(), *EVENTS.values()}
    models |= {ChatCompletionRequest, ChatCompletion, ChatCompletionChunk, ModelList, Model, Error, Status}
    _, generated = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Untitled,
    )
    schemas: Json = generated["$defs"]
    for schema in schemas.values():
        del schema["title"]
    _take_docstring(schemas["Metrics"], str(Metrics.__doc__))
    for schema in schemas.values():
        for name, limit in (("max_tokens", config.max_tokens), ("max_completion_tokens", config.max_tokens)):
            _limit(schema, name, maximum=limit)
        _limit(schema, "max_objects", maximum=config.max_objects)
        for name, most in (("question", MAX_QUESTION_CHARACTERS), ("object", MAX_OBJECT_CHARACTERS)):
            _limit(schema, name, minLength=1, maxLength=min(most, config.max_prompt_characters))
    for skill, request in REQUESTS.items():
        schemas[_form_name(request)] = _form(request, schemas[request.__name__])
        if skill != "query":
            schemas[request.__name__].setdefault("required", []).append("image_url")
    return schemas


def _limit(schema: Json, name: str, **limits: int) -> None:
    field = schema.get("properties", {}).get(name, {})
    for one in field.get("anyOf", [field]):
        if one.get("type") in ("integer", "string") and "const" not in one:
            one |= limits


def _form(request: type[BaseModel], schema: Json) -> Json:
    """Return the schema of a form from that of JSON: what only JSON can hold is text that is JSON, and null is not."""
    _, others = json_fields(request)
    fields: Json = {"image": {**_TEXT, "format": "binary", "description": "The file; its field may have any name."}}
    for name, field in schema["properties"].items():
        inner = {**field.get("anyOf", [field])[0], **{key: value for key, value in field.items() if key != "anyOf"}}
        fields[name] = {**_TEXT, "description": "JSON."} if name in others else inner
    del fields["image_url"]
    required = [*schema.get("required", []), *([] if "question" in fields else ["image"])]
    return {"type": "object", "properties": fields, "required": required}


def _take_docstring(schema: Json, text: str) -> None:
    """Describe a dataclass and its fields by its docstring."""
    schema["description"] = text.partition("\n")[0]
    for name, description in re.findall(r"^ {8}(\w+): (.+)$", text, re.MULTILINE):
        schema["properties"][name]["description"] = description
