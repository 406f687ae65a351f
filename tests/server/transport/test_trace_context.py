"""Ids of requests and traces: what is taken from headers, what is made, and where it goes."""

import io
import json
import logging
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.transport.logs import json_lines
from photonlite.server.transport.trace_context import log_fields, request_id, trace_context
from tests.server.fake import FakeModel
from tests.server.live import live

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
MADE = re.compile(r"[0-9a-f]{24}")
JSON = {"Content-Type": "application/json"}


def scope_of(*headers: tuple[str, str]) -> dict[str, Any]:
    return {"type": "http", "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers]}


@pytest.mark.parametrize("id", ["a", "A-1_b.c~d:e/f+g=@h", "9f1b2c3d-0000-4000-8000-000000000000", "x" * 128])
def test_a_sane_id_of_the_client_is_kept(id: str) -> None:
    scope = scope_of(("x-request-id", id))

    assert request_id(scope) == request_id(scope) == id


@pytest.mark.parametrize("id", ["", " a", "a b", 'a"b', "a\nb", "a,b", "<script>", "h\xe9", "a\x1b[0m", "x" * 129])
def test_any_other_id_is_replaced(id: str) -> None:
    assert MADE.fullmatch(request_id(scope_of(("x-request-id", id))))


def test_without_an_id_or_with_two_one_is_made_once() -> None:
    for headers in ((), (("x-request-id", "one"), ("x-request-id", "two"))):
        scope = scope_of(*headers)
        assert MADE.fullmatch(request_id(scope))
        assert request_id(scope) == request_id(scope)
    assert request_id(scope_of()) != request_id(scope_of())


def test_a_trace_is_read() -> None:
    context = trace_context(scope_of(("traceparent", PARENT), ("tracestate", "a=1 , b@c=2"), ("tracestate", "d=3,")))

    assert context == (TRACE, SPAN, 1, "a=1,b@c=2,d=3")
    assert context is not None
    assert context.fields == {"trace_id": TRACE, "parent_id": SPAN, "tracestate": "a=1,b@c=2,d=3"}


def test_a_later_version_may_be_longer() -> None:
    assert trace_context(scope_of(("traceparent", f"cc-{TRACE}-{SPAN}-09-what-comes"))) == (TRACE, SPAN, 9, "")


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "nothing",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"{PARENT}-more",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"{PARENT}\n",
        f"{PARENT},{PARENT}",
        f"\xff{PARENT}",
    ],
)
def test_an_invalid_trace_is_ignored_with_its_state(parent: str) -> None:
    assert trace_context(scope_of(("traceparent", parent), ("tracestate", "a=1"))) is None


def test_two_traces_are_none() -> None:
    assert trace_context(scope_of(("traceparent", PARENT), ("traceparent", PARENT))) is None
    assert trace_context(scope_of(("tracestate", "a=1"))) is None


@pytest.mark.parametrize(
    "state",
    ["novalue", "a=", "A=1", "a=1,a=2", "a=\x1b[0m", "a=b=c", ",".join(f"k{n}=1" for n in range(33)), "a=" + "x" * 511],
)
def test_an_invalid_state_is_left_out(state: str) -> None:
    assert trace_context(scope_of(("traceparent", PARENT), ("tracestate", state))) == (TRACE, SPAN, 1, "")


@given(st.lists(st.tuples(st.sampled_from([b"x-request-id", b"traceparent", b"tracestate"]), st.binary(max_size=80))))
def test_no_header_is_an_error_and_no_field_can_break_a_line(headers: list[tuple[bytes, bytes]]) -> None:
    fields = log_fields({"type": "http", "headers": headers})

    assert all(value.isascii() and value.isprintable() and len(value) <= 512 for value in fields.values())


ASKED = {"X-Request-Id": "the-clients-id", "traceparent": PARENT, "tracestate": "a=1"}


@pytest.mark.parametrize(
    ("method", "path", "settings", "status"),
    [
        ("POST", "/v1/query", {}, 200),
        ("POST", "/v1/detect", {}, 422),
        ("GET", "/v1/query", {}, 405),
        ("GET", "/nowhere", {}, 404),
        ("GET", "/", {}, 200),
        ("GET", "/metrics", {"api_keys": ("a-key",)}, 401),
        ("GET", "/health", {"allow_hosts": ("elsewhere",), "api_keys": ("a-key",)}, 421),
    ],
)
def test_every_response_and_log_line_has_the_id(method: str, path: str, settings: Any, status: int) -> None:
    lines = io.StringIO()
    with json_lines(lines):
        asked = TestClient(create_app(FakeModel(), ServerConfig(**settings)))
        host = {"Host": "evil.example"} if status == 421 else {}
        answer = asked.request(method, path, headers=ASKED | host, json={"question": "why?"})

    assert answer.status_code == status
    assert answer.headers["X-Request-ID"] == "the-clients-id"
    [line] = map(json.loads, lines.getvalue().splitlines())
    wanted = {"id": "the-clients-id", "trace_id": TRACE, "parent_id": SPAN, "tracestate": "a=1"}
    assert line | wanted == line


@pytest.mark.parametrize("stream", [False, True])
def test_tracebacks_have_the_id_and_the_trace(stream: bool) -> None:
    fake = FakeModel(None if stream else RuntimeError("a bug"))
    fake.late_error = RuntimeError("a bug")
    lines = io.StringIO()
    with json_lines(lines):
        asked = TestClient(create_app(fake, ServerConfig()), raise_server_exceptions=False)
        asked.post("/v1/query", headers=ASKED, json={"question": "why?", "stream": stream})

    failure, request = map(json.loads, lines.getvalue().splitlines())
    assert "RuntimeError: a bug" in failure["exception"]
    assert (failure["id"], failure["trace_id"]) == (request["id"], request["trace_id"]) == ("the-clients-id", TRACE)


def test_an_answer_names_the_clients_id() -> None:
    asked = TestClient(create_app(FakeModel(), ServerConfig()))

    assert asked.post("/v1/query", headers=ASKED, json={"question": "?"}).json()["request_id"] == "the-clients-id"


def response_to(request: bytes, **settings: Any) -> tuple[bytes, list[dict[str, Any]]]:
    """Send bytes to a real server; returns all that comes back, and its lines about requests."""
    lines = io.StringIO()
    with json_lines(lines):
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        with live(**settings) as server, server.connect() as client:
            client.sendall(request)
            received = b"".join(iter(lambda: client.recv(65536), b""))
    found = map(json.loads, lines.getvalue().splitlines())
    return received, [line for line in found if line["event"] in ("refused", "request", "websocket")]


SOCKET = b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"


def test_what_the_application_never_saw_has_an_id_too() -> None:
    received, [line] = response_to(b"this is no HTTP\r\n\r\n")

    assert received.startswith(b"HTTP/1.1 400 ")
    assert re.search(rb"\r\nx-request-id: ([0-9a-f]{24})\r\n", received, re.I)[1] == line["id"].encode()  # type: ignore[index]
    assert line["event"] == "refused"


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"X-Request-Id: of-a-socket\r\n\r\n", b"400"),  # no Sec-WebSocket-Key: no handshake
        (
            b"X-Request-Id: of-a-socket\r\nSec-WebSocket-Version: 13\r\nOrigin: https://evil.example\r\n"
            b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n",
            b"403",
        ),
    ],
)
def test_refused_sockets_have_the_clients_id_once(rest: bytes, status: bytes) -> None:
    received, _ = response_to(SOCKET + rest)

    assert received.startswith(b"HTTP/1.1 " + status)
    assert re.findall(rb"\r\nx-request-id: ([^\r]*)\r\n", received, re.I) == [b"of-a-socket"]
