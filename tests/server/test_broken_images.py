"""Broken pictures, by every way in and through the real decoder: a client gets an answer or an error of its own making,
and the server's memory stays what it was.
"""

import asyncio
import base64
import gc
import os
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from photonlite.config import ImageLimits
from photonlite.images.crops import CropSpec
from photonlite.images.pool import ImagePool
from photonlite.server.app import create_app
from photonlite.server.backend import Call
from photonlite.server.config import ServerConfig
from photonlite.server.schema import document
from tests.server.asgi import Exchange, post
from tests.server.broken_images import Broken, corpus, valid_pictures
from tests.server.fake import FakeBackend

# Pillow warns of what it finds in damaged files, and a warning would pass for the error that is looked for here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")

PROCESS = Path("/proc/self")
MIB = 2**20
CONFIG = ServerConfig()


class Decoding(FakeBackend):
    """A fake engine behind the real threads that decode, hash and cut pictures."""

    def __init__(self) -> None:
        super().__init__()
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pool = ImagePool(CropSpec(98, 14, 1, 4), ImageLimits(max_pixels=4_000_000), 2, on_ready=self._announce)

    async def run(self, call: Call) -> Mapping[str, Any]:
        image = call.image
        assert image is not None
        prepared = await asyncio.wrap_future(self._pool.submit(lambda: self._pool.prepare(image)))
        self._ready.clear()
        prepared.request_crops()
        while prepared.crops is None and prepared.failure is None:
            await self._ready.wait()
        if prepared.failure is not None:
            raise prepared.failure
        self.calls.clear()  # or it would be this list that grows
        return await super().run(call)

    def close(self) -> None:
        self._pool.close()

    def _announce(self) -> None:
        self._loop.call_soon_threadsafe(self._ready.set)


def ways(broken: Broken) -> list[tuple[str, Any, dict[str, str]]]:
    """Path, body and headers of every way in."""
    uri = f"data:{broken.media_type};base64,{base64.b64encode(broken.data).decode()}"
    parts = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": uri}}]
    form = (
        b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n%b\r\n'
        b'--b\r\nContent-Disposition: form-data; name="object"\r\n\r\nmug\r\n--b--\r\n' % broken.data
    )
    return [
        ("/v1/caption", {"image_url": uri}, {}),
        ("/v1/detect?object=mug", broken.data, {"content-type": broken.media_type}),
        ("/v1/point", form, {"content-type": "multipart/form-data; boundary=b"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]}, {}),
    ]


async def send(app: Starlette, broken: Broken, way: int) -> Exchange:
    path, body, headers = ways(broken)[way]
    return await post(app, path, body, headers)


def documented() -> dict[str, set[int]]:
    paths = document(CONFIG)["paths"]
    posts = {path: methods["post"] for path, methods in paths.items() if "post" in methods}
    return {path: {int(status) for status in post["responses"]} for path, post in posts.items()}


def held() -> int:
    """Bytes of memory that the process has now."""
    gc.collect()
    return int((PROCESS / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def traced() -> int:
    """Bytes of Python's objects: unlike the process's memory, exact."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def peak() -> int:
    """Bytes of memory that the process has had at most since `forget_peak`."""
    lines = (PROCESS / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    (PROCESS / "clear_refs").write_text("5")


@pytest.fixture(scope="module")
def pictures() -> list[Broken]:
    return list(corpus())


def test_the_corpus_is_large_and_no_picture_comes_twice_for_nothing(pictures: list[Broken]) -> None:
    assert len({picture.data for picture in pictures}) >= 1000
    assert len({picture.name.split(":")[0] for picture in pictures if ":" in picture.name}) >= len(valid_pictures())


def test_whole_pictures_of_every_format_are_answered() -> None:
    async def main() -> Iterator[tuple[str, int]]:
        backend = Decoding()
        app = create_app(backend, CONFIG)
        whole = [Broken(form.name, form.data, form.media_type) for form in valid_pictures()]
        statuses = [(one.name, (await send(app, one, way)).status) for one in whole for way in range(len(ways(one)))]
        backend.close()
        return iter(statuses)

    assert [entry for entry in asyncio.run(main()) if entry[1] != 200] == []


@pytest.mark.skipif(not (PROCESS / "clear_refs").exists(), reason="tells memory by Linux' /proc")
def test_broken_ones_are_answered_or_refused_and_leave_nothing_behind(pictures: list[Broken]) -> None:
    allowed = documented()
    wrong: list[tuple[str, str, int]] = []
    statuses: Counter[int] = Counter()

    async def check(app: Starlette, broken: Broken, way: int) -> None:
        exchange = await send(app, broken, way)
        path = ways(broken)[way][0].partition("?")[0]
        statuses[exchange.status] += 1
        if exchange.status not in allowed[path] or exchange.status >= 500:
            wrong.append((broken.name, path, exchange.status))
        elif exchange.status != 200:
            assert exchange.code

    async def main() -> tuple[int, int, int]:
        backend = Decoding()
        app = create_app(backend, CONFIG)
        await everything(app, 1)  # what is loaded and pooled once is no leak
        tracemalloc.start()
        await everything(app, 5)
        before, objects = held(), traced()
        forget_peak()
        await everything(app, 1)
        grown = peak() - before, held() - before, traced() - objects
        tracemalloc.stop()
        assert app.state.ingress.open_bytes == 0
        backend.close()
        return grown

    async def everything(app: Starlette, step: int) -> None:
        for index, broken in enumerate(pictures[::step]):
            await check(app, broken, index % 4)

    most, left, objects = asyncio.run(main())

    assert wrong == []
    assert set(statuses) <= {200, 400, 413}
    assert min(statuses[status] for status in (200, 400, 413)) > 100
    assert most < 128 * MIB, f"{most / MIB:.0f} MiB more at the peak"
    assert left < 96 * MIB, f"{left / MIB:.0f} MiB more after {len(pictures)} pictures"
    assert objects < MIB / 4, f"{objects / MIB:.1f} MiB of objects more after {len(pictures)} pictures"
