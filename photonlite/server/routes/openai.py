"""`/v1/chat/completions` and `/v1/models`: what OpenAI's own clients call, answered by `query`.

How a conversation becomes a question stands in `openai_messages`, which parameters count in `openai_request`.
"""

import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from photonlite.results import Metrics
from photonlite.server.backend import Call
from photonlite.server.bodies import completion
from photonlite.server.bodies.chat import ChatRequest, read_chat
from photonlite.server.bodies.completion import Heading
from photonlite.server.bodies.parsing import read_json
from photonlite.server.errors import HttpError
from photonlite.server.ingress import Ingress
from photonlite.server.limits.limiter import Permit
from photonlite.server.routes.sse import EventResponse, event, failure_event
from photonlite.server.routes.stop_sequences import StopSequences
from photonlite.server.transport.disconnect import WatchedStream


def routes(ingress: Ingress) -> list[BaseRoute]:
    """Give the routes of the interface.

    Args:
        ingress: Admits requests and answers them.
    """
    started = int(time.time())

    async def chat(request: Request) -> Response:
        async with await ingress.admit(request) as permit:
            _check_content_type(request)
            body = await ingress.body(request, permit)
            with ingress.parsing(request, body, permit):
                asked = read_chat(read_json(body))
            ingress.check_model(asked.model)
            return await _answer(ingress, request, permit, asked)

    async def models(request: Request) -> Response:
        async with await ingress.admit(request):
            return JSONResponse({"object": "list", "data": [completion.model(ingress.backend.name, started)]})

    async def model(request: Request) -> Response:
        async with await ingress.admit(request):
            name = request.path_params["model"]
            ingress.check_model(name)
            return JSONResponse(completion.model(name, started))

    return [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{model:path}", model, methods=["GET"]),  # names of the Hub have a slash
    ]


async def _answer(ingress: Ingress, request: Request, permit: Permit, asked: ChatRequest) -> Response:
    images = asked.conversation.images
    ingress.check_images(len(images))
    image = await ingress.load_image(images[0], permit) if images else None
    arguments = {"question": asked.conversation.question, "settings": asked.settings, **asked.form}
    call = Call("query", image, arguments, stream=asked.stream)
    heading = Heading(f"chatcmpl-{permit.id}", int(time.time()), ingress.backend.name, asked.include_usage)
    if asked.stream:
        pieces = await ingress.stream(call, permit, request)
        return EventResponse(_events(pieces, asked, heading), pieces, permit)
    result = await ingress.answer(call, permit, request)
    stop = StopSequences(asked.stop)
    text = stop.feed(result.get("text", result["answer"])) + stop.flush()  # of an object, the JSON
    return JSONResponse(heading.completion(text, _reason(stop, result), _metrics(result)))


async def _events(pieces: WatchedStream, asked: ChatRequest, heading: Heading) -> AsyncGenerator[bytes, None]:
    yield event(heading.chunk({"role": "assistant", "content": ""}))
    stop = StopSequences(asked.stop)
    try:
        async for piece in pieces:
            if text := stop.feed(piece):
                yield event(heading.chunk({"content": text}))
            if stop.met and not asked.include_usage:
                break  # closing the pieces cancels the rest; who wants to know what it cost waits for its end
    except Exception as error:
        yield failure_event(error)
        return
    if text := stop.flush():
        yield event(heading.chunk({"content": text}))
    yield event(heading.end(_reason(stop, pieces.result)))
    if asked.include_usage:
        yield event(heading.usage_chunk(_metrics(pieces.result)))
    yield event("[DONE]")


def _check_content_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"Content-Type is {kind[:60]!r}: send application/json"
        raise HttpError(415, message, code="unsupported_content_type")


def _reason(stop: StopSequences, result: Mapping[str, Any]) -> str | None:
    return "stop" if stop.met else getattr(result, "finish_reason", None)


def _metrics(result: Mapping[str, Any]) -> Metrics | None:
    return getattr(result, "metrics", None)
