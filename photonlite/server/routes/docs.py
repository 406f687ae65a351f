"""`/openapi.json`, the description of every route, and `/docs`, the same as one HTML page without scripts.

The page, made from `docs.html`, has the paths by subject, then every schema as a table.
"""

import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape
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
    environment = Environment(autoescape=True)
    environment.filters |= {"json": _json, "prose": _prose, "by_name": _by_name, "by_schema": _by_schema}
    return environment.from_string(Path(__file__).with_name("docs.html").read_text("utf-8")).render(described)


def _json(value: Any, indent: int | None = None) -> str:
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
        kinds.setdefault(_json(media["schema"]), (media["schema"], []))[1].append(media_type)
    return list(kinds.values())
