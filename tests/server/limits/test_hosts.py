"""A page whose name leads to this machine reaches no server of it."""

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from tests.deploy.files import environment, settings_of, text_of
from tests.server.asgi import Exchange, post
from tests.server.fake import FakeModel
from tests.server.live import live
from tests.serving import run

FOREIGN = ("evil.example", "evil.example:2020", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]",
           "", "localhost:x", "[localhost", "localhost, evil.example")  # fmt: skip
OWN = ("localhost", "LocalHost:2020", "localhost.", "127.0.0.1", "127.0.0.1:80", "127.8.9.1", "[::1]", "[::1]:2020")


EXPOSED: dict[str, Any] = {"host": "0.0.0.0", "expose": True}


def ask(name: str, fake: FakeModel | None = None, path: str = "/v1/query", **settings: Any) -> Exchange:
    app = create_app(fake or FakeModel(), ServerConfig(**settings))
    exchange: Exchange = run(post(app, path, {"question": "why?"}, {"host": name}))
    return exchange


@pytest.mark.parametrize("host", OWN)
def test_the_names_of_loopback_are_answered(host: str) -> None:
    assert ask(host).status == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_foreign_hosts_are_refused_before_the_model_is_asked(host: str) -> None:
    fake = FakeModel()

    answer = ask(host, fake)

    assert (answer.status, answer.code) == (421, "unknown_host")
    assert fake.calls == []


@pytest.mark.parametrize("path", ["/", "/metrics", "/openapi.json", "/ready", "/static/app.js", "/nowhere"])
def test_the_host_is_checked_on_every_route(path: str) -> None:
    assert ask("evil.example", path=path).status == 421


def test_a_matching_foreign_origin_and_host_are_refused() -> None:
    app = create_app(FakeModel(), ServerConfig())
    headers = {"host": "evil.example:2020", "origin": "http://evil.example:2020"}

    assert run(post(app, "/v1/query", {"question": "why?"}, headers)).status == 421


def test_a_websocket_is_refused() -> None:
    client = TestClient(create_app(FakeModel(), ServerConfig()))

    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime", headers={"host": "evil.example"}):
        pass


def test_names_can_be_allowed() -> None:
    allowed: dict[str, Any] = {"allow_hosts": ("Robot.local", "192.168.0.7")}

    assert [ask(host, **allowed).status for host in ("robot.local:8080", "192.168.0.7", "localhost")] == [200] * 3
    assert ask("evil.example", **allowed).status == 421


@pytest.mark.parametrize(
    "host", ["evil.example", "robot.local:2020", "0x7f.1", "127.1", "1.2.3.4.evil.example", "[evil]"]
)
@pytest.mark.parametrize("names", [(), ("robot",)])
def test_an_exposed_server_without_keys_answers_to_no_unknown_name(host: str, names: tuple[str, ...]) -> None:
    assert ask(host, **EXPOSED, allow_hosts=names).status == 421


@pytest.mark.parametrize("host", [*OWN, "192.168.0.7:2020", "172.17.0.2", "[2001:db8::7]:80"])
def test_an_exposed_server_answers_at_any_ip_address_since_no_page_can_rebind_it(host: str) -> None:
    assert ask(host, **EXPOSED).status == 200


def test_the_first_example_of_docker_is_protected(tmp_path: Path) -> None:
    [line] = [line for line in text_of("Dockerfile").splitlines() if line.endswith("--expose")]
    arguments = line.partition("photonlite serve ")[2].split()
    config = settings_of(environment(), tmp_path, *arguments).server
    app = create_app(FakeModel(), config)
    for host, status in (("localhost:2020", 200), ("127.0.0.1:2020", 200), ("evil.example:2020", 421)):
        assert run(post(app, "/v1/query", {"question": "why?"}, {"host": host})).status == status


def test_with_keys_any_host_is_accepted_unless_names_are_given() -> None:
    assert ask("evil.example", api_keys=("k",)).status == 401
    assert ask("evil.example", **EXPOSED, api_keys=("k",)).status == 401
    assert ask("evil.example", **EXPOSED, api_keys=("k",), allow_hosts=("robot",)).status == 421
    assert ask("robot", **EXPOSED, allow_hosts=("robot",)).status == 200


def test_the_address_of_the_connection_is_accepted_as_host() -> None:
    with live(host="0.0.0.0", expose=True, allow_hosts=("robot",)) as server:
        head = b"GET /health HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n"
        for host, status in ((b"127.0.0.1:%d" % server.port, b"200"), (b"evil.example", b"421")):
            with server.connect() as client:
                client.sendall(head % host)
                assert status in client.recv(65536).split(b"\r\n")[0]


def test_a_request_without_a_host_is_answered() -> None:
    with live() as server, server.connect() as client:
        client.sendall(b"GET /health HTTP/1.0\r\n\r\n")

        assert b"200" in client.recv(65536).split(b"\r\n")[0]
