"""Broken images, by every way in and through the real decoder: a client gets an answer or an error of its own making,
and the server's memory stays what it was.
"""

import asyncio
import base64
import io
import json
import threading
from pathlib import Path

import pytest

from photonlite.errors import ImageError
from photonlite.server.app import create_app
from photonlite.server.transport.streams import WatchedStream
from tests.conftest import Ended
from tests.server.asgi import post
from tests.server.broken_images import Broken, corpus, valid_images
from tests.server.send_broken import CONFIG, WAYS, Decoding, send
from tests.serving import GUARD, make_image, serve

MIB = 2**20


@pytest.fixture(scope="module")
def images() -> list[Broken]:
    return list(corpus())


def test_the_corpus_is_large_and_no_image_comes_twice_for_nothing(images: list[Broken]) -> None:
    assert len({image.data for image in images}) >= 1000
    assert len({image.name.split(":")[0] for image in images if ":" in image.name}) >= len(valid_images())


def test_whole_images_of_every_format_are_answered() -> None:
    async def main() -> list[tuple[str, int]]:
        fake = Decoding()
        app = create_app(fake, CONFIG)
        whole = [Broken(form.name, form.data, form.media_type) for form in valid_images()]
        statuses = [(one.name, (await send(app, one, way))[1].status) for one in whole for way in range(WAYS)]
        fake.close()
        return statuses

    assert [entry for entry in asyncio.run(main()) if entry[1] != 200] == []


SHAPE = {"type": "object", "properties": {"fruit": {"type": "boolean"}}, "required": ["fruit"]}


@pytest.mark.long
@pytest.mark.parametrize("schema", [SHAPE, {"const": "banana"}])
def test_an_image_that_cannot_be_cut_has_a_status_though_the_beginning_of_a_streamed_answer_is_known(
    schema: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begin = threading.Event(), WatchedStream.begin

    async def note(stream: WatchedStream) -> None:
        begun.set()
        await begin(stream)

    def refuse(image: object) -> None:
        assert begun.wait(GUARD)  # the request is in the engine, and its stream is read
        raise ImageError("the image is too narrow: send a wider one")

    def asked(seed: int) -> dict[str, object]:
        data = io.BytesIO()
        make_image(seed).save(data, "PNG")
        uri = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
        return {"image_url": uri, "question": "what?", "stream": True, "schema": schema}

    with serve(grammar_workers=1) as model:
        app = create_app(model, CONFIG)
        whole = asyncio.run(post(app, "/v1/query", asked(1)))
        monkeypatch.setattr(model._session._pool, "cut", refuse)
        monkeypatch.setattr(WatchedStream, "begin", note)
        broken = asyncio.run(post(app, "/v1/query", asked(2)))

    assert (whole.status, broken.status) == (200, 400), broken.messages
    assert b"too narrow" in broken.body


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="tells memory by Linux' /proc")
@pytest.mark.long
@pytest.mark.program("tests.server.send_broken")
def test_broken_ones_are_answered_or_refused_and_leave_nothing_behind(ended: Ended, images: list[Broken]) -> None:
    assert ended.returncode == 0, ended.stderr[-4000:]
    report = json.loads(ended.stdout)

    assert report["wrong"] == []
    assert report["mute"] == []
    assert sum(report["statuses"].values()) == len(images)
    assert set(report["statuses"]) <= {"200", "400", "413"}
    assert min(report["statuses"][status] for status in ("200", "400", "413")) > 100
    assert report["charged"] == 0
    most, left, objects = (report[name] for name in ("most", "left", "objects"))
    assert most < 128 * MIB, f"{most / MIB:.0f} MiB more at the peak"
    assert left < 48 * MIB, f"{left / MIB:.0f} MiB more after {len(images)} images"
    assert objects < MIB / 4, f"{objects / MIB:.1f} MiB of objects more after {len(images)} images"
    assert report["remembered"] == 0
    assert "Warning" not in ended.stderr
