"""`/health`: whether the engine lives. `/ready`: whether it can be sent work. `/metrics`: in Prometheus's format."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib.metadata import version
from typing import Any

from prometheus_client import Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from photonlite import __version__
from photonlite.observe.metrics import EngineMetrics
from photonlite.server.calls import ServedModel
from photonlite.server.ingress import Ingress
from photonlite.server.limits.callers import check_metrics
from photonlite.server.link import REASONS
from photonlite.server.metrics import HttpMetrics

STALLED_S = 30.0  # seconds without a tick after which an engine counts as stuck: longer than any step takes
_DEAD = "the engine has stopped: the server ends, and starts again if it is supervised"
_PREFIX = "photonlite_engine_"
_HELP = {entry.name: entry.metadata["help"] for entry in fields(EngineMetrics) if entry.metadata} | {
    "grammar_running": "Grammars that are being compiled.",
    "grammar_waiting": "Grammars that wait to be compiled.",
}


def routes(ingress: Ingress, http: HttpMetrics, restarts: Mapping[str, int]) -> list[BaseRoute]:
    """Return the routes. Only `/metrics` needs a key where the server has keys."""
    http.registry.register(EngineCollector(ingress, restarts))
    ProcessCollector(registry=http.registry)
    built = {"version": __version__, "torch": version("torch"), "device": str(ingress.model.device)}
    Info("photonlite_build", "Versions and device of this server.", registry=http.registry).info(built)

    async def health(request: Request) -> Response:
        if not ingress.model.alive:
            return JSONResponse({"status": "dead", "reason": _DEAD}, 503)
        return JSONResponse({"status": "alive"})

    async def ready(request: Request) -> Response:
        reason = "the server is stopping" if ingress.draining else unfit(ingress.model)
        if reason is not None:
            return JSONResponse({"status": "unavailable", "reason": reason}, 503)
        return JSONResponse({"status": "ready", "model": ingress.model.name})

    async def metrics(request: Request) -> Response:
        check_metrics(request, ingress.config)
        return Response(generate_latest(http.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return [Route(f"/{answer.__name__}", answer, methods=["GET"]) for answer in (health, ready, metrics)]


def unfit(model: ServedModel) -> str | None:
    if not model.alive:
        return _DEAD
    if not model.skills:
        return "the model has no skill: load another checkpoint"
    silent = model.last_tick_s
    if silent > STALLED_S:
        return f"the engine has given no sign of life for {silent:.0f} seconds"
    return None


class EngineCollector(Collector):
    """Reads the server's state and the engine's metrics at each scrape."""

    def __init__(self, ingress: Ingress, restarts: Mapping[str, int]) -> None:
        self._ingress = ingress
        self._restarts = restarts

    def collect(self) -> Iterator[Metric]:
        ingress, model = self._ingress, self._ingress.model
        limiter, held = ingress.limiter, "Bytes of bodies and images that count against max_open_bytes."
        yield GaugeMetricFamily("photonlite_open_requests", "Requests and WebSockets without an end.", limiter.open)
        yield GaugeMetricFamily("photonlite_open_sockets", "WebSockets without an end.", limiter.sockets.used)
        yield GaugeMetricFamily("photonlite_held_bytes", held, limiter.bytes.used)
        yield GaugeMetricFamily("photonlite_draining", "1 while the server stops.", float(ingress.draining))
        restarted = CounterMetricFamily("photonlite_restarts", "Restarts by the supervisor.", labels=("reason",))
        for reason in REASONS:
            restarted.add_metric((reason,), self._restarts.get(reason, 0))
        yield restarted
        for name, value in ingress.images.gauges.items():
            yield GaugeMetricFamily(f"photonlite_{name}", f"Decoding of images: {name[7:]}.", value)
        yield GaugeMetricFamily(f"{_PREFIX}alive", "1 while the engine answers.", float(model.alive))
        yield GaugeMetricFamily(f"{_PREFIX}last_tick_seconds", "Seconds since its last tick.", model.last_tick_s)
        snapshot = model.metrics()
        for kind, values in ((CounterMetricFamily, snapshot["counters"]), (GaugeMetricFamily, snapshot["gauges"])):
            for name, value in values.items():
                yield _family(kind, name, value)
        for name, histogram in snapshot["histograms"].items():
            buckets = [(bound, float(count)) for bound, count in histogram["buckets"].items()]
            yield HistogramMetricFamily(*_described(name), buckets=buckets, sum_value=histogram["sum"])


def _family(kind: type[CounterMetricFamily] | type[GaugeMetricFamily], name: str, value: Any) -> Metric:
    if not isinstance(value, Mapping):
        return kind(*_described(name), value)
    family = kind(*_described(name), labels=("kind",))
    for label, count in sorted(value.items()):
        family.add_metric((str(label),), float(count))
    return family


def _described(name: str) -> tuple[str, str]:
    """Return the name of a metric, with its unit in full, and its description."""
    help = _HELP.get(name) or f"{name.replace('_', ' ').capitalize()}."
    return _PREFIX + (f"{name[:-2]}_seconds" if name.endswith("_s") else name), help
