import json

import pytest
from PIL import Image, ImageSequence

from bench.nano.demo import showcase
from bench.nano.demo.clip import save_animation
from bench.nano.demo.stills import ASSETS, STILLS
from photonlite.results import Detections, Points, Segments

BOX = {"x_min": 0.2, "y_min": 0.3, "x_max": 0.6, "y_max": 0.7}


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
    for still in STILLS:
        Image.new("RGB", (96, 64), (90, 120, 90)).save(tmp_path / f"{still.name}.png")
    frames = [Image.new("RGB", (48, 32), (40 * n, 90, 90)) for n in range(6)]
    save_animation(tmp_path / "clip" / "clip.webp", frames, 30, quality=55)
    rows = [[{"name": "cup"}]] * 6
    (tmp_path / "clip" / "truth.json").write_text(json.dumps({"fps": 30, "frames": rows}), encoding="utf-8")
    monkeypatch.setattr(showcase, "ASSETS", tmp_path)
    return tmp_path


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
    with Image.open(assets / "out" / "clip-detected.webp") as animation:
        assert sum(frame.copy().info["duration"] for frame in ImageSequence.Iterator(animation)) == 200


def test_clip_keeps_its_colours_and_size(assets):
    plots = list(showcase.plot_clip(Model(), assets / "clip" / "clip.webp", ("cup", "key")))
    assert [plot.size for plot in plots] == [(48, 32)] * 3


def test_stored_plot_of_the_clip_is_small_enough_for_a_readme():
    path = ASSETS / "clip-detected.webp"
    assert path.stat().st_size <= 1_500_000
    with Image.open(path) as animation:
        assert animation.n_frames > 1
