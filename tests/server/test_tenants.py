"""One tenant cannot tell what another one has asked: a question costs it the same, and reads the same.

What a request costs is counted, not timed: positions that its prompts compute, crops that are encoded, and grammars
that are compiled. `python -m bench.serve.tenants` measures times.
"""

import base64
import contextlib
import http.client
import io
import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from websockets.sync.client import connect

from photonlite.cache.manager import CacheManager
from tests.server.live import GUARD, Live, live_model
from tests.serving import counters, make_image, serve

pytestmark = pytest.mark.long

HERS, HIS = "her-key-0123456789", "his-key-0123456789"
QUESTION = "Which of the two mugs on the table is nearer, and what stands behind it?"  # longer than a page
FORM = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
SETTINGS = {"max_tokens": 16, "max_objects": 2, "temperature": 0}
VARYING = {"request_id", "metrics", "id", "created", "latency_ms", "counts", "met_deadline"}


class Asked(NamedTuple):
    """A request to a path, or where that is a socket, a task and one frame."""

    path: str
    body: dict[str, Any]


class Cost(NamedTuple):
    positions: int
    crops: int
    grammars: int


def uri(seed: int) -> str:
    file = io.BytesIO()
    make_image(seed).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def asked(seed: int) -> list[Asked]:
    """Return one request of each kind about images of their own, in the order that a seed draws."""
    images = iter(map(uri, range(100 * seed, 100 * seed + 50)))

    def about(path: str, **body: Any) -> Asked:
        return Asked(path, {"image_url": next(images), "settings": SETTINGS, **body})

    said = [{"type": "image_url", "image_url": {"url": next(images)}}, {"type": "text", "text": QUESTION}]
    requests = [
        about("/v1/detect", object="mug"),
        about("/v1/detect", object=["mug", "key", "a large red cup"]),
        about("/v1/detect", object="mug", tile=[1, 2]),
        about("/v1/point", object="mug"),
        about("/v1/segment", object="mug"),
        about("/v1/caption", length="short"),
        about("/v1/query", question=QUESTION),
        about("/v1/query", question=QUESTION, stream=True),
        about("/v1/query", question=QUESTION, choices=["one", "two"]),
        about("/v1/query", question=QUESTION, schema=FORM),
        Asked("/v1/query", {"question": QUESTION, "settings": SETTINGS}),
        Asked("/v1/chat/completions", {"messages": [{"role": "user", "content": said}], "max_tokens": 8}),
        about("/v1/realtime", task="detect", object="mug"),
    ]
    random.Random(seed).shuffle(requests)
    return requests


class Service:
    """A server of both tenants; `admitted` has cache salt and computed positions of each prompt."""

    def __init__(self, live: Live, admitted: list[tuple[str, int]]) -> None:
        self._live = live
        self._admitted = admitted

    def ask(self, key: str, request: Asked) -> tuple[Cost, dict[str, str], Any]:
        """Return cost, headers and body of an answer, without what differs between any two answers."""
        before, first = self._counters, len(self._admitted)
        headers, body = (self._frame if request.path == "/v1/realtime" else self._post)(key, request)
        after = self._counters
        positions = sum(count for _, count in self._admitted[first:])
        crops, grammars = (after[name] - before[name] for name in ("crops_encoded", "grammars_compiled"))
        return Cost(positions, crops, grammars), headers, body

    @property
    def salts(self) -> set[str]:
        return {salt for salt, _ in self._admitted}

    @property
    def _counters(self) -> dict[str, Any]:
        return counters(self._live.fake)  # type: ignore[arg-type]

    def _post(self, key: str, request: Asked) -> tuple[dict[str, str], Any]:
        headers = {"Content-Type": "application/json", "X-Moondream-Auth": key}
        connection = http.client.HTTPConnection(self._live.host, self._live.port, timeout=GUARD)
        with contextlib.closing(connection):
            connection.request("POST", request.path, json.dumps(request.body), headers)
            response = connection.getresponse()
            text = response.read().decode()
            assert response.status == 200, text
            found = {name.lower(): value for name, value in response.getheaders()}
        for name in ("x-request-id", "date", "content-length"):
            found.pop(name, None)
        lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        return found, [_plain(json.loads(line)) for line in lines]

    def _frame(self, key: str, request: Asked) -> tuple[dict[str, str], Any]:
        url = f"ws://{self._live.host}:{self._live.port}{request.path}"
        with connect(url, additional_headers={"X-Moondream-Auth": key}) as socket:
            socket.send(json.dumps({"task": "detect", "object": "mug", "settings": SETTINGS}))
            task = json.loads(socket.recv(GUARD))
            socket.send(base64.b64decode(request.body["image_url"].partition(",")[2]))
            return {}, [_plain(task), _plain(json.loads(socket.recv(GUARD)))]


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in VARYING}


@contextlib.contextmanager
def serving(patch: pytest.MonkeyPatch) -> Iterator[Service]:
    admitted: list[tuple[str, int]] = []
    admit = CacheManager.admit

    def counting(manager: CacheManager, sequence: Any, *spared: int, **how: bool) -> Any:
        found = admit(manager, sequence, *spared, **how)
        if found is not None:
            admitted.append((sequence.cache_salt, sequence.num_tokens - found[0]))
        return found

    # A context of its own: the two servers of a test run one after the other.
    with patch.context() as inner, serve() as model:
        inner.setattr(CacheManager, "admit", counting)
        with live_model(model, api_keys=(HERS, HIS)) as live:
            yield Service(live, admitted)


@pytest.mark.parametrize("seed", range(2))
def test_what_another_tenant_asked_changes_neither_cost_nor_answer(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    requests = asked(seed)
    with serving(monkeypatch) as alone:
        expected = [alone.ask(HERS, request) for request in requests]
        repeated = [alone.ask(HERS, request) for request in requests]
    with serving(monkeypatch) as shared:
        for request in random.Random(-seed).sample(requests, len(requests)):
            shared.ask(HIS, request)
            shared.ask(HIS, request)
        found = [shared.ask(HERS, request) for request in requests]

    assert found == expected
    assert len(shared.salts) == 2
    # These counts do tell who has asked before: her own repetition costs less, in every kind of request.
    for (first, _, _), (second, _, _), request in zip(expected, repeated, requests, strict=True):
        assert second.positions < first.positions, request.path
        assert (second.crops, second.grammars) == (0, 0)
    assert any(cost.grammars for cost, _, _ in expected)


def test_the_metrics_are_not_read_by_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch) as service:
        for key in (HERS, HIS):
            status, body = service._live.get("/metrics", **{"X-Moondream-Auth": key})
            assert (status, json.loads(body)["error"]["code"]) == (403, "metrics_refused")
