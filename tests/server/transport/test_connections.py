"""Clients that send, read or leave too slowly, on real sockets."""

import asyncio
import contextlib
import io
import json
import random
import select
import socket
import threading
import zlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from photonlite.server.config import ServerConfig
from photonlite.server.ingress import Ingress
from photonlite.server.transport.connections import MAX_HEADER_BYTES, MAX_HEADERS
from photonlite.server.transport.logs import json_lines
from tests.server.fake import FakeModel
from tests.server.live import GUARD, Live, live, wait_until

SOON = 0.1
LATE = 1000.0
"""Seconds that pass on the event loop's clock only: no machine is so busy that a client comes too late by itself."""
GET = b"GET /short HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = (
    b"GET /socket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


class Endless:
    """Routes that answer shortly, or send until the client has gone."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    async def short(self, request: Request) -> Response:
        return PlainTextResponse("short")

    async def stream(self, request: Request) -> Response:
        return StreamingResponse(self._chunks())

    async def socket(self, websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            async for chunk in self._chunks():
                await websocket.send_bytes(chunk)
        finally:
            self.ended.set()

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield bytes(65536)
                await asyncio.sleep(0)  # uvicorn drops what is sent to a closed connection without yielding
        finally:
            self.ended.set()

    def app(self) -> Starlette:
        app = Starlette(
            routes=[
                Route("/short", self.short, methods=["GET", "POST"]),
                Route("/stream", self.stream),
                WebSocketRoute("/socket", self.socket),
            ]
        )
        app.state.ingress = Ingress(ServerConfig(), FakeModel())
        return app


@contextlib.contextmanager
def serving(endless: Endless | None = None, **settings: Any) -> Iterator[Live]:
    with live(app=(endless or Endless()).app(), **settings) as server:
        yield server


def pour(client: socket.socket, data: bytes, times: int) -> None:
    """Send the same again and again until the server says something."""
    with contextlib.suppress(ConnectionError):
        for _ in range(times):
            if select.select([client], [], [], 0)[0]:
                return
            client.sendall(data)
        if not select.select([client], [], [], GUARD)[0]:  # what was sent may still be on its way
            pytest.fail("the server takes it all without a word")


def read_all(client: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := client.recv(65536):
            data += chunk
    return data


def read_response(client: socket.socket) -> bytes:
    data = b""
    while b"short" not in data:
        piece = client.recv(65536)
        assert piece, f"the connection ended behind {data!r}"
        data += piece
    return data


def send_headers(server: Live, client: socket.socket, part: bytes) -> None:
    """Send part of a request's headers, and wait until the server's only connection has read it."""

    def is_read() -> bool:
        return any(one.conn.trailing_data[0].endswith(part) for one in server.server.server_state.connections)  # type: ignore[union-attr]

    client.sendall(part)
    wait_until(lambda: server.call(is_read))


def refusal(answer: bytes) -> tuple[int, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def test_slow_headers_are_refused() -> None:
    with serving(header_timeout_s=LATE) as server, server.connect() as client:
        for part in (b"GET /short HTTP/1.1\r\n", b"X-More: 1\r\n"):
            send_headers(server, client, part)
            server.advance(LATE / 2)

        status, error = refusal(read_all(client))

    assert status == 408
    assert error["code"] == "header_timeout"
    assert "1000 seconds" in error["message"]


def test_a_silent_client_is_closed_without_a_response() -> None:
    with serving(header_timeout_s=SOON) as server, server.connect() as client:
        assert read_all(client) == b""


def test_the_next_request_of_a_connection_has_the_same_time() -> None:
    with serving(header_timeout_s=LATE) as server, server.connect() as client:
        client.sendall(GET)
        read_response(client)
        send_headers(server, client, b"GET /short HT")
        server.advance(LATE)

        assert refusal(read_all(client))[0] == 408


def test_a_connection_without_a_next_request_is_closed() -> None:
    with serving(header_timeout_s=LATE) as server, server.connect() as client:
        client.sendall(GET)
        read_response(client)
        server.advance(LATE)

        assert read_all(client) == b""


def test_a_client_in_time_is_answered_again_and_again() -> None:
    with serving(header_timeout_s=GUARD) as server, server.connect() as client:
        for _ in range(3):
            client.sendall(GET[:20])
            client.sendall(GET[20:])
            assert b" 200 " in read_response(client)


def test_two_requests_at_once_are_both_answered() -> None:
    with serving() as server, server.connect() as client:
        client.sendall(GET + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))

        assert read_all(client).count(b" 200 ") == 2


def test_the_rest_of_an_answered_body_has_a_deadline() -> None:
    with serving(body_timeout_s=SOON) as server, server.connect() as client:
        client.sendall(b"POST /short HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nsome")
        read_response(client)

        assert read_all(client) == b""


@pytest.fixture
def no_kernel_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would drop such clients as well, where it can; here it does not come first."""
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT", raising=False)


def test_a_client_that_does_not_read_is_dropped(no_kernel_timeout: None) -> None:
    endless = Endless()
    with serving(endless, send_timeout_s=SOON) as server, server.connect() as client:
        client.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")

        assert endless.ended.wait(GUARD)


def test_a_websocket_whose_client_does_not_read_is_dropped(no_kernel_timeout: None) -> None:
    endless = Endless()
    with serving(endless, send_timeout_s=SOON) as server, server.connect() as client:
        client.sendall(UPGRADE)

        assert endless.ended.wait(GUARD)


def test_a_websocket_outlives_the_time_for_headers() -> None:
    class Echo(Endless):
        async def socket(self, websocket: WebSocket) -> None:
            await websocket.accept()
            assert await websocket.receive_bytes() == b"late"
            await websocket.send_bytes(b"heard")

    with serving(Echo(), header_timeout_s=LATE) as server, server.connect() as client:
        client.sendall(UPGRADE)
        while b"\r\n\r\n" not in (head := client.recv(65536)):
            assert head
        server.advance(LATE)
        client.sendall(b"\x82\x84\x00\x00\x00\x00late")

        assert b"heard" in read_all(client)


def test_a_websocket_is_told_that_the_server_stops() -> None:
    class Waiting(Endless):
        async def socket(self, websocket: WebSocket) -> None:
            await websocket.accept()
            assert (await websocket.receive())["type"] == "websocket.disconnect"
            self.ended.set()

    waiting = Waiting()
    with serving(waiting) as server, server.connect() as client:
        client.sendall(UPGRADE)
        while b"\r\n\r\n" not in (head := client.recv(65536)):
            assert head
        assert server.stop() == 0

        assert read_all(client) == b"\x88\x02" + (1012).to_bytes(2, "big")
    assert waiting.ended.is_set()


def test_headers_without_an_end_are_refused() -> None:
    with serving() as server, server.connect() as client:
        client.sendall(b"GET /short HTTP/1.1\r\n")
        pour(client, b"X-More: " + b"x" * 1000 + b"\r\n", times=1000)

        status, error = refusal(read_all(client))

    assert status == 431
    assert f"{MAX_HEADER_BYTES // 1024} KiB" in error["message"]


def test_invalid_http_is_refused_as_json() -> None:
    with serving() as server, server.connect() as client:
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")

        status, error = refusal(read_all(client))

    assert (status, error["code"]) == (400, "invalid_http")


def test_broken_chunks_end_the_request() -> None:
    fake = FakeModel()
    with live(fake) as server, server.connect() as client:
        head = b"POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked"
        client.sendall(head + b"\r\n\r\nnot a size\r\n")

        assert refusal(read_all(client))[0] == 400
        server.wait(server.ingress.limiter.settled())

    assert fake.calls == []


@pytest.mark.long
def test_an_address_with_its_share_of_the_connections_gets_no_more() -> None:
    with serving(max_connections=3) as server, server.connect() as first, server.connect() as second:
        for client in (first, second):
            client.sendall(GET)
            read_response(client)
        with server.connect() as third:
            status, error = refusal(read_all(third))
        second.sendall(GET)

        assert (status, error["type"]) == (503, "unavailable_error")
        assert b" 200 " in read_response(second)


def crowd(server: Live, most: int) -> contextlib.ExitStack:
    """Open so many connections and have each of them answered, so that the server knows them."""
    clients = contextlib.ExitStack()
    for _ in range(most):
        client = clients.enter_context(server.connect())
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in client.recv(65536)
    return clients


@pytest.mark.parametrize(
    ("path", "status"),
    [("/health", 200), ("/ready", 200), ("/metrics", 200), ("/v1/models", 503), ("/", 503), ("/health/", 503)],
)
def test_probes_are_answered_when_no_connection_is_left(path: str, status: int) -> None:
    with live(max_connections=2) as server, crowd(server, 2):
        assert server.get(path)[0] == status


def test_a_websocket_is_refused_when_no_connection_is_left() -> None:
    with live(max_connections=1) as server, crowd(server, 1), server.connect() as client:
        client.sendall(UPGRADE.replace(b"/socket", b"/v1/realtime"))

        assert refusal(read_all(client))[0] == 503


def test_silent_connections_do_not_keep_probes_out() -> None:
    with live(max_connections=1) as server, crowd(server, 1), contextlib.ExitStack() as silent:
        for _ in range(40):
            silent.enter_context(server.connect())

        assert server.get("/ready")[0] == 200


def test_refusals_before_the_application_are_counted_and_logged() -> None:
    stream = io.StringIO()
    with json_lines(stream), live(max_connections=1) as server, crowd(server, 1):
        assert server.get("/v1/models")[0] == 503
        with server.connect() as client:
            client.sendall(b"no HTTP at all\r\n\r\n")
            assert refusal(read_all(client))[0] == 400
        numbers = server.get("/metrics")[1].decode()

    assert 'photonlite_http_requests_total{route="/v1/models",status="503"} 1.0' in numbers
    assert 'photonlite_http_errors_total{code="too_many",key="(none)",route="/v1/models"} 1.0' in numbers
    assert 'photonlite_http_requests_total{route="(none)",status="400"} 1.0' in numbers
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    refused = [line for line in lines if line["event"] == "refused"]
    assert [(line["status"], line["code"]) for line in refused] == [(503, "too_many"), (400, "invalid_http")]
    assert [(line["route"], line["client"], line["key"]) for line in refused] == [
        ("/v1/models", "127.0.0.1", None),
        ("(none)", "127.0.0.1", None),
    ]


@pytest.mark.parametrize(
    "frames",
    [
        b"\x81\x82\x00\x00\x00\x00\xff\xfe",
        b"\x01\x81\x00\x00\x00\x00\xe4" + b"\x80\x81\x00\x00\x00\x00a",  # in two fragments
    ],
)
def test_invalid_utf_8_closes_a_websocket_without_a_traceback(frames: bytes) -> None:
    class Listening(Endless):
        async def socket(self, websocket: WebSocket) -> None:
            await websocket.accept()
            assert (await websocket.receive())["type"] == "websocket.disconnect"
            self.ended.set()

    listening, stream = Listening(), io.StringIO()
    with json_lines(stream), serving(listening) as server, server.connect() as client:
        client.sendall(UPGRADE)
        while b"\r\n\r\n" not in (head := client.recv(65536)):
            assert head
        client.sendall(frames)
        closing = read_all(client)

        assert closing[0] == 0x88
        assert closing[2:4] == (1007).to_bytes(2, "big")
        assert listening.ended.wait(GUARD)
    assert all("exception" not in json.loads(line) for line in stream.getvalue().splitlines())


@pytest.mark.parametrize(
    "extra",
    [
        b"Content-Length: 4\r\n\r\nbody",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        b"Cookie: " + b"x" * 9000 + b"\r\n\r\n",
    ],
    ids=["a body", "a body in chunks", "a long header"],
)
def test_a_handshake_that_websockets_cannot_read_is_refused(extra: bytes) -> None:
    stream = io.StringIO()
    with json_lines(stream), serving() as server, server.connect() as client:
        client.sendall(UPGRADE.removesuffix(b"\r\n") + b"X-Request-ID: of-a-socket\r\n" + extra)

        answer = read_all(client)

        status, error = refusal(answer)
        assert (status, error["code"]) == (400, "invalid_http")
        assert "WebSocket" in error["message"]
        assert b"\r\nx-request-id: of-a-socket\r\n" in answer.lower()
        assert server.call(lambda: len(server.server.server_state.connections)) == 0
    assert all("exception" not in json.loads(line) for line in stream.getvalue().splitlines())


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="a Linux socket option")
def test_the_kernel_watches_for_clients_that_vanished() -> None:
    with serving(send_timeout_s=7) as server, server.connect() as client:
        client.sendall(GET)
        read_response(client)

        def options() -> tuple[int, int, int]:
            [connection] = server.server.server_state.connections
            accepted = connection.transport.get_extra_info("socket")
            keepalive = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            return keepalive, idle, accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

        assert server.call(options) == (1, 30, 7000)


def test_a_client_that_hangs_up_halfway_cancels_its_request() -> None:
    fake = FakeModel()
    fake.hang()
    with live(fake) as server, server.connect() as client:
        body = b'{"question": "why?"}'
        head = b"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d"
        client.sendall(head % len(body) + b"\r\n\r\n" + body)
        server.wait(asyncio.wait_for(fake.begun.wait(), GUARD))
        client.shutdown(socket.SHUT_WR)

        server.wait(asyncio.wait_for(server.ingress.limiter.settled(), GUARD))

    assert fake.cancelled == 1


def test_a_client_that_sends_a_request_and_no_more_is_answered() -> None:
    with serving() as server, server.connect() as client:
        client.sendall(GET)
        client.shutdown(socket.SHUT_WR)

        answer = read_all(client)

        assert b" 200 " in answer
        assert answer.endswith(b"short")
        assert server.get("/short")[0] == 200


def test_too_many_trailers_are_refused() -> None:
    with serving() as server, server.connect() as client:
        head = b"POST /short HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
        client.sendall(head + 10 * b"a:b\r\n" + b"\r\n")
        assert b" 200 " in read_response(client)
        client.sendall(head + (MAX_HEADERS + 3) * b"a:b\r\n" + b"\r\n")
        client.shutdown(socket.SHUT_WR)
        read_all(client)

        assert server.call(lambda: len(server.server.server_state.connections)) == 0
        assert server.get("/short")[0] == 200


def test_too_many_headers_are_refused() -> None:
    with serving() as server, server.connect() as client:
        client.sendall(GET.replace(b"\r\n\r\n", b"\r\n" + (MAX_HEADERS - 1) * b"a:b\r\n" + b"\r\n"))
        assert b" 200 " in read_response(client)
        client.sendall(GET.replace(b"\r\n\r\n", b"\r\n" + MAX_HEADERS * b"a:b\r\n" + b"\r\n"))

        status, error = refusal(read_all(client))

    assert (status, error["code"]) == (431, "headers_too_large")
    assert f"more than {MAX_HEADERS} headers" in error["message"]


def test_chunks_after_a_refusal_are_not_parsed() -> None:
    stream = io.StringIO()
    with json_lines(stream), live(api_keys=("secret",)) as server, server.connect() as client:
        client.sendall(b"POST /v1/detect HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        answer = b""
        while b'"}}' not in answer:
            answer += client.recv(65536)
        for _ in range(3):
            client.sendall(b"no chunk at all\r\n")  # a parser would end the connection for it
            assert server.get("/health")[0] == 200
        client.shutdown(socket.SHUT_WR)
        answer += read_all(client)

    assert answer.startswith(b"HTTP/1.1 401")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"\r\nconnection: close\r\n" in answer.lower()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert not [line for line in lines if line["event"] == "refused"]


class Echoing(Endless):
    """Answers with the checksum of the body."""

    async def short(self, request: Request) -> Response:
        return PlainTextResponse(f"short {zlib.crc32(await request.body())}")


def test_frames_sent_with_the_handshake_arrive_whole() -> None:
    class Echo(Endless):
        async def socket(self, websocket: WebSocket) -> None:
            await websocket.accept()
            while True:
                await websocket.send_text(str(len(await websocket.receive_bytes())))

    frame = b"\x82\xfe\x0f\xa0" + bytes(4 + 4000)
    with serving(Echo()) as server, server.connect() as client:
        client.sendall(UPGRADE + frame + frame)
        answer = b""
        while answer.count(b"\x81\x044000") < 2:
            piece = client.recv(65536)
            assert piece, answer
            answer += piece


@pytest.mark.parametrize("size", [1, 1024, 8192, 65536])
def test_uploads_in_chunks_arrive_whole(size: int) -> None:
    total = min(2000 * size, 4 * 2**20)
    body = random.Random(size).randbytes(total)
    with serving(Echoing()) as server, server.connect() as client:
        client.sendall(b"POST /short HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, total, size):
            piece = body[start : start + size]
            client.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        client.sendall(b"0\r\n\r\n")

        assert read_response(client).endswith(f"short {zlib.crc32(body)}".encode())
