"""Moondream's own API: POST /v1/caption, /v1/query, /v1/detect, /v1/point and /v1/segment."""

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from photonlite.server.bodies.reading import read_body, read_skill_request
from photonlite.server.bodies.skills import outcome_of
from photonlite.server.calls import SKILLS, Call, Skill
from photonlite.server.ingress import Ingress
from photonlite.server.limits.limiter import Permit
from photonlite.server.transport.streams import EventResponse, WatchedStream, event, failure_event


def routes(ingress: Ingress) -> list[BaseRoute]:
    return [Route(f"/v1/{skill}", partial(_handle, ingress, skill), methods=["POST"]) for skill in SKILLS]


async def _handle(ingress: Ingress, skill: Skill, request: Request) -> Response:
    async with await ingress.admit(request) as permit:
        call, streamed = await _read_call(ingress, skill, request, permit)
        if call.stream:
            stream = await ingress.stream(call, permit, request)
            return EventResponse(_text_events(stream, permit, request.scope), stream, permit)
        result = await ingress.answer(call, permit, request)
        answer = {**result, **outcome_of(result), "request_id": permit.id}
        if skill != "segment":
            return JSONResponse(answer)
        # Moondream's client reads one outline, beside the list that photonlite returns.
        first: Mapping[str, Any] = next(iter(result["segments"]), {})
        outline = {"path": first.get("path", ""), "bbox": first.get("bbox")}
        if not streamed:
            return JSONResponse({**answer, **outline})
        events = (
            {"type": "bbox", "bbox": outline["bbox"]},
            {"type": "path_delta", "chunk": outline["path"], "completed": False},
            {"type": "final", "completed": True, **outline, **answer},
        )
        return Response(b"".join(map(event, events)), media_type=EventResponse.media_type)


async def _read_call(ingress: Ingress, skill: Skill, request: Request, permit: Permit) -> tuple[Call, bool]:
    body = await read_body(request, ingress.config, permit)
    with ingress.parsing(request, body, permit):
        read, images = read_skill_request(skill, request, body)
    adapter = ingress.adapter_of(read.model, read.asked_adapter)
    ingress.check_images(len(images))
    loaded = [await ingress.load_image(image, permit) for image in images]
    stream = read.stream and skill != "segment"  # an outline is answered as a whole
    image = loaded[0] if loaded else None
    return Call(skill, image, read.arguments, stream, strict=read.strict, adapter=adapter), read.stream


async def _text_events(stream: WatchedStream, permit: Permit, scope: Scope) -> AsyncGenerator[bytes, None]:
    try:
        async for text in stream:
            yield event({"chunk": text, "completed": False})
    except Exception as error:
        yield failure_event(error, scope)
        return
    result = stream.result
    more = {name: result[name] for name in ("reasoning", "scores") if name in result}
    yield event({"chunk": "", "completed": True, **more, **outcome_of(result), "request_id": permit.id})
