"""WebSockets on the transport: handshakes that are refused, and frames that cost more than their bytes."""

import asyncio
import io
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from uvicorn.server import ServerState

from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.transport.connections import LimitedConfig
from photonlite.server.transport.logs import json_lines
from photonlite.server.transport.pacing import RATE, READ_BYTES, ROUND, STEP_BYTES
from photonlite.server.transport.sockets import SocketConnection
from tests.server.fake import FakeModel
from tests.server.live import live
from tests.server.transport.test_connections import UPGRADE, read_all, refusal
from tests.server.transport.test_pacing import Transport, one_round
from tests.server.virtual import run_virtual

HANDSHAKE = UPGRADE.replace(b"/socket", b"/v1/realtime")


def frame(kind: int, data: bytes = b"", *, last: bool = True) -> bytes:
    return bytes([0x80 * last | kind, 0x80 | len(data), 0, 0, 0, 0]) + data


PING, TEXT, PIECE = frame(9, b"x"), frame(1, b'{"stats":true}'), frame(0, last=False)
BEGIN = frame(2, last=False)


async def accepting(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def opened(app: Any = accepting, request: bytes = HANDSHAKE) -> tuple[SocketConnection, Transport]:
    config = LimitedConfig(app, ServerConfig(), refused=lambda status, code, id: None)
    config.load()
    config.app.state = create_app(FakeModel(), ServerConfig()).state
    connection, transport = SocketConnection(config, ServerState(), {}), Transport()
    connection.connection_made(transport)
    connection.data_received(request)
    for _ in range(3):
        await one_round()
    return connection, transport


def test_frames_are_parsed_in_slices() -> None:
    async def main() -> None:
        connection, transport = await opened()
        transport.written = b""
        connection.data_received(2000 * PING)
        answered = [0]
        while not answered[1:] or connection.waits:
            await one_round()
            answered.append(transport.written.count(b"\x8a\x01x"))

        assert answered[-1] == 2000
        assert max(after - before for before, after in pairwise(answered)) <= ROUND + STEP_BYTES // len(PING)

    run_virtual(main())


def test_a_large_frame_is_read_and_parsed_in_a_few_steps() -> None:
    received = []

    async def keeping(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            received.append(message["bytes"])

    async def main() -> None:
        connection, _ = await opened(keeping)
        pixels = bytes(640 * 480 * 3)
        first = connection.used
        left = bytes([0x82, 0x80 | 127, *len(pixels).to_bytes(8, "big"), 0, 0, 0, 0]) + pixels
        while left:
            take = len(connection.get_buffer(len(left)))
            connection.data_received(left[:take])
            left = left[take:]
            while connection.waits:
                await one_round()
        for _ in range(3):
            await one_round()

        assert received == [pixels]
        assert connection.used - first < 100, "60 of them a second take less than a third of the allowance"

    run_virtual(main())


@pytest.mark.parametrize("message", [PING, TEXT, PIECE, frame(2), frame(10)], ids=["ping", "text", "piece", "", "pong"])
def test_frames_of_every_kind_use_up_the_allowance(message: bytes) -> None:
    async def main() -> None:
        connection, transport = await opened()
        connection.data_received(BEGIN if message is PIECE else PING)
        sent, data = 0, READ_BYTES // len(message) * message
        for _ in range(5000):
            await one_round()
            if transport.reads:
                connection.data_received(data)
                sent += len(data) // len(message)

        assert sent <= RATE + 2 * READ_BYTES // len(message)
        assert not transport.reads

    run_virtual(main())


def test_a_client_that_does_not_read_its_pongs_is_not_read() -> None:
    async def main() -> None:
        connection, transport = await opened()
        connection.pause_writing()
        before = len(transport.written)
        connection.data_received(100 * PING)
        for _ in range(5):
            await one_round()
        assert (len(transport.written), transport.reads) == (before, False)

        connection.resume_writing()
        for _ in range(5):
            await one_round()
        assert transport.written[before:].count(b"\x8a\x01x") == 100
        assert transport.reads
        connection.connection_lost(None)

    run_virtual(main())


def test_messages_wait_on_the_socket_until_the_application_takes_them() -> None:
    taking = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        for _ in range(1000):
            await taking.wait()
            await receive()

    async def main() -> None:
        connection, transport = await opened(slow)
        for _ in range(20):
            connection.data_received(1000 * TEXT)  # as if reading had been resumed each time
            for _ in range(3):
                await one_round()
        assert connection.queue.qsize() <= STEP_BYTES // len(TEXT) + 1
        taking.set()
        for _ in range(300):
            await one_round()
            assert connection.queue.qsize() <= STEP_BYTES // len(TEXT) + 1
        assert not transport.reads, "more is read although messages have not been parsed"

    run_virtual(main())


@pytest.mark.parametrize("frames", [b"\xff\xff garbage", 100 * PING, frame(1, b"early")])
def test_frames_before_the_answer_to_the_handshake_wait_for_it(frames: bytes) -> None:
    accept = asyncio.Event()

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await accept.wait()
        await send({"type": "websocket.accept"})
        await receive()

    async def main() -> None:
        connection, transport = await opened(late)
        connection.data_received(frames)
        for _ in range(3):
            await one_round()
        assert (transport.written, transport.reads) == (b"", False)
        accept.set()
        for _ in range(10):
            await one_round()
        assert transport.written.startswith(b"HTTP/1.1 101")

    run_virtual(main())


REFUSED: list[tuple[Callable[[bytes], bytes], int, str]] = [
    (lambda request: request.replace(b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n", b""), 400, "handshake"),
    (lambda request: request.replace(b"AAAAAAAAAAAAAAAAAAAAAA==", b"short"), 400, "handshake"),
    (lambda request: request.replace(b"Version: 13", b"Version: 12"), 400, "handshake"),
    (lambda request: request.replace(b"GET", b"POST"), 405, "handshake"),
    (lambda request: request.replace(b"\r\n\r\n", b"\r\n" + 150 * b"X: 1\r\n" + b"\r\n"), 431, "headers"),
    (lambda request: request.replace(b"\r\n\r\n", b"\r\nOrigin: http://elsewhere\r\n\r\n"), 403, "origin"),
    (lambda request: request.replace(b"realtime", b"nothing"), 404, "path"),
    (lambda request: request.replace(b"Bearer secret", b"Bearer other"), 401, "key"),
]


@pytest.mark.parametrize(("change", "status", "code"), REFUSED)
def test_every_refused_handshake_is_json_and_logs_no_error(
    change: Callable[[bytes], bytes], status: int, code: str
) -> None:
    stream = io.StringIO()
    with json_lines(stream), live(api_keys=("secret",)) as server, server.connect() as client:
        client.sendall(change(HANDSHAKE.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer secret\r\n\r\n")))
        answer = read_all(client)
        head, _, _ = answer.partition(b"\r\n\r\n")

        found, error = refusal(answer)
        assert (found, code in error["code"]) == (status, True), error
        assert set(error) == {"message", "type", "code"}
        assert b"application/json" in head
        assert head.lower().count(b"\r\nx-request-id: ") == 1
        numbers = server.get("/metrics", Authorization="Bearer secret")[1].decode()

    assert f'status="{status}"}} 1.0' in numbers
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert not [line for line in lines if line.get("level")]
    assert status in [line.get("status") for line in lines]


def test_a_handshake_that_the_server_cannot_finish_is_refused_with_503() -> None:
    async def cancelled(scope: Any, receive: Any, send: Any) -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        _, transport = await opened(cancelled)
        status, error = refusal(transport.written)
        assert (status, error["code"]) == (503, "stopped")

    run_virtual(main())
