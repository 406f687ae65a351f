"""A hostile image on every route: its sender gets an error, the model never sees it, and nothing of it is left."""

import asyncio
import base64
import json
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from photonlite.config import ImageLimits
from photonlite.images.isolation.pool import DecodePool
from photonlite.images.source import DecodedImage
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from photonlite.server.images import RequestImages
from photonlite.server.run import decoding
from tests.images.bombs import BOMBS
from tests.server.asgi import Exchange, post
from tests.server.fake import FakeModel
from tests.server.live import live, wait_until
from tests.server.parts import encoded
from tests.server.routes.test_realtime import client
from tests.serving import run

LIMITS = ImageLimits(decode_cpu_s=0.1, decode_cpu_s_per_megapixel=0.001)
Route = Callable[[bytes], tuple[str, bytes, dict[str, str]]]
JSON = {"content-type": "application/json"}
FORM = {"content-type": "multipart/form-data; boundary=x"}


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodePool]:
    pool = DecodePool(LIMITS, 1)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def bomb() -> bytes:
    return BOMBS["jpeg_scans"]()


def uri(image: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(image).decode()


def raw(image: bytes) -> tuple[str, bytes, dict[str, str]]:
    return "/v1/detect?object=mug", image, {"content-type": "image/jpeg"}


def as_json(image: bytes) -> tuple[str, bytes, dict[str, str]]:
    return "/v1/detect", json.dumps({"object": "mug", "image_url": uri(image)}).encode(), JSON


def form(image: bytes) -> tuple[str, bytes, dict[str, str]]:
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    return "/v1/caption", head + image + b"\r\n--x--\r\n", FORM


def stream(image: bytes) -> tuple[str, bytes, dict[str, str]]:
    return "/v1/caption", json.dumps({"stream": True, "image_url": uri(image)}).encode(), JSON


def chat(image: bytes) -> tuple[str, bytes, dict[str, str]]:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": uri(image)}}]
    return "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": parts}]}).encode(), JSON


@pytest.mark.long
@pytest.mark.parametrize("route", [raw, as_json, form, stream, chat])
def test_a_hostile_image_fails_its_own_request_only(route: Route, pool: DecodePool, bomb: bytes) -> None:
    fake = FakeModel()
    app = create_app(fake, ServerConfig(), RequestImages(pool))
    refused = run(post(app, *route(bomb)))
    assert (refused.status, refused.code) == (400, "image_too_costly")
    assert "PHOTONLITE_DECODE_CPU_S" in json.loads(refused.body)["error"]["message"]
    assert fake.calls == []
    assert app.state.ingress.limiter.bytes.used == 0
    assert run(post(app, *route(encoded((30, 20))))).status == 200
    image = fake.calls[0].image
    assert isinstance(image, DecodedImage)
    assert image.size == (30, 20)


def test_a_hostile_frame_gets_an_error(pool: DecodePool, bomb: bytes) -> None:
    fake = FakeModel()
    app = create_app(fake, ServerConfig(port=0), RequestImages(pool))
    with live(fake, app) as server, client(server) as robot:
        robot.ask(task="detect", object="mug")
        robot.show(bomb)
        assert robot.code() == (0, "image_too_costly")
        robot.show(encoded())
        assert robot.hear()["frame"] == 1


def test_a_client_that_leaves_frees_the_worker(bomb: bytes) -> None:
    async def main(pool: DecodePool) -> None:
        app = create_app(FakeModel(), ServerConfig(), RequestImages(pool))
        async with Exchange(app, *raw(bomb)) as exchange:
            while not pool.jobs.running:
                await asyncio.sleep(0)
            exchange.leave()
        while pool.jobs.running:
            await asyncio.sleep(0)
        assert app.state.ingress.limiter.bytes.used == 0

    pool = DecodePool(ImageLimits(decode_cpu_s=600.0), 1)
    try:
        run(main(pool))
    finally:
        pool.close()


@pytest.mark.long
def test_stopping_ends_hostile_images_that_are_being_decoded(bomb: bytes) -> None:
    fake = FakeModel()
    pool = DecodePool(ImageLimits(decode_cpu_s=600.0), 1)
    try:
        app = create_app(fake, ServerConfig(port=0), RequestImages(pool))
        with live(fake, app, drain_s=0.0) as server, server.connect() as connection:
            head = f"POST /v1/caption HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(bomb)}\r\n"
            connection.sendall(head.encode() + b"Content-Type: image/jpeg\r\n\r\n" + bomb)
            wait_until(lambda: pool.jobs.running == 1)
            assert server.stop() == 0
        wait_until(lambda: pool.jobs.running == 0)
    finally:
        pool.close()


def test_workers_start_and_end_with_the_server() -> None:
    with decoding(ServerConfig(image_workers=1), LIMITS) as images:
        assert images._pool is not None
        (pid,) = images._pool.pids
        os.kill(pid, signal.SIGTERM)  # of a service manager that stops all processes of a group
        os.kill(pid, signal.SIGINT)
        assert images._pool.decode(encoded()).size == (8, 6)
        assert images._pool.pids == [pid]
    assert not os.path.exists(f"/proc/{pid}")


def test_isolation_can_be_turned_off() -> None:
    with decoding(ServerConfig(image_workers=0), LIMITS) as images:
        assert images._pool is None
