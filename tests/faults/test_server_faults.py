"""The n-th call at a seam fails below a server: its requests get a status that says so, and it goes on."""

import base64
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from photonlite.server.routes import service
from tests.faults.injection import SEAMS, Fault, broken, disk, killed, shortage
from tests.faults.resources import await_rest, resources
from tests.server.live import GUARD, Live, live_model
from tests.serving import make_image, on_thread, serve

SETTINGS = {"max_tokens": 4, "max_objects": 1}
JSON = {"Content-Type": "application/json"}


def data_uri(seed: int) -> str:
    file = io.BytesIO()
    make_image(seed).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/detect", {"image_url": data_uri(1), "object": "mug", "settings": SETTINGS}),
    ("/v1/caption", {"image_url": data_uri(2), "length": "short", "settings": SETTINGS}),
    ("/v1/query", {"question": "why?", "settings": SETTINGS}),
    ("/v1/query", {"question": "how many?", "schema": {"type": "boolean"}, "settings": SETTINGS}),
]

Answer = tuple[int, dict[str, Any]]


UNCACHED = {"prefix_caching": False, "grammar_cache_bytes": 0, "embedding_cache_bytes": 0}
"""Every question does all the work again."""


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with (
        serve(grammar_workers=1, image_threads=2, **UNCACHED) as model,
        live_model(model, image_workers=0) as live,
    ):
        yield live


def ask(server: Live) -> list[Answer]:
    """Send everything at once."""

    def one(path: str, body: dict[str, Any]) -> Answer:
        status, answer = server.ask("POST", path, json.dumps(body).encode(), JSON)
        return status, json.loads(answer)

    sent = [on_thread(lambda path=path, body=body: one(path, body)) for path, body in ASKED]
    return [future.result(GUARD) for future in sent]


def answers(outcomes: list[Answer]) -> list[Any]:
    names = ("objects", "caption", "answer", "answer")
    return [answer.get(name) for name, (_, answer) in zip(names, outcomes, strict=True)]


def held(server: Live) -> tuple[object, ...]:
    """What the server and its model hold while they have nothing to do; files of closed connections aside."""
    limiter, model = server.ingress.limiter, server.fake
    model_holds = resources(model)  # type: ignore[arg-type]
    shares = (limiter.uploads, limiter.requests, limiter.sockets, limiter.bytes)
    of_model = (model_holds.pages, model_holds.free_rows, model_holds.encoded, model_holds.open_requests)
    return (limiter.open, *(share.used for share in shares), *of_model, model_holds.processes)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "error", "expected_status"),
    [
        *((name, broken, 500) for name in ("device encode", "device prefill", "device decode", "collect")),
        *((name, shortage, 503) for name in ("cutting", "allocating crops", "tokenizing", "detokenizing")),
        ("decoding", shortage, 413),
        ("decoding", disk, 400),
        ("compiling", killed, 503),
        ("compiling", shortage, 503),
        ("starting a compiler", disk, 503),
    ],
)
def test_a_call_that_fails_ends_only_its_requests_with_a_status(
    server: Live, name: str, error: Callable[[], Exception], expected_status: int
) -> None:
    expected = ask(server)
    assert [status for status, _ in expected] == [200] * len(ASKED)
    before, at = held(server), 0
    while True:
        at += 1
        with pytest.MonkeyPatch.context() as patch:
            fault = Fault(patch, server.fake, SEAMS[name], error, at)  # type: ignore[arg-type]
            outcomes = ask(server)
            await_rest(server.fake)  # type: ignore[arg-type]
        if fault.calls < at:
            break
        failed = [(status, answer["error"]) for status, answer in outcomes if status != 200]
        assert {status for status, _ in failed} <= {expected_status}, (at, failed)
        assert all(body["code"] not in ("internal_error", "") for _, body in failed), (at, failed)
        assert len(failed) <= fault.touched
        # What is wrong with an image is for its sender, what is wrong here for the log.
        assert expected_status < 500 or not [body for _, body in failed if "injected" in body["message"]]
        right = zip(answers(outcomes), answers(expected), strict=True)
        assert all(found == wanted for found, wanted in right if found is not None)
        assert answers(ask(server)) == answers(expected)
        assert held(server) == before
        assert service.unfit(server.fake) is None
    assert at > 1
