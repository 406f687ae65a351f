"""`/openapi.json`, the description of every route, and `/docs`, the same as one HTML page without scripts.

The page has the paths by subject, then every schema as a table.
"""

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from photonlite.server.bodies.base import Json
from photonlite.server.ingress import Ingress
from photonlite.server.routes.document import document

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def routes(ingress: Ingress) -> list[BaseRoute]:
    """Return both routes. They need no key: they tell what the program can do, and nothing about this server."""
    described = document(ingress.config)
    data = json.dumps(described, ensure_ascii=False).encode()
    text = page(described).encode()

    async def openapi(request: Request) -> Response:
        return Response(data, media_type="application/json")

    async def docs(request: Request) -> Response:
        return Response(text, media_type="text/html", headers=_HEADERS)

    return [Route("/openapi.json", openapi, methods=["GET"]), Route("/docs", docs, methods=["GET"])]


def page(described: Json) -> str:
    """Return the page of a document."""
    info = described["info"]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{_text(info['title'])}: interface</title><link rel='stylesheet' href='/static/docs.css'></head><body>",
        f"<header><h1>{_text(info['title'])} {_text(info['version'])}</h1><p>{_text(info['summary'])} ",
        "The same for programs: <a href='/openapi.json'>openapi.json</a>.</p></header>",
        f"<nav aria-label='Paths'><ul>{''.join(_links(described))}</ul></nav><main>",
        *(part for tag in described["tags"] for part in _tag(tag, described)),
        "<h2 id='schemas'>Schemas</h2>",
        *(part for name, schema in described["components"]["schemas"].items() for part in _schema(name, schema)),
        "</main></body></html>",
    ]
    return "".join(parts)


def _operations(described: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _links(described: Json) -> Iterator[str]:
    for path, method, operation in _operations(described):
        yield f"<li><a href='#{_text(operation['operationId'])}'>{_method(method)} <code>{_text(path)}</code></a></li>"


def _tag(tag: Json, described: Json) -> Iterator[str]:
    yield f"<h2>{_text(tag['name'])}</h2><p>{_prose(tag['description'])}</p>"
    for path, method, operation in _operations(described):
        if tag["name"] in operation["tags"]:
            yield from _operation(path, method, operation)


def _operation(path: str, method: str, operation: Json) -> Iterator[str]:
    yield f"<details open id='{_text(operation['operationId'])}'><summary>{_method(method)}<code>{_text(path)}</code>"
    yield f"<span>{_text(operation['summary'])}</span></summary><div class='body'>"
    if "description" in operation:
        yield f"<p>{_prose(operation['description'])}</p>"
    content = operation.get("requestBody", {}).get("content", {})
    if content:
        yield f"<h4>Body</h4>{_bodies(content)}"
    for example in (media["example"] for media in content.values() if "example" in media):
        yield f"<pre tabindex='0'>{_text(json.dumps(example, ensure_ascii=False, indent=2))}</pre>"
    if operation.get("parameters"):
        fields = {parameter["name"]: {**parameter, **parameter["schema"]} for parameter in operation["parameters"]}
        needed = [parameter["name"] for parameter in operation["parameters"] if parameter["required"]]
        yield f"<h4>{_kinds_of(operation['parameters'])}</h4>{_fields(fields, needed)}"
    yield f"<h4>Answers</h4>{_answers(operation['responses'])}</div></details>"


def _kinds_of(parameters: list[Json]) -> str:
    words = {"query": "Query string, where the image is the body", "path": "Path", "header": "Headers"}
    return " and ".join(dict.fromkeys(words[parameter["in"]] for parameter in parameters))


def _bodies(content: Json) -> str:
    """List media types; those with the same kind of body share a line."""
    kinds: dict[str, list[str]] = {}
    for media_type, media in content.items():
        kinds.setdefault(_type(media["schema"]), []).append(f"<code>{_text(media_type)}</code>")
    return "".join(f"<p>{', '.join(types)}: {kind}</p>" for kind, types in kinds.items())


def _answers(responses: Json) -> str:
    rows = []
    for status, answer in sorted(responses.items()):
        kinds = "<br>".join(
            f"{_answer_type(media_type, media['schema'])} <span class='quiet'>{_text(media_type)}</span>"
            for media_type, media in answer.get("content", {}).items()
        )
        rows.append(f"<tr><td><code>{status}</code></td><td>{kinds}</td><td>{_prose(answer['description'])}</td></tr>")
    return _table(("Status", "Body", "When"), rows)


def _answer_type(media_type: str, schema: Json) -> str:
    return f"events: {_type(schema['properties']['data'])}" if media_type == "text/event-stream" else _type(schema)


def _schema(name: str, schema: Json) -> Iterator[str]:
    yield f"<h3 id='schema-{_text(name)}'>{_text(name)}</h3>"
    if "description" in schema:
        yield f"<p>{_prose(schema['description'])}</p>"
    if "properties" in schema:
        yield _fields(schema["properties"], schema.get("required", []))
    else:
        yield f"<p>{_type(schema)}</p>"


def _fields(properties: Mapping[str, Json], needed: list[str]) -> str:
    rows = [
        f"<tr><td><code>{_text(name)}</code>{'' if name in needed else ' <span class=quiet>optional</span>'}</td>"
        f"<td>{_type(schema)}{_default(schema)}</td><td>{_prose(schema.get('description', ''))}</td></tr>"
        for name, schema in properties.items()
    ]
    return _table(("Field", "Value", "Meaning"), rows)


def _default(schema: Json) -> str:
    return f", default {_text(_compact(schema['default']))}" if schema.get("default") is not None else ""


def _table(titles: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def _type(schema: Json) -> str:
    """Return in a few words what a schema allows; a schema with a name becomes a link."""
    if "$ref" in schema:
        name = _text(schema["$ref"].rpartition("/")[2])
        return f"<a href='#schema-{name}'>{name}</a>"
    if "const" in schema:
        return f"<code>{_text(_compact(schema['const']))}</code>"
    if "enum" in schema:
        return ", ".join(f"<code>{_text(_compact(value))}</code>" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "contentSchema" in schema:
        return _type(schema["contentSchema"])
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    words = (("minimum", "from"), ("maximum", "to"), ("maxLength", "up to"))
    limits = [f"{word} {_compact(schema[key])}" for key, word in words if key in schema]
    return _text(", ".join([schema.get("type", "anything"), *limits]))


def _method(method: str) -> str:
    return f"<span class='method {method}'>{method.upper()}</span>"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _prose(value: str) -> str:
    """Return a description; the text between backticks is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", _text(value))


def _text(value: str) -> str:
    return escape(value, quote=True)
