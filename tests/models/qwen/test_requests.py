"""Requests about images inside prompts: what is encoded, refused before decoding, and which image places are in."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

import photonlite
from photonlite import VisionModel
from photonlite.errors import CapacityError, ImageError, ImageShapeError, SettingsError
from photonlite.images.isolation.pool import DecodePool
from photonlite.images.pool import ImagePool
from photonlite.models.qwen.prompts import QwenPrompts
from tests.compiling import FakeCompiler
from tests.guard import GUARD
from tests.models.qwen.tiny import reference_model, save
from tests.serving import Gate, counters, make_image, on_thread

BOX = {"type": "object", "format": "box"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VisionModel]:
    folder = save(reference_model("2.5"), tmp_path_factory.mktemp("qwen"), "2.5")
    engine: Any = {"max_context": 500, "page_size": 4}
    with photonlite.load(folder, device="cpu", dtype="float32", engine=engine) as loaded:
        yield loaded


def image(seed: int, size: tuple[int, int] = (70, 50)) -> dict[str, Any]:
    return {"type": "image", "image": make_image(seed, size)}


@pytest.mark.parametrize("asked", [{"image": None}, {"image": make_image(1)}, {"image": [make_image(1)] * 2}])
def test_an_answer_that_can_only_be_empty_is_not_submitted(model: VisionModel, asked: Any) -> None:
    before = counters(model)["requests_submitted"]

    found = model.query(**asked, question="What?", regex="")
    streamed = model.query(**asked, question="What?", regex="", stream=True)

    assert (found["answer"], "".join(streamed["answer"]), found.finish_reason) == ("", "", "stop")
    assert counters(model)["requests_submitted"] == before


@pytest.mark.parametrize(
    "parts", [[image(20), "Where?"], ["Where?", image(21)], [image(22), "and", image(23), "Where?"]]
)
def test_images_are_encoded_once_while_a_grammar_is_compiled(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch, parts: Any
) -> None:
    compiler = FakeCompiler(model._prompts.pieces, model._session._compiler._pool._ids, cache_bytes=0)
    compiler.slow = True
    monkeypatch.setattr(model._session, "_compiler", compiler)
    before = counters(model)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    answer = on_thread(lambda: model.chat(messages, schema=BOX))
    while counters(model)["requests_finished"] == before["requests_finished"]:
        assert not answer.done()
    compiler.finish()
    answer.result(GUARD)

    images = sum(isinstance(part, dict) for part in parts)
    assert counters(model)["crops_encoded"] - before["crops_encoded"] == images


def test_an_encoded_image_carries_its_cache_salt(model: VisionModel) -> None:
    encoded = model.encode_image(make_image(30, (70, 50)), cache_salt="tenant")
    before = counters(model)["crops_encoded"]

    model.query(encoded, "What?", settings={"max_tokens": 2})

    assert counters(model)["crops_encoded"] == before


@pytest.mark.parametrize("isolated", [False, True])
def test_transparent_images_are_drawn_on_white(model: VisionModel, isolated: bool) -> None:
    clear = Image.new("RGBA", (70, 50))
    clear.paste((255, 0, 0, 255), (10, 10, 40, 40))
    clear.save(file := io.BytesIO(), "PNG")
    white = Image.new("RGB", clear.size, "white")
    white.paste(clear, mask=clear.getchannel("A"))
    sources = [white, clear, np.asarray(clear), file.getvalue()]
    if isolated:
        pool = DecodePool(model.image_limits, 1)
        sources.append(pool.decode(file.getvalue()))
        pool.close()
    assert len({model.encode_image(source)._prepared.key for source in sources}) == 1


def test_images_of_different_cache_salts_are_not_asked_about_together(model: VisionModel) -> None:
    one, other = (model.encode_image(make_image(31, (70, 50)), cache_salt=salt) for salt in ("a", None))
    with pytest.raises(SettingsError, match="different cache salts"):
        model.query([one, other], "What?", settings={"max_tokens": 2})


def test_places_are_in_the_last_image(model: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    bounds = QwenPrompts.bounds
    monkeypatch.setattr(QwenPrompts, "bounds", lambda self, kind, size: sizes.append(size) or bounds(self, kind, size))
    turns = [{"role": "user", "content": [image(1, (60, 60)), image(2, (120, 90)), "Where is it?"]}]

    model.chat(turns, schema=BOX, settings={"max_tokens": 60})

    assert set(sizes) == {(120, 90)}


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        ([make_image(1)] * 257, ImageError, "257 images, over the limit of 256"),
        ([make_image(1)] * 200, CapacityError, "for 200 images"),
        ([make_image(1, (300, 300))] * 12, CapacityError, "for 12 images"),
        ([make_image(1), make_image(2, (1, 201))], ImageShapeError, "^image 2 of 2: the image has 1 x 201"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_decoded(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch, images: Any, error: Any, message: str
) -> None:
    prepared = Gate(monkeypatch, ImagePool, "prepare", at=0)
    with pytest.raises(error, match=message):
        model.query(images, "What?", settings={"max_tokens": 2})
    assert prepared.calls == 0
