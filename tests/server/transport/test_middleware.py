import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message, Scope
from starlette.websockets import WebSocket

from photonlite.errors import PromptError
from photonlite.server.config import ServerConfig
from photonlite.server.errors import HttpError
from photonlite.server.transport.middleware import ErrorResponses
from tests.server.asgi import Exchange, post
from tests.serving import run


async def fail(request: Request) -> Response:
    raise KeyError("a secret")


async def refuse(request: Request) -> Response:
    raise HttpError(429, "later", headers={"Retry-After": "7"})


async def complain(request: Request) -> Response:
    await request.body()
    raise PromptError("the question is empty")


async def tell(request: Request) -> Response:
    return JSONResponse({"id": request.scope["state"]["request_id"]})


async def break_off(request: Request) -> Response:
    async def pieces() -> Any:
        yield b"one"
        raise KeyError("late")

    return StreamingResponse(pieces())


async def turn_away(websocket: WebSocket) -> None:
    raise HttpError(401, "no key")


async def break_down(websocket: WebSocket) -> None:
    await websocket.accept()
    raise KeyError("late")


APP = Starlette(
    routes=[
        *[Route(f"/{work.__name__}", work, methods=["POST"]) for work in (fail, refuse, complain, tell, break_off)],
        *[WebSocketRoute(f"/{work.__name__}", work) for work in (turn_away, break_down)],
    ],
    middleware=[Middleware(ErrorResponses, config=ServerConfig())],
)


def test_unforeseen_errors_are_logged_but_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    answer = run(post(APP, "/fail", b""))
    assert (answer.status, answer.code) == (500, "internal_error")
    assert "secret" not in answer.body.decode()
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
    assert record.__dict__["fields"] == {"id": answer.headers["x-request-id"]}


def test_an_error_keeps_its_status_message_and_headers() -> None:
    answer = run(post(APP, "/complain", b"x"))
    assert (answer.status, answer.json["error"]["message"]) == (422, "the question is empty")
    assert run(post(APP, "/refuse", b"")).headers["retry-after"] == "7"


def test_every_response_has_the_id_of_its_request() -> None:
    first, second = (run(post(APP, "/tell", b"")) for _ in range(2))
    assert first.json["id"] == first.headers["x-request-id"] != second.headers["x-request-id"]


def test_a_refusal_is_sent_at_once_and_ends_when_the_client_has_sent_its_request() -> None:
    async def main() -> None:
        async with Exchange(APP, "/refuse", None, {"content-length": "10"}) as exchange:
            await exchange.until(lambda: len(exchange.messages) == 2)
            assert exchange.json["error"]["message"] == "later"
            assert exchange.messages[1]["more_body"]
            assert exchange.headers["connection"] == "close", "the rest of the request is not parsed"
            assert not exchange.task.done()
            exchange.leave()
            await exchange.finish()
        assert not exchange.messages[2]["more_body"]

    run(main())


def test_a_client_that_expects_100_continue_is_not_waited_for() -> None:
    async def main() -> None:
        headers = {"content-length": "10", "expect": "100-continue"}
        exchange = await Exchange(APP, "/refuse", None, headers).finish()
        assert (exchange.status, exchange.asked) == (429, 0)

    run(main())


def test_a_broken_response_does_not_end_normally() -> None:
    async def main() -> None:
        exchange = Exchange(APP, "/break_off", b"", {})
        with pytest.raises(RuntimeError, match="broke off"):
            await exchange.finish()
        assert exchange.messages[-1] == {"type": "http.response.body", "body": b"one", "more_body": True}

    run(main())


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("/turn_away", ["websocket.http.response.start", "websocket.http.response.body"]),
        ("/break_down", ["websocket.accept", "websocket.close"]),
    ],
)
def test_a_websocket_is_refused_with_the_error_or_closed(path: str, kinds: list[str]) -> None:
    sent: list[Message] = []
    scope: Scope = {
        "type": "websocket",
        "path": path,
        "headers": [],
        "query_string": b"",
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
    }

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(APP(scope, receive, send))
    assert [message["type"] for message in sent] == kinds
    assert sent[0].get("status", 101) in (401, 101)
    assert b"x-request-id" in dict(sent[0]["headers"])
    assert sent[-1].get("code", 1011) == 1011
