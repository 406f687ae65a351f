"""Spans of OpenTelemetry: one for each request or WebSocket, and one below it for each stage of an answer.

They are made where a provider of tracers has been set before the application is built, which is what
`opentelemetry-instrument photonlite serve` does. Without one, nothing is imported later and no request pays for it.

```
POST /v1/detect   ├────────────────────────────────────────────┤
preprocess          ├─────┤
queue                     ├────────┤           until the step with the prompt is launched, perhaps behind the encoder's
encode                           ├──────┤
prefill                                 ├──────┤
decode                                         ├──────────┤   ends when the answer is there
```

The stages are placed by their durations: from the call on, which the time to the first token tells, and back from the
end. Those of an answer that took several requests are sums; they stay inside its span.
"""

import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from starlette.types import Scope

from photonlite import __version__
from photonlite.results import Metrics
from photonlite.server.transport.trace_context import TraceContext, request_id, trace_context

_NS: Final = 1_000_000_000


class RequestSpans:
    """Begins the spans of requests; `provider` is a `TracerProvider`."""

    def __init__(self, provider: Any) -> None:
        self._api: Any = import_module("opentelemetry.trace")
        self._tracer = provider.get_tracer("photonlite", __version__)

    def begin(self, scope: Scope, method: str) -> "RequestSpan":
        """Begin the span of a request, below its caller's; `log_fields` finds it in the scope."""
        attributes: dict[str, Any] = {"http.request.method": method, "photonlite.request_id": request_id(scope)}
        if client := scope.get("client"):
            attributes["client.address"] = client[0]
        span = self._tracer.start_span(
            method,
            context=self._parent(trace_context(scope)),
            kind=self._api.SpanKind.SERVER,
            attributes=attributes,
        )
        begun = scope["state"]["span"] = RequestSpan(self._api, self._tracer, span)
        return begun

    def _parent(self, context: TraceContext | None) -> Any:
        if context is None:
            return None
        api = self._api
        remote = api.SpanContext(
            trace_id=int(context.trace_id, 16),
            span_id=int(context.parent_id, 16),
            is_remote=True,
            trace_flags=api.TraceFlags(context.flags),
            trace_state=api.TraceState.from_header([context.state]),
        )
        return api.set_span_in_context(api.NonRecordingSpan(remote))


class RequestSpan:
    """The span of one request."""

    def __init__(self, api: Any, tracer: Any, span: Any) -> None:
        self._api = api
        self._tracer = tracer
        self._span = span
        self._begun = time.time_ns()
        known = span.get_span_context()
        # Fields of log lines: those who read one find the trace.
        self.fields = {"trace_id": f"{known.trace_id:032x}", "span_id": f"{known.span_id:016x}"}

    def answered(self, metrics: Metrics) -> None:
        """Add the stages of an answer that has just come."""
        if not self._span.is_recording():
            return
        parent = self._api.set_span_in_context(self._span)
        now = time.time_ns()
        for name, *times in stages(metrics, now):
            start, end = (min(max(self._begun, at), now) for at in times)
            self._tracer.start_span(name, context=parent, start_time=start).end(end_time=end)

    def end(self, method: str, route: str, status: int, tokens: tuple[int, int]) -> None:
        span = self._span
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        if any(tokens):
            span.set_attribute("gen_ai.usage.input_tokens", tokens[0])
            span.set_attribute("gen_ai.usage.output_tokens", tokens[1])
        if status >= 500:
            span.set_attribute("error.type", str(status))
            span.set_status(self._api.StatusCode.ERROR)
        span.end()


def find_spans() -> RequestSpans | None:
    """Return what begins spans; None without `opentelemetry-api`, or where nothing was set up to receive them."""
    try:
        api: Any = import_module("opentelemetry.trace")
    except ImportError:
        return None
    provider = api.get_tracer_provider()
    return None if isinstance(provider, api.ProxyTracerProvider) else RequestSpans(provider)


def stages(metrics: Metrics, end: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and end in nanoseconds of each stage that took time, of an answer that came at `end`."""
    first_token = end - round(metrics.decode_s * _NS)
    prefill = first_token - round(metrics.prefill_s * _NS)
    call = first_token - round(metrics.time_to_first_token_s * _NS)
    queue = call + round(metrics.preprocess_s * _NS)
    for name, start, until in (
        ("preprocess", call, queue),
        ("queue", queue, queue + round(metrics.queue_s * _NS)),
        ("encode", prefill - round(metrics.encode_s * _NS), prefill),
        ("prefill", prefill, first_token),
        ("decode", first_token, end),
    ):
        if until > start:
            yield name, start, until
