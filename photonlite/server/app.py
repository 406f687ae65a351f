"""The application: every route behind one ingress, one log, and one shape of errors."""

from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from photonlite.server.calls import ServedModel
from photonlite.server.config import ServerConfig
from photonlite.server.errors import to_http
from photonlite.server.images import RequestImages
from photonlite.server.ingress import Ingress
from photonlite.server.link import NO_RESTARTS
from photonlite.server.metrics import HttpMetrics
from photonlite.server.routes import adapters, docs, moondream, openai, playground, realtime, service
from photonlite.server.transport.middleware import AccessLog, ErrorResponses
from photonlite.server.transport.spans import find_spans
from photonlite.server.transport.trace_context import ID_HEADER


def create_app(
    model: ServedModel,
    config: ServerConfig,
    images: RequestImages | None = None,
    restarts: Mapping[str, int] = NO_RESTARTS,
) -> Starlette:
    """Build the ASGI application; its `state` has `ingress` and `http`. The caller closes the model.

    `restarts` are those of the process before this one, by reason, for the metrics.
    """
    ingress = Ingress(config, model, images=images)
    http = HttpMetrics()
    app = Starlette(
        routes=[
            *moondream.routes(ingress),
            *openai.routes(ingress),
            *adapters.routes(ingress),
            *realtime.routes(ingress),
            *service.routes(ingress, http, restarts),
            *docs.routes(ingress),
            *playground.routes(),
        ],
        middleware=[
            Middleware(AccessLog, config=config, http=http, spans=find_spans()),
            *cors(config),
            Middleware(ErrorResponses, config=config),
        ],
        exception_handlers={HTTPException: _refuse},
    )
    app.router.default = _unknown_path
    app.state.ingress = ingress
    app.state.http = http
    return app


def cors(config: ServerConfig) -> list[Middleware]:
    """Return the middleware that lets pages of the configured origins read answers; none without such origins."""
    if not config.cors_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Moondream-Auth", ID_HEADER, "traceparent", "tracestate"],
            expose_headers=["Retry-After", ID_HEADER],
        )
    ]


async def _unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a WebSocket like a request: Starlette would refuse it with 403."""
    raise to_http(HTTPException(404))


async def _refuse(request: Request, error: Exception) -> Response:
    raise to_http(error)
