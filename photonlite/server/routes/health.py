"""`/health`: whether the engine lives. `/ready`: whether it can be sent work."""

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from photonlite.server.calls import ServedModel
from photonlite.server.ingress import Ingress

STALLED_S = 30.0
"""Seconds without a tick after which an engine counts as stuck: longer than any step takes."""

_DEAD = "the engine has stopped: the server ends, and has to be started again"


def routes(ingress: Ingress) -> list[BaseRoute]:
    """Return the routes of `/health` and `/ready`; they need no key, since they say nothing about requests."""

    async def health(request: Request) -> JSONResponse:
        if not ingress.model.alive:
            return JSONResponse({"status": "dead", "reason": _DEAD}, 503)
        return JSONResponse({"status": "alive"})

    async def ready(request: Request) -> JSONResponse:
        reason = "the server is stopping" if ingress.draining else unfit(ingress.model)
        if reason is not None:
            return JSONResponse({"status": "unavailable", "reason": reason}, 503)
        return JSONResponse({"status": "ready", "model": ingress.model.name})

    return [Route("/health", health, methods=["GET"]), Route("/ready", ready, methods=["GET"])]


def unfit(model: ServedModel) -> str | None:
    """Return why a model cannot be sent work; None if it can."""
    if not model.alive:
        return _DEAD
    if not model.skills:
        return "the model has no skill: load another checkpoint"
    silent = model.last_tick_s
    if silent > STALLED_S:
        return f"the engine has given no sign of life for {silent:.0f} seconds"
    return None
