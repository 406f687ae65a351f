import pytest
from starlette.testclient import TestClient

from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.routes.service import STALLED_S
from tests.server.fake import FakeModel

KEYS = ("a-good-key",)


def client(fake: FakeModel, **settings: tuple[str, ...]) -> TestClient:
    return TestClient(create_app(fake, ServerConfig(**settings)))  # type: ignore[arg-type]


def test_a_good_server_is_alive_and_ready() -> None:
    asked = client(FakeModel())

    assert asked.get("/health").json() == {"status": "alive"}
    answer = asked.get("/ready")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "model": "fake"}


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"skills": ()}, "no skill"),
        ({"last_tick_s": STALLED_S + 1}, "no sign of life for 31 seconds"),
    ],
)
def test_a_server_that_is_not_ready_says_why_and_is_alive(state: dict[str, object], reason: str) -> None:
    fake = FakeModel()
    for name, value in state.items():
        setattr(fake, name, value)
    asked = client(fake)

    answer = asked.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["status"] == "unavailable"
    assert reason in answer.json()["reason"]
    assert asked.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["/ready", "/health"])
def test_a_server_whose_engine_has_died_is_neither_ready_nor_alive(path: str) -> None:
    fake = FakeModel()
    fake.alive = False
    answer = client(fake).get(path)

    assert answer.status_code == 503
    assert "the engine has stopped" in answer.json()["reason"]


def test_a_server_that_stops_is_not_ready() -> None:
    asked = client(FakeModel())
    asked.app.state.ingress.draining = True  # type: ignore[attr-defined]

    assert asked.get("/ready").json()["reason"] == "the server is stopping"


def test_an_engine_that_was_silent_for_a_moment_is_ready() -> None:
    fake = FakeModel()
    fake.last_tick_s = STALLED_S

    assert client(fake).get("/ready").status_code == 200


def test_metrics_count_restarts_by_reason() -> None:
    asked = TestClient(create_app(FakeModel(), ServerConfig(), restarts={"hung": 3}))
    lines = asked.get("/metrics").text.splitlines()

    assert 'photonlite_restarts_total{reason="hung"} 3.0' in lines
    assert 'photonlite_restarts_total{reason="signal"} 0.0' in lines


def test_probes_need_no_key() -> None:
    asked = client(FakeModel(), api_keys=KEYS)

    assert [asked.get(path).status_code for path in ("/health", "/ready")] == [200, 200]
