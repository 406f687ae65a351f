"""Photographs: what a model claims to see on them is counted and drawn, what they do show is not asked for."""

import json

import pytest
from PIL import Image

from bench.nano.evaluation import photographs
from bench.nano.evaluation.photographs import NAMES, PHOTOGRAPHS, FalseBox, draw, false_boxes, photograph

GREY = Image.new("RGB", (40, 20), (90, 90, 90))


class Model:
    """Sees one thing, in the left half."""

    def __init__(self, sees, score=0.9):
        self.sees, self.score, self.asked = sees, score, []

    def encode_image(self, image):
        return image

    def batch(self, tasks):
        self.asked += [task["object"] for task in tasks]
        box = {"x_min": 0.0, "y_min": 0.0, "x_max": 0.5, "y_max": 1.0, "score": self.score}
        return [{"objects": [box] if task["object"] == self.sees else []} for task in tasks]


def package_of(monkeypatch, tmp_path):
    for package, file in PHOTOGRAPHS:
        target = tmp_path / package / file
        target.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('imported')")
        GREY.save(target)
    monkeypatch.syspath_prepend(tmp_path)


def test_forty_names_are_asked_for_but_what_is_shown():
    assert len(set(NAMES)) == 40
    assert all(set(shown) < set(NAMES) for shown in PHOTOGRAPHS.values())
    model = Model("dog")
    assert list(false_boxes(model, "wall", GREY, ["cat"])) == [FalseBox("wall", "dog", (0.0, 0.0, 0.5, 1.0), 0.9)]
    assert set(model.asked) == {*NAMES} - {"cat"}
    assert not list(false_boxes(model, "wall", GREY, ["dog"]))


def test_sure_boxes_are_counted_and_drawn(monkeypatch, tmp_path, capsys):
    package_of(monkeypatch, tmp_path)
    for score, sure in ((0.9, len(PHOTOGRAPHS)), (0.4, 0)):
        monkeypatch.setattr(photographs.photonlite, "load", lambda *a, score=score, **k: Model("dog", score))
        photographs.main(["--out", str(tmp_path / "out" / str(score))])
        assert f"{sure} boxes over 0.5, {len(PHOTOGRAPHS)} boxes in all" in capsys.readouterr().out
        assert len(list((tmp_path / "out" / str(score)).glob("*.jpg"))) == sure
        (row,) = json.loads((tmp_path / "out" / str(score) / "photographs.json").read_text())["headline"]
        assert (row["figure"], row["met"]) == (sure, not sure)


def test_a_box_is_drawn_where_it_is():
    drawn = draw(GREY, [FalseBox("wall", "", (0.5, 0.0, 1.0, 1.0), 0.9)])
    assert drawn.getpixel((20, 10)) == (255, 45, 85)
    assert drawn.getpixel((5, 10)) == GREY.getpixel((5, 10)) == (90, 90, 90)


def test_a_missing_package_is_named():
    with pytest.raises(ModuleNotFoundError, match="no_such_package is missing: pip install"):
        photograph("no_such_package", "data/x.png")
