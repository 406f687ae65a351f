"""Moondream's own API: POST /v1/caption, /v1/query, /v1/detect, /v1/point and /v1/segment."""

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from photonlite.server.backend import SKILLS, Call, Skill
from photonlite.server.bodies.parsing import read_skill_request
from photonlite.server.ingress import Ingress
from photonlite.server.limits.limiter import Permit
from photonlite.server.routes.sse import EventResponse, event, failure_event
from photonlite.server.transport.disconnect import WatchedStream


def routes(ingress: Ingress) -> list[BaseRoute]:
    """Give a route for each skill.

    Args:
        ingress: Of the server.
    """
    return [Route(f"/v1/{skill}", partial(_handle, ingress, skill), methods=["POST"]) for skill in SKILLS]


async def _handle(ingress: Ingress, skill: Skill, request: Request) -> Response:
    async with await ingress.admit(request) as permit:
        call = await _read_call(ingress, skill, request, permit)
        if call.stream and skill != "segment":
            pieces = await ingress.stream(call, permit, request)
            return EventResponse(_text_events(pieces, permit), pieces, permit)
        answer = _body(skill, await ingress.answer(call, permit, request), permit)
        if call.stream:
            return Response(b"".join(_outline_events(answer)), media_type=EventResponse.media_type)
        return JSONResponse(answer)


async def _read_call(ingress: Ingress, skill: Skill, request: Request, permit: Permit) -> Call:
    body = await ingress.body(request, permit)
    with ingress.parsing(request, body, permit):
        read, images = read_skill_request(skill, request, body)
    ingress.check_model(read.model)
    ingress.check_images(len(images))
    loaded = [await ingress.load_image(image, permit) for image in images]
    return Call(skill, loaded[0] if loaded else None, read.arguments, read.stream, strict=read.strict)


def _body(skill: Skill, result: Mapping[str, Any], permit: Permit) -> dict[str, Any]:
    outcome = _outcome(result, permit)
    if skill == "segment":  # Moondream's client reads one outline, beside the list that photonlite gives
        outline: Mapping[str, Any] = next(iter(result["segments"]), {})
        result = {**result, "path": outline.get("path", ""), "bbox": outline.get("bbox")}
    return {**result, **outcome}


def _outcome(result: Mapping[str, Any], permit: Permit) -> dict[str, Any]:
    metrics = getattr(result, "metrics", None)
    return {
        "request_id": permit.id,
        "metrics": None if metrics is None else metrics.to_dict(),
        "finish_reason": getattr(result, "finish_reason", None),
        "truncated": getattr(result, "truncated", None),
    }


async def _text_events(pieces: WatchedStream, permit: Permit) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in pieces:
            yield event({"chunk": piece, "completed": False})
    except Exception as error:
        yield failure_event(error)
        return
    beside = {name: pieces.result[name] for name in ("reasoning", "scores") if name in pieces.result}
    yield event({"chunk": "", "completed": True, **beside, **_outcome(pieces.result, permit)})


def _outline_events(answer: Mapping[str, Any]) -> list[bytes]:
    path, bbox = answer["path"], answer["bbox"]
    rest = {name: value for name, value in answer.items() if name not in ("path", "bbox")}
    return [
        event({"type": "bbox", "bbox": bbox}),
        event({"type": "path_delta", "chunk": path, "completed": False}),
        event({"type": "final", "path": path, "bbox": bbox, "completed": True, **rest}),
    ]
