"""An application that is asked by messages."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from photonlite.ray.hosting import HostedApp, UnknownConnectionError, carried_scope
from tests.serving import run

START = {"type": "http.response.start", "status": 200, "headers": []}


def part(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def collected(batches: AsyncGenerator[list[Message], None]) -> list[Message]:
    return [message async for batch in batches for message in batch]


def test_a_request_gets_its_body_and_gives_all_messages_in_order() -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        asked = await receive()
        await send(START)
        await asyncio.sleep(0)
        for number in range(5):
            await send(part(asked["body"] + bytes([number]), more=number < 4))

    sent = run(collected(HostedApp(echo).answer({"type": "http"}, b"asked")))

    assert sent == [START, *(part(b"asked" + bytes([number]), more=number < 4) for number in range(5))]


def test_pieces_come_as_they_are_sent_and_those_that_wait_come_together() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def pieces(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            await gate.wait()
            await send(part(b"1", more=True))
            await send(part(b"2"))

        batches = HostedApp(pieces).answer({"type": "http"}, b"")
        assert await anext(batches) == [START]
        gate.set()
        assert await anext(batches) == [part(b"1", more=True), part(b"2")]
        with pytest.raises(StopAsyncIteration):
            await anext(batches)

    run(main())


def test_closing_the_answer_tells_the_application_that_the_client_left() -> None:
    async def main() -> None:
        left = asyncio.Event()

        async def patient(scope: Scope, receive: Receive, send: Send) -> None:
            assert (await receive())["type"] == "http.request"
            await send(START)
            assert (await receive())["type"] == "http.disconnect"
            left.set()

        batches = HostedApp(patient).answer({"type": "http"}, b"")
        await anext(batches)
        assert not left.is_set()
        await batches.aclose()
        await left.wait()

    run(main())


def test_what_the_application_raises_is_raised_behind_what_it_sent() -> None:
    async def main() -> list[Message]:
        async def broken(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            raise ValueError("broken")

        batches = HostedApp(broken).answer({"type": "http"}, b"")
        seen = await anext(batches)
        with pytest.raises(ValueError, match="broken"):
            await anext(batches)
        return seen

    assert run(main()) == [START]


async def repeat(scope: Scope, receive: Receive, send: Send) -> None:
    """Accept a WebSocket, and send back what comes until it is closed."""
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})
    await send({"type": "websocket.close", "code": message["code"]})


def test_a_websocket_receives_what_is_pushed_to_it() -> None:
    async def main() -> None:
        hosted = HostedApp(repeat)
        sockets: dict[str, Any] = {name: hosted.connect({"type": "websocket"}, name) for name in ("one", "two")}
        for socket in sockets.values():
            assert await anext(socket) == [{"type": "websocket.accept"}]
        for name, socket in reversed(sockets.items()):
            hosted.push(name, {"type": "websocket.receive", "text": name})
            assert await anext(socket) == [{"type": "websocket.send", "text": name}]
        hosted.push("one", {"type": "websocket.disconnect", "code": 1000})
        assert await collected(sockets["one"]) == [{"type": "websocket.close", "code": 1000}]
        with pytest.raises(UnknownConnectionError):
            hosted.push("one", {"type": "websocket.receive", "text": "late"})
        await sockets["two"].aclose()
        with pytest.raises(UnknownConnectionError):
            hosted.push("two", {"type": "websocket.receive", "text": "late"})

    run(main())


def test_a_scope_is_carried_without_what_belongs_to_its_process() -> None:
    scope = {"type": "http", "path": "/", "headers": [(b"a", b"b")], "app": object(), "state": {"thing": object()}}

    assert carried_scope(scope, "id") == {
        "type": "http",
        "path": "/",
        "headers": [(b"a", b"b")],
        "state": {"request_id": "id"},
    }
