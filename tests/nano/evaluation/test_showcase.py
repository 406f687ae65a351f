"""The demo images and the clip in assets, and what is drawn on them."""

import itertools
import json

import numpy as np
import pytest
from PIL import Image

from bench.nano.evaluation import showcase
from bench.nano.evaluation.showcase import ASSETS, save_animation
from bench.nano.scenes.objects import index_of
from photonlite.results import Detections, Points, Segments

BOX = {"x_min": 0.2, "y_min": 0.3, "x_max": 0.6, "y_max": 0.7}
STILLS = json.loads((ASSETS / "stills.json").read_text(encoding="utf-8"))
CLIP = json.loads((ASSETS / "clip" / "truth.json").read_text(encoding="utf-8"))
SIZE = (960, 640)


class Model:
    """Answers everything with the same place, and records what it is asked."""

    def __init__(self):
        self.asked = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def encode_image(self, image):
        return image

    def detect(self, image, words):
        self.asked.append(("detect", words))
        return Detections([{**BOX, "label": words, "score": 0.98765}])

    def point(self, image, words):
        self.asked.append(("point", words))
        return Points([{"x": 0.5, "y": 0.5, "label": words, "score": 0.9}])

    def segment(self, image, words):
        self.asked.append(("segment", words))
        return Segments([{"path": "M 0 0 L 1 0 L 1 1 Z", "bbox": BOX, "label": words, "score": 0.9}])


@pytest.fixture
def assets(tmp_path, monkeypatch):
    """Small images in the place of the stored ones, and a clip of six frames with a cup."""
    (tmp_path / "clip").mkdir()
    for name in STILLS:
        Image.new("RGB", (96, 64), (90, 120, 90)).save(tmp_path / f"{name}.png")
    save_animation(
        tmp_path / "clip" / "clip.webp", [Image.new("RGB", (48, 32), (40 * n, 90, 90)) for n in range(6)], 30
    )
    rows = [[{"name": "cup"}]] * 6
    (tmp_path / "clip" / "truth.json").write_text(json.dumps({"fps": 30, "frames": rows}), encoding="utf-8")
    monkeypatch.setattr(showcase, "ASSETS", tmp_path)
    return tmp_path


def milliseconds(path):
    total = 0
    with Image.open(path) as animation:
        for number in range(animation.n_frames):
            animation.seek(number)
            animation.load()
            total += animation.info["duration"]
    return total


def test_command_draws_the_images_and_every_other_frame_of_the_clip(assets, monkeypatch):
    model = Model()
    monkeypatch.setattr(showcase.photonlite, "load", lambda checkpoint: model)
    showcase.main(["--out", str(assets / "out")])
    for name in ("desk-detected", "market-points", "street-detected"):
        with Image.open(assets / "out" / f"{name}.png") as plot:
            assert plot.size == (96, 64)
            assert len(plot.getcolors(10_000)) > 3
    assert model.asked.count(("detect", "cup")) == 3
    assert {("detect", "banana"), ("segment", "bus"), ("point", "tangerine")} < set(model.asked)
    assert milliseconds(assets / "out" / "clip-detected.webp") == 200


def test_clip_keeps_its_colours_and_size(assets):
    plots = list(showcase.plot_clip(Model(), assets / "clip" / "clip.webp", ("cup", "key")))
    assert [plot.size for plot in plots] == [(48, 32)] * 3


def test_rates_that_are_no_whole_milliseconds_do_not_drift(tmp_path):
    save_animation(tmp_path / "a.webp", [Image.new("RGB", (32, 16), (8 * n, 0, 0)) for n in range(30)], 30)
    assert milliseconds(tmp_path / "a.webp") == 1000


def test_stored_animations_are_small_enough_for_a_readme():
    for path in (ASSETS / "clip" / "clip.webp", ASSETS / "clip-detected.webp"):
        assert path.stat().st_size <= 1_500_000
        with Image.open(path) as animation:
            assert animation.n_frames > 1


@pytest.mark.long
def test_stored_clip_is_as_long_as_its_truth():
    assert milliseconds(ASSETS / "clip" / "clip.webp") == 1000 * len(CLIP["frames"]) // CLIP["fps"]


def test_objects_of_the_stored_clip_are_in_the_vocabulary_and_the_image():
    for seen in itertools.chain.from_iterable(CLIP["frames"]):
        x0, y0, x1, y1 = seen["box"]
        assert index_of(seen["name"]) is not None
        assert 0 <= x0 < x1 <= 1
        assert 0 <= y0 < y1 <= 1
        assert 0 < seen["visible"] <= 1


@pytest.mark.parametrize("name", STILLS)
def test_stored_image_is_small_enough_for_a_readme(name):
    path = ASSETS / f"{name}.png"
    assert path.stat().st_size < 600_000
    with Image.open(path) as image:
        assert (image.size, image.mode) == (SIZE, "RGB")


@pytest.mark.parametrize("name", STILLS)
def test_stored_image_holds_what_the_checkpoint_knows(name):
    width, height = SIZE
    items = STILLS[name]
    assert 1 <= len(items) <= 10
    for item in items:
        assert index_of(item["name"]) is not None
        x0, y0, x1, y1 = item["extent"]
        assert 0.08 <= max((x1 - x0) * width, (y1 - y0) * height) / height <= 0.45
        assert 0 <= x0 < x1 <= 1
        assert 0 <= y0 < y1 <= 1
    for a, b in itertools.combinations((item["extent"] for item in items), 2):
        shared = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
        assert shared <= 0.3 * min((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))


def test_stored_images_hold_several_bananas_and_tangerines():
    names = {still: [item["name"] for item in items] for still, items in STILLS.items()}
    assert names["desk"].count("banana") >= 2
    assert names["market"].count("tangerine") >= 4
