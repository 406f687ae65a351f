"""Sends broken images to a server by every way in, through the real decoder, and tells what became of them.

A program: in a process of its own what is left in memory is what the server has left there. Run it with the limits of
`photonlite serve`; it prints one JSON object.
"""

import asyncio
import base64
import gc
import json
import os
import sys
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from photonlite.config import ImageLimits
from photonlite.images.crops import CropSpec
from photonlite.images.decode import ignore_pillow_warnings
from photonlite.images.pool import ImagePool
from photonlite.server.app import create_app
from photonlite.server.calls import Call
from photonlite.server.config import ServerConfig
from photonlite.server.routes.docs import document
from tests.server.asgi import Exchange, post
from tests.server.broken_images import Broken, corpus
from tests.server.fake import FakeModel

PROCESS = Path("/proc/self")
CONFIG = ServerConfig()
WAYS = 4


@dataclass
class Report:
    """What became of the images.

    Attributes:
        wrong: Name, path and status of what was answered as no client should be.
        mute: Errors without a code.
        statuses: How often each came.
        most: Bytes of memory more than before, at the peak.
        left: Bytes of memory more than before, after all of them.
        objects: Bytes of Python's objects more than before.
        charged: Bytes that the server still counts as in use.
        remembered: Warnings that Python remembers.
    """

    wrong: list[tuple[str, str, int]] = field(default_factory=list)
    mute: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    most: int = 0
    left: int = 0
    objects: int = 0
    charged: int = 0
    remembered: int = 0


class Decoding(FakeModel):
    """A fake engine behind the real threads that decode, hash and cut images."""

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


async def send(app: Starlette, broken: Broken, way: int) -> tuple[str, Exchange]:
    """Send an image by one of `WAYS`; gives the path, too."""
    path, body, headers = _ways(broken)[way]
    return path.partition("?")[0], await post(app, path, body, headers)


def _ways(broken: Broken) -> list[tuple[str, Any, dict[str, str]]]:
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


async def send_all() -> Report:
    images = list(corpus())
    fake = Decoding()
    app = create_app(fake, CONFIG)
    await _everything(app, images, Report())  # what is loaded and pooled once is no leak
    tracemalloc.start()
    await _everything(app, images[::5], Report())
    before, objects = _held(), _traced()
    (PROCESS / "clear_refs").write_text("5")  # forgets the peak
    report = Report()
    await _everything(app, images, report)
    report.most, report.left, report.objects = _peak() - before, _held() - before, _traced() - objects
    report.charged = app.state.ingress.limiter.bytes.used
    fake.close()
    registries = [vars(module).get("__warningregistry__", {}) for module in sys.modules.values()]
    report.remembered = sum(isinstance(key, tuple) for registry in registries for key in registry)
    return report


async def _everything(app: Starlette, images: list[Broken], report: Report) -> None:
    allowed = _documented()
    for index, broken in enumerate(images):
        path, exchange = await send(app, broken, index % WAYS)
        report.statuses[exchange.status] += 1
        if exchange.status not in allowed[path] or exchange.status >= 500:
            report.wrong.append((broken.name, path, exchange.status))
        elif exchange.status != 200 and not exchange.code:
            report.mute.append(broken.name)


def _documented() -> dict[str, set[int]]:
    paths = document(CONFIG)["paths"]
    posts = {path: methods["post"] for path, methods in paths.items() if "post" in methods}
    return {path: {int(status) for status in post["responses"]} for path, post in posts.items()}


def _held() -> int:
    """Bytes of memory that the process has now."""
    gc.collect()
    return int((PROCESS / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _traced() -> int:
    """Bytes of Python's objects: unlike the process's memory, exact."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _peak() -> int:
    """Bytes of memory that the process has had at most since that was forgotten."""
    lines = (PROCESS / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    ignore_pillow_warnings()
    report = asyncio.run(send_all())
    print(json.dumps(vars(report)))
