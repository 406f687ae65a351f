import io
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig, fingerprint
from photonlite.server.limits.callers import Caller, identify
from photonlite.server.limits.limiter import Shares
from photonlite.server.transport.logs import json_lines
from photonlite.server.transport.shedding import whole_request
from tests.server.fake import FakeModel
from tests.server.live import live
from tests.server.transport.test_connections import GET, LATE, Endless

BODY = b'{"question": "?"}'
HEAD = b"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 17\r\n"
WHOLE = HEAD + b"\r\n" + BODY
CALLER = Caller("127.0.0.1")


def test_a_plain_request_is_recognised_with_its_headers() -> None:
    scope = whole_request(HEAD + b"Authorization: Bearer key \r\n\r\n" + BODY)

    assert scope is not None
    assert (scope["method"], scope["path"]) == ("POST", "/v1/query")
    assert dict(scope["headers"])[b"authorization"] == b"Bearer key"


@pytest.mark.parametrize(
    "data",
    [
        WHOLE[:-1],
        WHOLE + b"P",
        WHOLE + WHOLE,
        HEAD,
        WHOLE.replace(b"POST", b"GET"),
        WHOLE.replace(b"/v1/query", b"/v1/models"),
        WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        WHOLE.replace(b"Content-Length: 17\r\n", b""),
        WHOLE.replace(b": 17", b": +17"),
        WHOLE.replace(b": 17", b": 17, 17"),
        WHOLE.replace(b"Length: 17", b"Length: 17\r\nContent-Length: 17"),
        WHOLE.replace(b"Length: 17", b"Length: 17\r\ncontent-length: 5"),
        WHOLE.replace(b"Content-Length: 17", b"Transfer-Encoding: chunked"),
        WHOLE.replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"),
        WHOLE.replace(b"Host", b"Expect: 100-continue\r\nHost"),
        WHOLE.replace(b"Host", b"Origin: http://elsewhere\r\nHost"),
        WHOLE.replace(b"Host", b"Upgrade: websocket\r\nHost"),
        WHOLE.replace(b"Host", b"Connection: close\r\nHost"),
        WHOLE.replace(b"Host: ", b"Host : "),
        WHOLE.replace(b"\r\nContent-Type", b"\r\n Content-Type"),
        WHOLE.replace(b"\r\n", b"\n"),
        b"\r\n" + WHOLE,
    ],
)
def test_whatever_is_unusual_is_left_to_the_parser(data: bytes) -> None:
    assert whole_request(data) is None


def read_response(client: socket.socket) -> bytes:
    """One response with its length in a header."""
    data = b""
    while not (found := re.search(rb"(?i)content-length: (\d+).*?\r\n\r\n", data, re.DOTALL)) or len(
        data
    ) < found.end() + int(found[1]):
        piece = client.recv(65536)
        assert piece, f"the connection ended behind {data!r}"
        data += piece
    return data


@contextmanager
def filled(app: Starlette) -> Iterator[Shares]:
    requests: Shares = app.state.ingress.limiter.requests
    while requests.take(CALLER):
        pass
    yield requests


def test_a_request_without_a_place_is_refused_and_its_connection_goes_on() -> None:
    app = Endless().app()
    with filled(app) as requests, live(app=app) as server, server.connect() as client:
        for _ in range(2):
            client.sendall(WHOLE.replace(b"Host", b"X-Request-ID: mine\r\nHost"))
            head, _, body = read_response(client).partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            assert lines[0] == b"http/1.1 429 too many requests"
            assert {b"x-request-id: mine", b"content-length: %d" % len(body)} <= set(lines)
            assert any(line.startswith(b"retry-after: ") for line in lines)
            assert json.loads(body)["error"]["code"] == "queue_full"
            (connection,) = server.server.server_state.connections
            server.call(connection.pause_writing)  # as if it had read slowly for a while
            server.call(connection.resume_writing)
        client.sendall(GET)
        assert read_response(client).endswith(b"short")
        client.sendall(WHOLE.replace(b"Host", b"Origin: http://localhost\r\nHost"))  # what a browser needs to read it
        assert read_response(client).startswith(b"HTTP/1.1 404")
        requests.give(CALLER, requests.held(CALLER))
        client.sendall(WHOLE)
        assert read_response(client).startswith(b"HTTP/1.1 404"), "a request with a place was not given to the routes"


def test_a_refused_client_that_sends_nothing_more_is_closed() -> None:
    app = Endless().app()
    with filled(app), live(app=app, header_timeout_s=LATE) as server, server.connect() as client:
        client.sendall(WHOLE)
        assert read_response(client).startswith(b"HTTP/1.1 429")
        server.advance(LATE)
        assert client.recv(1) == b""


def test_a_request_that_was_refused_unparsed_is_counted_and_logged_like_others() -> None:
    stream, keys = io.StringIO(), ("greedy", "other")
    app = create_app(FakeModel(), ServerConfig(api_keys=keys, metrics_keys=keys))
    requests = app.state.ingress.limiter.requests
    while requests.take(identify(HTTPConnection(scope_of("greedy")), app.state.ingress.config)):
        pass
    with json_lines(stream), live(app=app) as server, server.connect() as client:
        for _ in range(3):
            client.sendall(HEAD + b"Authorization: Bearer greedy\r\n\r\n" + BODY)
            assert read_response(client).startswith(b"HTTP/1.1 429")
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer other\r\n\r\n")
        numbers = read_response(client).decode()

    key = fingerprint("greedy")
    for line in (
        'http_requests_total{route="/v1/query",status="429"} 3.0',
        f'key_requests_total{{key="{key}",status="429"}} 3.0',
        f'http_errors_total{{code="queue_full",key="{key}",route="/v1/query"}} 3.0',
    ):
        assert f"photonlite_{line}" in numbers
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    refused = [line for line in lines if line["event"] == "refused"]
    assert len(refused) == 3
    told = {"status": 429, "code": "queue_full", "route": "/v1/query", "client": "127.0.0.1", "key": key}
    assert told.items() <= refused[0].items()


def scope_of(key: str) -> dict[str, Any]:
    return {"type": "http", "headers": [(b"authorization", f"Bearer {key}".encode())], "client": ("127.0.0.1", 1)}
