"""The application: every route behind one ingress, one log, and one shape of errors."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from photonlite.server import metrics
from photonlite.server.calls import ServedModel
from photonlite.server.config import ServerConfig
from photonlite.server.errors import to_http
from photonlite.server.images import RequestImages
from photonlite.server.ingress import Ingress
from photonlite.server.metrics import HttpMetrics
from photonlite.server.routes import docs, health, moondream, openai, playground, realtime_socket
from photonlite.server.transport.middleware import AccessLog, ErrorResponses


def create_app(model: ServedModel, config: ServerConfig, images: RequestImages | None = None) -> Starlette:
    """Build the ASGI application; `app.state.ingress` is its ingress, `app.state.http` counts its requests.

    Args:
        model: Answers calls; its owner closes it.
        config: How to serve.
        images: Decodes images; by default the model does it in this process.
    """
    ingress = Ingress(config, model, images=images)
    http = HttpMetrics()
    app = Starlette(
        routes=_routes(ingress, http),
        middleware=[
            Middleware(AccessLog, config=config, http=http),
            *_cors(config),
            Middleware(ErrorResponses, config=config),
        ],
        exception_handlers={HTTPException: _refuse},
    )
    app.state.ingress = ingress
    app.state.http = http
    return app


def _routes(ingress: Ingress, http: HttpMetrics) -> list[BaseRoute]:
    return [
        *moondream.routes(ingress),
        *openai.routes(ingress),
        *realtime_socket.routes(ingress),
        *health.routes(ingress),
        *metrics.routes(ingress, http),
        *docs.routes(ingress),
        *playground.routes(),
    ]


def _cors(config: ServerConfig) -> list[Middleware]:
    if not config.cors_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Moondream-Auth"],
            expose_headers=["Retry-After", "X-Request-ID"],
        )
    ]


async def _refuse(request: Request, error: Exception) -> Response:
    return to_http(error).response()
