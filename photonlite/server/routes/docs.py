"""`/openapi.json`, from the models of bodies, and `/docs`, the same as an HTML page without scripts."""

import asyncio
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment
from markupsafe import Markup, escape
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from photonlite import __version__
from photonlite.server.bodies import chat
from photonlite.server.bodies.adapters import AdapterEntry, AdapterList, AdapterRequest
from photonlite.server.bodies.base import Json
from photonlite.server.bodies.reading import form_fields
from photonlite.server.bodies.schemas import Error, Status, body_schemas, form_name
from photonlite.server.bodies.skills import SKILL_BODIES
from photonlite.server.calls import Skill
from photonlite.server.config import ServerConfig
from photonlite.server.ingress import Ingress

_FORMATS: Final = ("jpeg", "png", "webp", "gif", "bmp", "tiff", "avif", "x-portable-pixmap")
MEDIA_TYPES: Final = (*(f"image/{name}" for name in _FORMATS), "application/octet-stream")

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
    403: "A page of another site sent it, or the key may not read the metrics, or load adapters.",
    404: "There is no such path, model or adapter.",
    408: "The body did not come in time.",
    413: "The body, or the image in it, is too large.",
    415: "The body is of a media type that this route does not take.",
    421: "The request is for another host: see --allow-host.",
    422: "A field is unknown or missing, or its value cannot be used: a setting, a text that is empty or too long, "
    "a skill that the checkpoint lacks.",
    426: "The request is no WebSocket's handshake.",
    429: "Too many requests are open, or came within a minute.",
    500: "The server failed; its log tells more.",
    503: "The model does not answer, or the server is stopping.",
    504: "The deadline passed before the answer was complete, or a schema took too long to compile.",
}
_RETRY_AFTER: Final[Json] = {
    "Retry-After": {"schema": {"type": "integer", "minimum": 0}, "description": "Seconds after which to try again."}
}
_ADMISSION: Final = (401, 403, 421, 429, 503)  # statuses with which a request may be turned away before it is read
_ANSWERING: Final = (400, 401, 403, 404, 408, 413, 415, 421, 422, 429, 500, 503, 504)
_CONVERSATION: Final = (
    "A model that was trained on conversations reads it as one, with images in any message of the user's; "
    "`--max-images` limits the places in which images stand. For a model that was trained on single questions about "
    "one image it becomes one question: one message of the user's is asked as it is, earlier turns go before the last "
    "one's text as lines `User: ...` and `Assistant: ...`, and the instructions of system and developer messages "
    "before everything. Unknown parameters are refused. `temperature` is 0 unless given."
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
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def routes(ingress: Ingress) -> list[BaseRoute]:
    """Return both routes. They need no key: they tell what the program can do, and nothing about this server."""
    described = cache(lambda: document(ingress.config))
    data = cache(lambda: _to_json(described()).encode())
    text = cache(lambda: page(described()).encode())

    # Made when first asked for, on a thread: each takes a tenth of a second.
    async def openapi(request: Request) -> Response:
        return Response(await asyncio.to_thread(data), media_type="application/json")

    async def docs(request: Request) -> Response:
        return Response(await asyncio.to_thread(text), media_type="text/html", headers=_HEADERS)

    return [Route("/openapi.json", openapi, methods=["GET"]), Route("/docs", docs, methods=["GET"])]


def document(config: ServerConfig) -> Json:
    schemas = body_schemas(config)
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
        "paths": _paths(schemas),
        "components": {"securitySchemes": _SCHEMES, "schemas": schemas},
    }


def _paths(schemas: Json) -> Json:
    skills = {f"/v1/{skill}": {"post": _skill(skill, schemas)} for skill in SKILL_BODIES}
    one = _operation(
        "get_model", "OpenAI", "Describe the model that is served", _json(chat.ModelEntry), (404, *_ADMISSION)
    )
    one["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}]
    several = _operation("list_models", "OpenAI", "List the model that is served", _json(chat.ModelList), _ADMISSION)
    html, text = {"text/html": {"schema": _TEXT}}, {"text/plain": {"schema": _TEXT}}
    document = {"application/json": {"schema": {"type": "object"}}}
    service = {
        "/health": _service("health", "Tell whether the engine lives", _json(Status), probe=True),
        "/ready": _service("ready", "Tell whether the model answers", _json(Status), probe=True),
        "/metrics": _operation("metrics", "Service", "Counters and histograms for Prometheus", text, (421, 401, 403)),
        "/openapi.json": _service("openapi", "Return this document", document),
        "/docs": _service("docs", "Show this document as a page", html),
        "/": _service("playground", "Show a page to try the model", html),
    }
    gets = {"/v1/models": several, "/v1/models/{model}": one, "/v1/realtime": _realtime(), **service}
    posts = {"/v1/chat/completions": {"post": _chat()}, **_adapters()}
    return skills | posts | {path: {"get": one} for path, one in gets.items()}


def _skill(skill: Skill, schemas: Json) -> Json:
    request, response, events = SKILL_BODIES[skill]
    answer = _json(response) | ({} if events is None else _events(events))
    fields = request.model_fields
    properties = schemas[form_name(request)]["properties"]
    return {
        **_operation(skill, "Skills", str(request.__doc__), answer, _ANSWERING),
        "description": "The image comes as a data URI in JSON, as a file of a form, or as the whole body with the "
        "other fields in the query string. In a form or a query string these are JSON: "
        f"{', '.join(f'`{name}`' for name in form_fields(request).json)}.",
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in properties.items()
            if name not in ("image", "image_url")
        ],
        "requestBody": {
            "required": True,
            "content": {
                **_json(request, {name: field.examples[0] for name, field in fields.items() if field.examples}),
                "multipart/form-data": {"schema": {"$ref": f"#/components/schemas/{form_name(request)}"}},
                **{name: {"schema": {**_TEXT, "description": "The bytes of the file."}} for name in MEDIA_TYPES},
            },
        },
    }


def _chat() -> Json:
    parts = [
        {"type": "text", "text": "How many bananas are there?"},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,..."}},
    ]
    summary = "Answer a conversation, about several images where the model reads several"
    answer = _json(chat.ChatCompletion) | _events(chat.ChatCompletionChunk, end="[DONE]")
    body = _json(chat.ChatCompletionRequest, {"messages": [{"role": "user", "content": parts}]})
    return {
        **_operation("create_chat_completion", "OpenAI", summary, answer, _ANSWERING),
        "description": _CONVERSATION,
        "requestBody": {"required": True, "content": body},
    }


def _adapters() -> Json:
    listed = _operation("list_adapters", "Service", "List the adapters that are loaded", _json(AdapterList), _ADMISSION)
    load = {
        **_operation("load_adapter", "Service", "Load an adapter", _json(AdapterEntry), _ANSWERING),
        "description": "It takes a key that the key file says `admin` behind.",
        "requestBody": {"required": True, "content": _json(AdapterRequest, {"adapter": "path/to/adapter"})},
    }
    unload = _operation("unload_adapter", "Service", "Forget an adapter", {}, (404, *_ADMISSION))
    unload["responses"]["204"] = {"description": "Later requests for it get 404, open ones are answered."}
    del unload["responses"]["200"]
    unload["parameters"] = [{"name": "adapter", "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}]
    return {"/v1/adapters": {"get": listed, "post": load}, "/v1/adapters/{adapter}": {"delete": unload}}


def _realtime() -> Json:
    operation = _operation("realtime", "Real time", "Open a WebSocket for frames", {}, (426, *_ADMISSION))
    operation["responses"]["101"] = {"description": "The connection is a WebSocket from now on."}
    del operation["responses"]["200"]
    headers = {"Upgrade": {"type": "string", "enum": ["websocket"]}, "Sec-WebSocket-Key": _TEXT}
    parameters = [{"name": name, "schema": one, "in": "header", "required": True} for name, one in headers.items()]
    return {**operation, "description": _REALTIME, "parameters": parameters}


def _service(name: str, summary: str, content: Json, *, probe: bool = False) -> Json:
    operation = {**_operation(name, "Service", summary, content, (421,)), "security": [{}]}
    if probe:
        operation["responses"]["503"] = {"description": "It cannot be sent work.", "content": _json(Status)}
    return operation


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


def page(described: Json) -> str:
    environment = Environment(autoescape=True)
    environment.filters |= {"json": _to_json, "prose": _prose, "by_name": _by_name, "by_schema": _by_schema}
    return environment.from_string(Path(__file__).with_name("docs.html").read_text("utf-8")).render(described)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _prose(text: str) -> Markup:
    """Return a description; the text between backticks is code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _by_name(parameters: list[Json]) -> Json:
    return {parameter["name"]: {**parameter, **parameter["schema"]} for parameter in parameters}


def _by_schema(content: Json) -> list[tuple[Json, list[str]]]:
    """Group media types with the same body."""
    kinds: dict[str, tuple[Json, list[str]]] = {}
    for media_type, media in content.items():
        kinds.setdefault(_to_json(media["schema"]), (media["schema"], []))[1].append(media_type)
    return list(kinds.values())
