"""`/v1/chat/completions` and `/v1/models`: what OpenAI's own clients call, answered by `chat`."""

import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from photonlite.server.bodies import chat
from photonlite.server.bodies.base import Json, validate
from photonlite.server.bodies.reading import media_type, read_body, read_json_object
from photonlite.server.calls import Call, image_places
from photonlite.server.errors import HttpError
from photonlite.server.ingress import Ingress
from photonlite.server.limits.limiter import Permit
from photonlite.server.transport.streams import EventResponse, WatchedStream, event, failure_event


def routes(ingress: Ingress) -> list[BaseRoute]:
    started = int(time.time())

    async def complete(request: Request) -> Response:
        async with await ingress.admit(request) as permit:
            if media_type(request) != "application/json":
                message = f"Content-Type is {media_type(request)[:60]!r}: send application/json"
                raise HttpError(415, message, code="unsupported_content_type")
            body = await read_body(request, ingress.config, permit)
            with ingress.parsing(request, body, permit):
                asked = validate(chat.ChatCompletionRequest, read_json_object(body))
                arguments = asked.arguments
            adapter = ingress.adapter_of(asked.model)
            return await _answer(ingress, request, permit, asked, arguments, adapter)

    async def models(request: Request) -> Response:
        async with await ingress.admit(request):
            base = ingress.model.name
            names = [base, *(f"{base}:{one.name}" for one in ingress.model.adapters())]
            entries = [chat.ModelEntry(id=name, created=started) for name in names]
            return JSONResponse(chat.ModelList(data=entries).model_dump())

    async def model(request: Request) -> Response:
        async with await ingress.admit(request):
            name = request.path_params["model"]
            ingress.adapter_of(name)
            return JSONResponse(chat.ModelEntry(id=name, created=started).model_dump())

    return [
        Route("/v1/chat/completions", complete, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{model:path}", model, methods=["GET"]),  # names of the Hub have a slash
    ]


async def _answer(
    ingress: Ingress,
    request: Request,
    permit: Permit,
    asked: chat.ChatCompletionRequest,
    arguments: Json,
    adapter: str | None,
) -> Response:
    places = image_places(arguments)
    ingress.check_images(len(asked.images), places=len(places))
    images = await ingress.load_images(asked.images, places, permit, request)
    call = Call("chat", None, arguments, stream=asked.stream, images=tuple(images), adapter=adapter)
    name = ingress.model.name if adapter is None else f"{ingress.model.name}:{adapter}"
    head: Json = {"id": f"chatcmpl-{permit.id}", "created": int(time.time()), "model": name}
    if asked.stream:
        stream = await ingress.stream(call, permit, request)
        return EventResponse(_events(stream, asked, head, request.scope), stream, permit)
    result = await ingress.answer(call, permit, request)
    text = result.get("text", result["answer"])  # of an object, the JSON
    choice = chat.ChatChoice(message=chat.ChatAnswer(content=text), finish_reason=_reason(result))
    return JSONResponse(chat.ChatCompletion(**head, choices=[choice], usage=chat.Usage.of(result)).model_dump())


async def _events(
    stream: WatchedStream, asked: chat.ChatCompletionRequest, head: Json, scope: Scope
) -> AsyncGenerator[bytes, None]:
    left_out = None if asked.include_usage else {"usage"}

    def chunk(choices: list[chat.ChunkChoice], usage: chat.Usage | None = None) -> bytes:
        return event(chat.ChatCompletionChunk(**head, choices=choices, usage=usage).model_dump(exclude=left_out))

    def piece(text: str, **more: str) -> bytes:
        return chunk([chat.ChunkChoice(delta={**more, "content": text}, finish_reason=None)])

    yield piece("", role="assistant")
    try:
        async for text in stream:
            yield piece(text)
    except Exception as error:
        yield failure_event(error, scope)
        return
    yield chunk([chat.ChunkChoice(delta={}, finish_reason=_reason(stream.result))])
    if asked.include_usage:
        yield chunk([], chat.Usage.of(stream.result))
    yield event("[DONE]")


def _reason(result: Mapping[str, Any]) -> Literal["stop", "length"]:
    return "length" if getattr(result, "finish_reason", None) == "length" else "stop"
