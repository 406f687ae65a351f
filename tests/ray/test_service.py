"""The service on Ray: replicas of the shipped checkpoint on the CPU, asked over HTTP and WebSockets."""

import http.client
import importlib.util
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
from websockets.sync.client import connect

from bench.replicas.cluster import SMALL, Cluster, cluster, wait_until
from bench.serve.images import jpegs
from photonlite.api import load
from tests.guard import GUARD
from tests.server.live import live_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs pip install 'photonlite[ray]'"),
]

ROOT = Path(__file__).resolve().parents[2]
DESK = (ROOT / "assets" / "desk.png").read_bytes()
IMAGES = jpegs((320, 240), 24)
REPLICAS = 2
CLIENTS = 6
# On a busy machine answers must not come too late.
SETTINGS: dict[str, Any] = {**SMALL, "replicas": REPLICAS, "deadline_s": 300, "drain_s": 120}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        lines = self.body.decode().split("\n\n")
        return [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]


def ask(port: int, path: str, body: bytes | None = None, kind: str = "image/jpeg") -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)
    try:
        connection.request("GET" if body is None else "POST", path, body, {"content-type": kind})
        reply = connection.getresponse()
        return Reply(reply.status, {name.lower(): text for name, text in reply.getheaders()}, reply.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def service() -> Iterator[Cluster]:
    with cluster(**SETTINGS) as running:
        yield running


def questions() -> list[tuple[str, bytes]]:
    paths = (
        "/v1/detect?object=banana",
        "/v1/point?object=laptop",
        "/v1/query?question=How%20many%20cups%20are%20there%3F",
    )
    return [(path, image) for image in IMAGES for path in paths]


def answer_of(reply: Reply) -> Any:
    """Return what does not depend on the run; scores are rounded, since sums depend on which requests are batched."""
    assert reply.status == 200, reply
    found = {name: value for name, value in reply.json.items() if name not in ("metrics", "request_id")}
    return json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 4))


def test_answers_are_those_of_one_replica(service: Cluster) -> None:
    with load(device="cpu", dtype="float32", engine={"cpu_threads": 1}) as model, live_model(model) as alone:
        expected = [answer_of(ask(alone.port, *asked)) for asked in questions()]

    with ThreadPoolExecutor(CLIENTS) as clients:
        found = list(clients.map(lambda asked: answer_of(ask(service.port, *asked)), questions()))

    assert sum(one != other for one, other in zip(expected, found, strict=True)) == 0


def samples(service: Cluster, name: str) -> dict[str, float]:
    """Return a metric of each replica."""
    lines = [line for line in ask(service.port, "/metrics").body.decode().splitlines() if line.startswith(name + "{")]
    return {line.partition('replica="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_all_replicas_answer_and_each_image_is_computed_at_one_of_them(service: Cluster) -> None:
    before = samples(service, "photonlite_engine_prefix_misses_total")
    images = jpegs((320, 240), 12, first=100)

    for name in ("cup", "key", "book"):
        for image in images:
            assert ask(service.port, f"/v1/detect?object={name}", image).status == 200

    misses = {
        name: count - before[name] for name, count in samples(service, "photonlite_engine_prefix_misses_total").items()
    }
    assert len(misses) == REPLICAS
    assert all(misses.values())
    assert sum(misses.values()) == len(images)


def test_every_route_answers_through_it(service: Cluster) -> None:
    for path in ("/", "/docs", "/openapi.json", "/health", "/ready", "/metrics", "/v1/models"):
        assert ask(service.port, path).status == 200, path
    for path in ("/v1/caption", "/v1/point?object=cup", "/v1/segment?object=cup"):
        assert ask(service.port, path, DESK, "image/png").status == 200, path
    unknown = ask(service.port, "/v1/nowhere", b"{}")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "unknown_path")
    unreadable = ask(service.port, "/v1/detect?object=cup", b"no image")
    assert (unreadable.status, unreadable.json["error"]["code"]) == (400, "invalid_image")


def test_streams_come_in_pieces(service: Cluster) -> None:
    reply = ask(service.port, "/v1/query?question=What%20is%20in%20the%20image%3F&stream=true", DESK, "image/png")

    assert reply.headers["content-type"].startswith("text/event-stream")
    assert len(reply.events) > 3
    assert reply.events[-1]["completed"]
    whole = ask(service.port, "/v1/query?question=What%20is%20in%20the%20image%3F", DESK, "image/png").json["answer"]
    assert "".join(event["chunk"] for event in reply.events) == whole


def test_openais_client_works_unchanged(service: Cluster) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{service.port}/v1", api_key="none") as client:
        turn: Any = [{"role": "user", "content": "Hello?"}]
        name = client.models.list().data[0].id
        whole = client.chat.completions.create(model=name, messages=turn, max_tokens=8)
        pieces = list(client.chat.completions.create(model=name, messages=turn, max_tokens=8, stream=True))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole.choices[0].message.content


def test_a_websocket_gets_results_of_its_frames(service: Cluster) -> None:
    with connect(f"ws://127.0.0.1:{service.port}/v1/realtime", open_timeout=GUARD) as socket:
        socket.send(json.dumps({"task": "detect", "object": "banana", "deadline_ms": 60_000}))
        assert json.loads(socket.recv(timeout=GUARD))["type"] == "task"
        for number, frame in enumerate((DESK, IMAGES[0])):
            socket.send(frame)
            result = json.loads(socket.recv(timeout=GUARD))
            assert (result["type"], result["frame"]) == ("result", number)
            assert result["result"]["objects"]


def open_requests(service: Cluster) -> float:
    return sum(samples(service, "photonlite_open_requests").values())


def test_a_client_that_leaves_cancels_its_request(service: Cluster) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=GUARD)
    path = "/v1/caption?length=long&stream=true"
    connection.request("POST", path, DESK, {"content-type": "image/png"})
    connection.getresponse().read(10)
    connection.close()

    wait_until(lambda: open_requests(service) == 0, "no request is open")


class Load:
    """Clients that ask one question after the other until told to stop."""

    def __init__(self, port: int, path: str) -> None:
        self.replies: list[Reply] = []
        self._port, self._path = port, path
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        while not self._stop.is_set():
            self.replies.append(ask(self._port, self._path, IMAGES[number % len(IMAGES)]))
            number += CLIENTS + 1


@pytest.mark.parametrize("path", ["/v1/detect?object=banana", "/v1/caption?length=long&stream=true"])
def test_a_killed_replica_loses_what_it_had_open_at_most(service: Cluster, path: str) -> None:
    with Load(service.port, path) as load_:
        wait_until(lambda: len(load_.replies) >= 2 * CLIENTS, "the clients have answers")
        victim = service.replicas[0]
        victim.kill()
        seen = len(load_.replies)
        wait_until(lambda: len(load_.replies) >= seen + 4 * CLIENTS, "the clients have more answers")
        wait_until(lambda: len(service.replicas) == REPLICAS, "the replica has been replaced")

    assert victim.pid not in [one.pid for one in service.replicas]
    statuses = Counter(reply.status for reply in load_.replies)
    refused = [reply for reply in load_.replies if reply.status == 503]
    broken = [reply for reply in load_.replies if b'"code": "replica_lost"' in reply.body]
    assert set(statuses) <= {200, 503}
    assert all(reply.headers["retry-after"] for reply in refused)
    assert len({*map(id, refused), *map(id, broken)}) <= CLIENTS
    assert all(reply.headers["content-type"].startswith("text/event-stream") for reply in broken if reply.status == 200)
    wait_until(lambda: ask(service.port, "/ready").status == 200, "it is ready")


def test_a_rolling_update_refuses_nobody(service: Cluster) -> None:
    before = {one.pid for one in service.replicas}
    with Load(service.port, "/v1/detect?object=banana") as load_:
        service.update(**SETTINGS, max_objects=100)

    assert Counter(reply.status for reply in load_.replies).keys() == {200}
    assert not before & {one.pid for one in service.replicas}
    assert ask(service.port, '/v1/detect?object=cup&settings={"max_objects":101}', DESK).status == 422
