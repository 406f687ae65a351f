"""What notebooks show, by the methods that IPython calls."""

import asyncio
import io
import pickle
from collections.abc import Iterator

import pytest
import torch
from PIL import Image, ImageChops

import photonlite
from photonlite.api import VisionModel
from photonlite.images.thumbnail import MAX_BYTES
from photonlite.results import Detections
from tests.serving import IMAGE, double
from tests.tiny import CPU


@pytest.fixture(scope="module")
def model() -> Iterator[VisionModel]:
    with VisionModel(double(), CPU, torch.float64, thumbnails=True) as model:
        yield model


def opened(data: bytes | None) -> Image.Image:
    assert data is not None
    return Image.open(io.BytesIO(data)).convert("RGB")


def test_a_result_shows_itself_drawn(model: VisionModel) -> None:
    found = model.detect(IMAGE, "mug", settings={"max_objects": 3})

    assert found.objects
    assert found.thumbnail is not None
    assert len(found.thumbnail) <= MAX_BYTES
    shown = opened(found._repr_png_())
    assert max(shown.size) == 320
    bare = opened(found.filter(max=0)._repr_png_())
    assert ImageChops.difference(shown, bare).getbbox() is not None
    assert "thumbnail" not in found
    assert opened(pickle.loads(pickle.dumps(found))._repr_png_()).size == shown.size
    assert opened(found.to_pixels(7, 5)._repr_png_()).tobytes() == shown.tobytes()
    assert opened((found + found)._repr_png_()).size == shown.size


def test_a_large_image_is_shown_small(model: VisionModel) -> None:
    found = model.point(Image.new("RGB", (3000, 1500), "navy"), "mug", settings={"max_objects": 1})

    assert opened(found._repr_png_()).size == (512, 256)


def test_twins_and_batches_show_themselves_too(model: VisionModel) -> None:
    settings = {"max_objects": 1}
    tasks = [{"skill": "detect", "image": IMAGE, "object": ["mug", "cup"], "settings": settings}]

    assert model.batch(tasks)[0]._repr_png_() is not None
    assert asyncio.run(model.adetect(IMAGE, "mug", settings={"max_objects": 1}))._repr_png_() is not None
    assert model.query(IMAGE, "why?", settings={"max_tokens": 2}).text is not None


def test_thumbnails_are_off_outside_of_notebooks_in_real_time_and_when_asked(model: VisionModel) -> None:
    assert model.detect(IMAGE, "mug", realtime=True).thumbnail is None
    with VisionModel(double(), CPU, torch.float64) as plain:
        found = plain.detect(IMAGE, "mug", settings={"max_objects": 1})
        assert found.thumbnail is None
        assert found._repr_png_() is None
    assert Detections([])._repr_png_() is None


def test_an_encoded_image_shows_itself(model: VisionModel) -> None:
    encoded = model.encode_image(Image.new("RGB", (60, 40), (200, 60, 20)))

    assert repr(encoded).startswith("EncodedImage(60 x 40 pixels, ")
    assert opened(encoded._repr_jpeg_()).size == (60, 40)


def test_a_closed_model_says_so() -> None:
    model = VisionModel(double(), CPU, torch.float64)
    assert "closed" not in repr(model)
    model.close()
    assert repr(model).endswith(", closed)")


def test_a_loop_tells_what_it_asks_and_how_it_does(model: VisionModel) -> None:
    with photonlite.RealtimeLoop(model, object="mug", settings={"max_objects": 1}, deadline_ms=60_000) as loop:
        loop.submit(IMAGE)
        loop.close()
        shown = repr(loop)

    assert shown.startswith("RealtimeLoop(detect, object='mug', settings={'max_objects': 1}, deadline_ms=60000: 1 ans")
    assert shown.endswith("0 dropped, 0 failed, closed)")
