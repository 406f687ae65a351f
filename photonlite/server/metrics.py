"""`/metrics`: the engine's metrics and those of HTTP, in Prometheus's format.

Labels take few values: a route's template, a status, a key of the server's, and the kinds that the engine counts.
Nothing that a client sends becomes a label.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from photonlite.server.calls import ServedModel
from photonlite.server.ingress import Ingress
from photonlite.server.limits.callers import identify

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
_PREFIX = "photonlite_engine_"
_MOST_KEYS = 1000

UNMATCHED = "(none)"
"""Label of paths without a route, which are the client's own words, and of a missing key."""


class HttpMetrics:
    """Counts requests, by route template and status, and by key."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "photonlite_http_requests", "Requests that ended.", ("route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "photonlite_http_request_duration_seconds",
            "From a request's headers to the last byte of its answer; without WebSockets.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._by_key = Counter(
            "photonlite_key_requests", "Requests that ended, by key.", ("key", "status"), registry=self.registry
        )
        self._tokens = Counter(
            "photonlite_key_tokens", "Tokens of prompts and answers, by key.", ("key", "kind"), registry=self.registry
        )
        self._keys: set[str] = set()
        self._received = Counter("photonlite_http_received_bytes", "Of bodies and frames.", registry=self.registry)
        self._sent = Counter("photonlite_http_sent_bytes", "Of bodies and frames.", registry=self.registry)
        self._open = Gauge("photonlite_http_open", "Requests and WebSockets without an end.", registry=self.registry)

    def began(self) -> None:
        self._open.inc()

    def refused(self, status: int) -> None:
        """Count a connection that was refused before its request was read."""
        self._requests.labels(UNMATCHED, str(status)).inc()

    def ended(
        self,
        route: str,
        status: int,
        seconds: float | None,
        received: int,
        sent: int,
        key: str | None = None,
        tokens: tuple[int, int] = (0, 0),
    ) -> None:
        """Count a request or WebSocket that has ended.

        `seconds` is None for a WebSocket, whose duration the client chooses; `key` is a key's fingerprint, None without
        a valid key; `tokens` counts prompts and answers.
        """
        self._open.dec()
        self._requests.labels(route, str(status)).inc()
        key = self._label(key)
        self._by_key.labels(key, str(status)).inc()
        for kind, count in zip(("prompt", "answer"), tokens, strict=True):
            self._tokens.labels(key, kind).inc(count)
        if seconds is not None:
            self._seconds.labels(route).observe(seconds)
        self._received.inc(received)
        self._sent.inc(sent)

    def _label(self, key: str | None) -> str:
        """Return the label of a key: at most `_MOST_KEYS` keys have one of their own."""
        if key is None:
            return UNMATCHED
        if key not in self._keys and len(self._keys) >= _MOST_KEYS:
            return "(other)"
        self._keys.add(key)
        return key


class EngineCollector(Collector):
    """Reads the server's state and the engine's metrics at each scrape."""

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress

    def collect(self) -> Iterator[Metric]:
        ingress = self._ingress
        yield GaugeMetricFamily("photonlite_open_requests", "Accepted and not answered.", ingress.limiter.open)
        yield GaugeMetricFamily("photonlite_draining", "1 while the server stops.", float(ingress.draining))
        for name, value in ingress.images.gauges.items():
            yield GaugeMetricFamily(f"photonlite_{name}", "Of the processes that decode images.", value)
        yield from engine_metrics(ingress.model)


def engine_metrics(model: ServedModel) -> Iterator[Metric]:
    """Convert the engine's metrics to Prometheus metric families."""
    yield GaugeMetricFamily(f"{_PREFIX}alive", "1 while the engine answers.", float(model.alive))
    yield GaugeMetricFamily(f"{_PREFIX}last_tick_seconds", "Since its last sign of life.", model.last_tick_s)
    snapshot = model.metrics()
    for name, value in snapshot["counters"].items():
        yield _family(CounterMetricFamily, name, value)
    for name, value in snapshot["gauges"].items():
        yield _family(GaugeMetricFamily, name, value)
    for name, histogram in snapshot["histograms"].items():
        buckets = [(bound, float(count)) for bound, count in histogram["buckets"].items()]
        yield HistogramMetricFamily(_named(name), _described(name), buckets=buckets, sum_value=histogram["sum"])


def routes(ingress: Ingress, http: HttpMetrics) -> list[BaseRoute]:
    """Return the route of `/metrics`. It needs a key where the server has keys: the metrics show what others do."""
    http.registry.register(EngineCollector(ingress))
    ProcessCollector(registry=http.registry)

    async def metrics(request: Request) -> Response:
        identify(request, ingress.config)
        return Response(generate_latest(http.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return [Route("/metrics", metrics, methods=["GET"])]


def _family(kind: type[CounterMetricFamily] | type[GaugeMetricFamily], name: str, value: Any) -> Metric:
    """One metric, or several by kind."""
    if not isinstance(value, Mapping):
        return kind(_named(name), _described(name), value)
    family = kind(_named(name), _described(name), labels=("kind",))
    for label, count in sorted(value.items()):
        family.add_metric((str(label),), float(count))
    return family


def _named(name: str) -> str:
    """Prometheus writes units in full."""
    return _PREFIX + (f"{name[:-2]}_seconds" if name.endswith("_s") else name)


def _described(name: str) -> str:
    return f"EngineMetrics.{name} of photonlite."
