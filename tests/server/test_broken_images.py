"""Broken images, by every way in and through the real decoder: a client gets an answer or an error of its own making,
and the server's memory stays what it was.
"""

import asyncio
import json
from pathlib import Path

import pytest

from photonlite.server.app import create_app
from tests.conftest import Ended
from tests.server.broken_images import Broken, corpus, valid_images
from tests.server.send_broken import CONFIG, WAYS, Decoding, send

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
