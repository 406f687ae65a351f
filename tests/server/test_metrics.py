import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from photonlite import __version__
from photonlite.errors import StepError
from photonlite.observe.metrics import EngineMetrics
from photonlite.server import metrics
from photonlite.server import run as run_module
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig, fingerprint
from photonlite.server.images import RequestImages
from photonlite.server.limits.callers import Caller
from photonlite.server.metrics import HttpMetrics
from photonlite.server.run import DrainingServer
from tests.server.fake import FakeModel
from tests.serving import run

KEY = "a-good-key"


class Busy(FakeModel):
    """A fake whose engine has done something."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = EngineMetrics(requests_finished=3, tokens=41, running=2)
        self.engine.steps["decode"] = 7
        for seconds in (0.0004, 0.5, 0.5):
            self.engine.decode_s.observe(seconds)
        self.engine.batch_size.observe(8)

    def metrics(self) -> dict[str, Any]:
        return self.engine.snapshot()


def client(fake: FakeModel | None = None, **settings: Any) -> TestClient:
    return TestClient(create_app(fake or FakeModel(), ServerConfig(**settings)))


def scrape(asked: TestClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = asked.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: dict[Any, float], name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_every_number_of_the_engine_is_there() -> None:
    fake = Busy()
    samples = scrape(client(fake))

    snapshot = fake.metrics()
    names = {name for name, _ in samples}
    for name in snapshot["counters"]:
        assert f"photonlite_engine_{name}_total" in names
    for name in snapshot["gauges"]:
        assert f"photonlite_engine_{with_unit(name)}" in names
    for name in snapshot["histograms"]:
        assert f"photonlite_engine_{with_unit(name)}_sum" in names


def with_unit(name: str) -> str:
    return name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name


def test_metrics_are_read_at_each_scrape() -> None:
    fake = Busy()
    asked = client(fake)
    assert value(scrape(asked), "photonlite_engine_tokens_total") == 41

    fake.engine.tokens += 1
    fake.alive = False
    samples = scrape(asked)

    assert value(samples, "photonlite_engine_tokens_total") == 42
    assert value(samples, "photonlite_engine_steps_total", kind="decode") == 7
    assert value(samples, "photonlite_engine_running") == 2
    assert value(samples, "photonlite_engine_alive") == 0


def test_histograms_count_up_to_each_bound() -> None:
    samples = scrape(client(Busy()))

    decode = "photonlite_engine_decode_seconds"
    assert value(samples, f"{decode}_bucket", le="0.0005") == 1
    assert value(samples, f"{decode}_bucket", le="0.5") == 3
    assert value(samples, f"{decode}_bucket", le="+Inf") == value(samples, f"{decode}_count") == 3
    assert value(samples, f"{decode}_sum") == 1.0004
    assert value(samples, "photonlite_engine_batch_size_bucket", le="8.0") == 1


def test_requests_are_counted_by_route_and_status() -> None:
    asked = client()
    asked.post("/v1/query", json={"question": "why?"})
    asked.post("/v1/query", content=b"broken", headers={"Content-Type": "application/json"})
    asked.get("/health")
    samples = scrape(asked)

    assert value(samples, "photonlite_http_requests_total", route="/v1/query", status="200") == 1
    assert value(samples, "photonlite_http_requests_total", route="/v1/query", status="400") == 1
    assert value(samples, "photonlite_http_request_duration_seconds_count", route="/v1/query") == 2
    assert value(samples, "photonlite_http_received_bytes_total") == len(b'{"question":"why?"}') + len(b"broken")
    assert value(samples, "photonlite_http_open") == 1  # this very one


def test_refusals_are_counted_by_code_route_and_key() -> None:
    keys, fake = (KEY, KEY[::-1]), FakeModel()
    asked = client(fake, api_keys=keys, metrics_keys=keys)
    mine = {"X-Moondream-Auth": KEY}
    asked.post("/v1/query", json={"question": " "}, headers=mine)
    asked.post("/v1/detect", json={"object": "mug"}, headers={"X-Moondream-Auth": "made-up"})
    asked.get("/secret-path", headers=mine)
    asked.put("/v1/query", headers=mine)
    fake.late_error = StepError("the device is gone")
    asked.post("/v1/query", json={"question": "why?", "stream": True}, headers=mine)
    text = asked.get("/metrics", headers=mine).text

    key = fingerprint(KEY)
    for code, label, route in (
        ("invalid_prompt", key, "/v1/query"),
        ("invalid_api_key", "(none)", "/v1/detect"),
        ("unknown_path", key, "(none)"),
        ("method_not_allowed", key, "/v1/query"),
        ("engine_failed", key, "/v1/query"),  # after the response had begun with 200
    ):
        assert f'photonlite_http_errors_total{{code="{code}",key="{label}",route="{route}"}} 1.0' in text
    assert "secret" not in text


def test_metrics_describe_themselves_and_have_no_series_of_creation_times() -> None:
    text = client(Busy()).get("/metrics").text

    assert "_created" not in text
    described = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))
    assert all(len(help.split()) > 1 for help in described.values()), described
    assert described["photonlite_engine_prefix_hits_total"].startswith("Requests")
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M):
        assert name.endswith(("_total", "_info")) or kind != "counter", name
        assert kind == "counter" or not name.endswith("_total"), name


def test_a_scrape_tells_what_runs_and_what_is_held() -> None:
    asked = client()
    ingress: Any = asked.app.state.ingress  # type: ignore[attr-defined]
    ingress.limiter.bytes.take(Caller("a"), 1000)
    ingress.limiter.sockets.take(Caller("a"))
    samples = scrape(asked)

    [built] = [dict(labels) for name, labels in samples if name == "photonlite_build_info"]
    assert built == {"version": __version__, "torch": torch.__version__, "device": "cpu"}
    assert (value(samples, "photonlite_held_bytes"), value(samples, "photonlite_open_sockets")) == (1000, 1)


def test_connections_and_the_lag_of_the_event_loop_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(FakeModel(), ServerConfig())
    server = DrainingServer(app, ServerConfig())
    server.server_state.connections = {object(), object()}  # type: ignore[assignment]
    times = iter([10.0, 10.1, 12.2])
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: next(times)))
    for counter in range(3):
        assert run(server.on_tick(counter)) is False
    samples = scrape(TestClient(app))

    assert value(samples, "photonlite_http_connections") == 2
    lag = "photonlite_event_loop_lag_seconds"
    assert (value(samples, f"{lag}_count"), value(samples, f"{lag}_sum")) == (3, pytest.approx(2.0))


def test_client_input_adds_no_series() -> None:
    asked = client()

    def make_up(name: str) -> None:
        asked.get(f"/{name}?question={name}", headers={"X-Name": name})
        asked.request(name, "/health")

    make_up("first")
    scrape(asked)
    before = set(scrape(asked))
    for number in range(20):
        make_up(f"MADEUP{number}")

    assert set(scrape(asked)) == before


def test_metrics_have_the_state_of_the_server() -> None:
    asked = client()
    asked.app.state.ingress.draining = True  # type: ignore[attr-defined]
    samples = scrape(asked)

    assert value(samples, "photonlite_draining") == 1
    assert value(samples, "photonlite_open_requests") == 0
    assert value(samples, "process_open_fds") > 0


def test_metrics_need_a_key_if_the_server_has_keys() -> None:
    asked = client(api_keys=(KEY,))

    refused = asked.get("/metrics")
    assert refused.status_code == 401
    assert "photonlite_engine" not in refused.text
    assert asked.get("/metrics", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


@pytest.mark.parametrize(("readers", "status"), [((), 403), ((KEY[::-1],), 403), ((KEY,), 200)])
def test_one_of_several_keys_does_not_read_what_others_do(readers: tuple[str, ...], status: int) -> None:
    asked = client(api_keys=(KEY, KEY[::-1]), metrics_keys=readers)
    answer = asked.get("/metrics", headers={"X-Moondream-Auth": KEY})

    assert answer.status_code == status
    assert ("photonlite_" in answer.text) == (status == 200)
    assert asked.get("/metrics", headers={"X-Moondream-Auth": "made-up"}).status_code == 401


def test_requests_and_tokens_are_counted_by_key() -> None:
    other = KEY[::-1]
    asked = client(api_keys=(KEY, other), metrics_keys=(KEY,))
    for key in (KEY, KEY, other, "made-up"):
        asked.post("/v1/query", json={"question": "why?"}, headers={"X-Moondream-Auth": key})
    answer = asked.get("/metrics", headers={"X-Moondream-Auth": KEY})
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }

    counted = "photonlite_key_requests_total"
    assert value(samples, counted, key=fingerprint(KEY), status="200") == 2
    assert value(samples, counted, key=fingerprint(other), status="200") == 1
    assert value(samples, counted, key="(none)", status="401") == 1
    assert value(samples, "photonlite_key_tokens_total", key=fingerprint(KEY), kind="prompt") == 2 * 740
    assert value(samples, "photonlite_key_tokens_total", key=fingerprint(other), kind="answer") == 3
    assert "made-up" not in answer.text
    assert KEY not in answer.text


def test_the_number_of_series_by_key_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_MOST_KEYS", 2)
    http = HttpMetrics()
    for key in ("a", "b", "c", "d", "a", None):
        http.began()
        http.ended("/v1/query", 200, 0.1, 1, 1, key)

    labels = [
        sample.labels["key"]
        for family in http.registry.collect()
        if family.name == "photonlite_key_requests"
        for sample in family.samples
        if sample.name.endswith("_total")
    ]
    assert sorted(labels) == ["(none)", "(other)", "a", "b"]


class Pool:
    """What metrics read of a `DecodePool`."""

    pids = (11, 12, 13)
    jobs = SimpleNamespace(running=2, waiting=5)


def test_metrics_count_the_processes_that_decode() -> None:
    images = RequestImages(Pool())  # type: ignore[arg-type]
    samples = scrape(TestClient(create_app(FakeModel(), ServerConfig(), images)))

    counted = [value(samples, f"photonlite_decode_{name}") for name in ("workers", "running", "waiting")]
    assert counted == [3, 2, 5]
    assert value(scrape(client()), "photonlite_decode_workers") == 0
