"""`/openapi.json`, the description of every route, and `/docs`, the same to read."""

import base64
import hashlib
import json

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from photonlite.server.bodies.schema import document
from photonlite.server.ingress import Ingress
from photonlite.server.routes import docs_page


def routes(ingress: Ingress) -> list[BaseRoute]:
    """Give both routes. They are open to everybody: they tell what the program can do, and nothing about this server.

    Args:
        ingress: Of the server; its limits stand in the document.
    """
    described = document(ingress.config)
    data = json.dumps(described, ensure_ascii=False).encode()
    page = docs_page.page(described).encode()
    style = base64.b64encode(hashlib.sha256(docs_page.STYLE.encode()).digest()).decode()
    headers = {
        "Content-Security-Policy": (
            f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }

    async def openapi(request: Request) -> Response:
        return Response(data, media_type="application/json")

    async def docs(request: Request) -> Response:
        return Response(page, media_type="text/html", headers=headers)

    return [Route("/openapi.json", openapi, methods=["GET"]), Route("/docs", docs, methods=["GET"])]
