"""Spans of OpenTelemetry, received by the SDK's exporter in memory; and that nothing is different without it."""

import builtins
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from photonlite.results import Answer, Metrics
from photonlite.server import app as module
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.transport.logs import json_lines
from photonlite.server.transport.spans import RequestSpans, stages
from tests.server.fake import METRICS, FakeModel
from tests.server.live import ROOT
from tests.server.parts import DATA_URI

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
MS = 1_000_000


def test_stages_are_placed_from_the_call_on_and_back_from_the_end() -> None:
    times = {"preprocess_s": 0.001, "queue_s": 0.005, "encode_s": 0.002, "prefill_s": 0.003, "decode_s": 0.004}

    assert list(stages(Metrics(**times, time_to_first_token_s=0.009), 100 * MS)) == [
        ("preprocess", 87 * MS, 88 * MS),
        ("queue", 88 * MS, 93 * MS),
        ("encode", 91 * MS, 93 * MS),
        ("prefill", 93 * MS, 96 * MS),
        ("decode", 96 * MS, 100 * MS),
    ]


def test_stages_that_took_no_time_are_left_out() -> None:
    assert [name for name, _, _ in stages(Metrics(prefill_s=0.003), 100 * MS)] == ["prefill"]


class Spans:
    """What was exported; `client` asks a server whose spans go there."""

    def __init__(self, exporter: Any, provider: Any) -> None:
        self._exporter = exporter
        self._provider = provider

    def client(self, fake: FakeModel | None = None) -> TestClient:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "find_spans", lambda: RequestSpans(self._provider))
            app = create_app(fake or FakeModel(), ServerConfig())
            return TestClient(app, raise_server_exceptions=False)

    def take(self) -> tuple[Any, dict[str, Any]]:
        """Return the one span without a name of a stage, and the stages' by name."""
        found = self._exporter.get_finished_spans()
        self._exporter.clear()
        *below, span = found  # a span ends after those below it
        return span, {one.name: one for one in below}


@pytest.fixture
def spans() -> Iterator[Spans]:
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Spans(exporter, provider)
    provider.shutdown()


def test_a_request_is_a_span_with_its_stages(spans: Spans) -> None:
    fake = FakeModel()
    # Longer than the request: sums of several.
    metrics = Metrics(0.001, 2.0, 0.003, 0.004, 740, 3, time_to_first_token_s=0.5, queue_s=5.0)
    fake.results["query"] = Answer("two", metrics=metrics)
    answer = spans.client(fake).post("/v1/query", json={"question": "why?"})
    span, below = spans.take()

    assert (span.name, span.kind.name, span.parent, span.status.status_code.name) == (
        *("POST /v1/query", "SERVER", None),
        "UNSET",
    )
    assert dict(span.attributes) == {
        "http.request.method": "POST",
        "http.route": "/v1/query",
        "http.response.status_code": 200,
        "client.address": "testclient",
        "gen_ai.usage.input_tokens": 740,
        "gen_ai.usage.output_tokens": 3,
        "photonlite.request_id": answer.headers["X-Request-ID"],
    }
    assert list(below) == ["preprocess", "queue", "encode", "prefill", "decode"]
    for stage in below.values():
        assert stage.parent.span_id == span.context.span_id
        assert span.start_time <= stage.start_time <= stage.end_time <= span.end_time


def test_a_span_continues_the_callers_trace(spans: Spans) -> None:
    lines = io.StringIO()
    with json_lines(lines):
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1"}
        spans.client().get("/health", headers=headers)
    span, _ = spans.take()

    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN
    assert span.parent.is_remote
    assert span.context.trace_state.get("a") == "1"
    line = json.loads(lines.getvalue())
    assert (line["trace_id"], line["parent_id"], line["span_id"]) == (TRACE, SPAN, f"{span.context.span_id:016x}")


def test_a_trace_that_is_not_sampled_is_not_recorded(spans: Spans) -> None:
    client = spans.client()
    client.post("/v1/query", json={"question": "why?"}, headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
    assert spans._exporter.get_finished_spans() == ()

    client.get("/health", headers={"traceparent": "invalid"})
    span, _ = spans.take()
    assert span.parent is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/query", "/v1/chat/completions"])
def test_streams_have_stages_too(spans: Spans, path: str, stream: bool) -> None:
    asked = {"question": "why?"} if path == "/v1/query" else {"messages": [{"role": "user", "content": "why?"}]}
    assert spans.client().post(path, json={**asked, "stream": stream}).status_code == 200
    span, below = spans.take()

    assert span.name == f"POST {path}"
    assert list(below) == ["preprocess", "encode", "prefill", "decode"]
    assert span.attributes["gen_ai.usage.output_tokens"] == METRICS.output_tokens


@pytest.mark.parametrize(
    ("error", "path", "status", "code"),
    [(RuntimeError("a bug"), "/v1/caption", 500, "ERROR"), (None, "/secret", 404, "UNSET")],
)
def test_failures_of_the_server_are_errors(
    spans: Spans, error: Exception | None, path: str, status: int, code: str
) -> None:
    spans.client(FakeModel(error)).post(path, json={"image_url": DATA_URI})
    span, below = spans.take()

    assert (span.attributes["http.response.status_code"], span.status.status_code.name) == (status, code)
    assert span.attributes.get("error.type") == ("500" if status == 500 else None)
    assert below == {}
    assert "secret" not in span.to_json()


def test_a_websocket_is_one_span(spans: Spans) -> None:
    with spans.client().websocket_connect("/v1/realtime") as socket:
        socket.send_json({"task": "detect", "object": "mug"})
        assert socket.receive_json()["type"] == "task"
        socket.send_bytes(b"RGB8" + (1).to_bytes(4, "little") * 2 + bytes(3))
        assert socket.receive_json()["type"] == "result"
    span, below = spans.take()

    assert (span.name, below) == ("GET /v1/realtime", {})
    assert span.attributes["http.response.status_code"] == 101


def test_without_a_provider_there_are_no_spans(spans: Spans) -> None:
    assert module.find_spans() is None


def test_without_the_package_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # importing it raises ImportError
    assert module.find_spans() is None
    monkeypatch.setattr(builtins, "__import__", _without(builtins.__import__))
    lines = io.StringIO()
    with json_lines(lines):
        answer = TestClient(create_app(FakeModel(), ServerConfig())).post("/v1/query", json={"question": "why?"})

    assert answer.status_code == 200
    assert not {"trace_id", "span_id"} & set(json.loads(lines.getvalue()))


def _without(imported: Any) -> Any:
    def imports(name: str, *more: Any, **given: Any) -> Any:
        assert name.partition(".")[0] != "opentelemetry", "imported while requests are answered"
        return imported(name, *more, **given)

    return imports


@pytest.mark.long
def test_a_provider_that_is_set_before_the_server_gets_its_spans() -> None:
    """In a process of its own, where it can be set for good."""
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from tests.server.fake import FakeModel

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
TestClient(create_app(FakeModel(), ServerConfig())).get("/health")
print([span.name for span in exporter.get_finished_spans()])
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "['GET /health']\n"
