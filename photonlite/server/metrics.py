"""HTTP's part of `/metrics`. Labels take few values, and nothing that a client sends becomes one."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
_MOST_KEYS = 1000

UNMATCHED = "(none)"  # label of paths without a route, which are the client's own words, and of a missing key

disable_created_metrics()  # they would double the series of counters


class HttpMetrics:
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
        errors, labels = "Requests that were refused or failed, by the error's code.", ("code", "route", "key")
        self._errors = Counter("photonlite_http_errors", errors, labels, registry=self.registry)
        self._keys: set[str] = set()
        self._received = Counter("photonlite_http_received_bytes", "Body and frame bytes.", registry=self.registry)
        self._sent = Counter("photonlite_http_sent_bytes", "Body and frame bytes.", registry=self.registry)
        self._open = Gauge("photonlite_http_open", "Requests and WebSockets without an end.", registry=self.registry)
        self.connections = Gauge("photonlite_http_connections", "Open, idle or not.", registry=self.registry)
        lag = "How late the event loop ran a timer that is due ten times a second."
        self.lag = Histogram("photonlite_event_loop_lag_seconds", lag, buckets=_SECONDS, registry=self.registry)

    def began(self) -> None:
        self._open.inc()

    def count(self, route: str, status: int, code: str | None, key: str | None) -> None:
        """Count a request that has ended, also one that was refused before the application saw it."""
        label = self._label(key)
        self._requests.labels(route, str(status)).inc()
        self._by_key.labels(label, str(status)).inc()
        if code is not None:
            self._errors.labels(code, route, label).inc()

    def ended(
        self,
        route: str,
        status: int,
        seconds: float | None,
        received: int,
        sent: int,
        key: str | None = None,
        code: str | None = None,
        tokens: tuple[int, int] = (0, 0),
    ) -> None:
        """Count a request, or a WebSocket: its duration is None, since the client chooses it."""
        self._open.dec()
        self.count(route, status, code, key)
        key = self._label(key)
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
