"""The line of each request."""

import asyncio
import io
import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig, fingerprint
from photonlite.server.transport.logs import json_lines
from tests.server.fake import FakeModel
from tests.server.live import GUARD, live

KEY = "a-good-key"
SECRETS = ("a very private question", "wrong-key", KEY)


def lines_of(fake: FakeModel, *requests: tuple[str, str, dict[str, Any]], **settings: Any) -> list[dict[str, Any]]:
    stream = io.StringIO()
    with json_lines(stream):
        client = TestClient(create_app(fake, ServerConfig(**settings)), raise_server_exceptions=False)
        for method, path, options in requests:
            client.request(method, path, **options)
    for secret in SECRETS:
        assert secret not in stream.getvalue()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_request_is_one_line() -> None:
    body = json.dumps({"question": SECRETS[0]}).encode()
    headers, query = {"X-Moondream-Auth": KEY}, f"/v1/query?question={SECRETS[0]}"
    options = {"content": body, "headers": headers | {"Content-Type": "application/json"}}
    requests = ("POST", "/v1/query", options), ("POST", query, {"headers": headers})
    line, _ = lines_of(FakeModel(), *requests, api_keys=(KEY,))

    assert line["ms"] >= 0
    assert len(line["id"]) >= 16
    assert line["bytes_out"] > 20
    assert set(line) == {
        *("time", "event", "id", "method", "route", "status", "ms", "bytes_in", "bytes_out"),
        *("tokens_in", "tokens_out", "client", "key"),
    }
    assert (line["tokens_in"], line["tokens_out"], line["client"]) == (740, 3, "testclient")
    assert (line["event"], line["method"], line["route"], line["status"]) == ("request", "POST", "/v1/query", 200)
    assert (line["bytes_in"], line["key"]) == (len(body), fingerprint(KEY))


def test_the_id_is_that_of_the_response() -> None:
    stream = io.StringIO()
    with json_lines(stream):
        answer = TestClient(create_app(FakeModel(), ServerConfig())).get("/health")

    assert json.loads(stream.getvalue())["id"] == answer.headers["X-Request-ID"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "expected"),
    [
        ("GET", f"/{SECRETS[0]}", {}, {"route": "(none)", "status": 404}),
        ("BREW", "/health", {}, {"route": "/health", "status": 405, "method": "(other)"}),
        ("POST", "/v1/query", {"X-Moondream-Auth": "wrong-key"}, {"route": "/v1/query", "status": 401, "key": None}),
    ],
)
def test_refused_requests_are_logged(method: str, path: str, headers: dict[str, str], expected: dict[str, Any]) -> None:
    [line] = lines_of(FakeModel(), (method, path, {"headers": headers}), api_keys=(KEY,))

    assert line | expected == line


def test_a_bug_logs_its_traceback_and_a_failed_request() -> None:
    fake = FakeModel(RuntimeError("a bug"))
    failure, request = lines_of(fake, ("POST", "/v1/query", {"json": {"question": "why?"}}))

    assert "RuntimeError: a bug" in failure["exception"]
    assert failure["id"] == request["id"]
    assert request["status"] == 500


def line_of_a_client_that_leaves(body: bytes, *, begun: bool) -> dict[str, Any]:
    """Ask what is never answered to its end; leave as soon as the answer has begun, or the model has been asked."""
    fake = FakeModel()
    fake.hang()
    stream = io.StringIO()
    head = b"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with json_lines(stream), live(fake) as server:
        with server.connect() as client:
            client.sendall(head % len(body) + body)
            if begun:
                assert b"200 OK" in client.recv(65536)
            else:
                server.wait(asyncio.wait_for(fake.begun.wait(), GUARD))
        server.wait(asyncio.wait_for(server.ingress.limiter.settled(), GUARD))
    [line] = [line for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == "request"]
    return line


def test_a_broken_stream_is_logged_as_incomplete() -> None:
    line = line_of_a_client_that_leaves(b'{"question": "why?", "stream": true}', begun=True)

    assert (line["status"], line["complete"]) == (200, False)


def test_a_client_that_went_away_before_its_answer_is_499() -> None:
    line = line_of_a_client_that_leaves(b'{"question": "why?"}', begun=False)

    assert line["status"] == 499


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        ("/v1/query", {"question": "why?", "stream": True}, (740, 3)),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "why?"}], "stream": True}, (740, 3)),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "why?"}]}, (740, 3)),
        ("/v1/query", {"unknown": 1}, (0, 0)),
    ],
)
def test_tokens_of_streams_and_refusals_are_logged(path: str, body: dict[str, Any], tokens: tuple[int, int]) -> None:
    [line] = lines_of(FakeModel(), ("POST", path, {"json": body}))

    assert (line["tokens_in"], line["tokens_out"]) == tokens
