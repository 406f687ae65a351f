import json

import numpy as np
import pytest
from PIL import Image

from bench.nano.demo import showcase
from bench.nano.demo.clip import CLIP, frames, save_animation
from bench.nano.demo.stills import STILLS
from photonlite.errors import UnsupportedSkillError
from photonlite.results import Answer, Caption, Detections, Points, Segments

BOX = {"x_min": 0.2, "y_min": 0.3, "x_max": 0.6, "y_max": 0.7}
ALL = ("caption", "query", "detect", "point", "segment")


class Model:
    """Answers everything with the same place, and remembers what it was asked."""

    def __init__(self, skills=ALL, reasons=True):
        self.skills, self.reasons, self.asked = skills, reasons, []

    def _ask(self, skill, words):
        assert skill in self.skills
        self.asked.append((skill, words))

    def encode_image(self, image):
        return image

    def detect(self, image, words):
        self._ask("detect", words)
        return Detections([{**BOX, "label": words, "score": 0.98765}])

    def point(self, image, words):
        self._ask("point", words)
        return Points([{"x": 0.5, "y": 0.5, "label": words, "score": 0.9}])

    def segment(self, image, words):
        self._ask("segment", words)
        return Segments([{"path": "M 0 0 L 1 0 L 1 1 Z", "bbox": BOX, "label": words, "score": 0.9}])

    def caption(self, image, length):
        self._ask("caption", length)
        return Caption(f"a {length} text")

    def query(self, image, words, reasoning=False):
        self._ask("query", words)
        if reasoning and not self.reasons:
            raise UnsupportedSkillError("no reasoning")
        return Answer("7", {"text": "bananas", "grounding": []} if reasoning else None)


@pytest.fixture
def stills(tmp_path):
    folder = tmp_path / "stills"
    folder.mkdir()
    for still in STILLS:
        Image.new("RGB", (96, 64), (90, 120, 90)).save(folder / f"{still.name}.png")
    return folder


def test_plots_show_what_was_found(stills, tmp_path):
    model = Model()
    notes = list(showcase.plot_stills(model, stills, tmp_path))
    assert len(notes) == 3
    for name in ("desk-detected", "market-points", "street-detected"):
        with Image.open(tmp_path / f"{name}.png") as plot:
            assert plot.size == (96, 64)
            assert len(plot.getcolors(10_000)) > 3
    assert ("detect", "banana") in model.asked
    assert ("segment", "bus") in model.asked


@pytest.mark.parametrize("missing", ["detect", "point", "segment"])
def test_missing_skills_are_left_out_with_a_note(stills, tmp_path, missing):
    skills = tuple(skill for skill in ALL if skill != missing)
    notes = list(showcase.plot_stills(Model(skills), stills, tmp_path))
    assert any(f"no skill {missing}" in note for note in notes)
    assert (tmp_path / "desk-detected.png").exists() == (missing != "detect")
    assert (tmp_path / "market-points.png").exists() == (missing != "point")


def test_outlines_and_boxes_share_the_street(stills, tmp_path):
    list(showcase.plot_stills(Model(), stills, tmp_path))
    with Image.open(tmp_path / "street-detected.png") as plot:
        both = np.asarray(plot)
    list(showcase.plot_stills(Model(("detect",)), stills, tmp_path))
    with Image.open(tmp_path / "street-detected.png") as plot:
        boxes = np.asarray(plot)
    assert not np.array_equal(both, boxes)


def test_clip_keeps_its_colours_and_size():
    images = [Image.new("RGB", (120, 80), (128, 128, 128))] * 2
    plots = list(showcase.plot_clip(Model(), images, ("cup", "key")))
    assert [plot.size for plot in plots] == [(120, 80)] * 2
    assert np.array_equal(plots[0], plots[1])
    assert not np.array_equal(plots[0], images[0])


def test_clip_is_plotted_at_half_its_rate(tmp_path):
    source = tmp_path / "clip"
    source.mkdir()
    save_animation(source / "clip.webp", [Image.new("RGB", (48, 32), (40 * n, 90, 90)) for n in range(6)])
    row = [{"id": 0, "name": "cup", "box": [0, 0, 1, 1], "visible": 1.0}]
    (source / "truth.json").write_text(json.dumps({"frames": [row] * 6}), encoding="utf-8")
    model = Model()
    assert "bytes" in showcase.write_clip_plot(model, tmp_path, source)
    assert model.asked == [("detect", "cup")] * 3
    with Image.open(tmp_path / "clip-detected.webp") as animation:
        times = []
        for number in range(animation.n_frames):
            animation.seek(number)
            animation.load()
            times.append(animation.info["duration"])
    assert sum(times) == 200


def test_clip_needs_detect(tmp_path):
    assert "left out" in showcase.write_clip_plot(Model(("caption",)), tmp_path)
    assert not (tmp_path / "clip-detected.webp").exists()


def test_texts_hold_captions_answers_and_json(stills):
    model = Model()
    lines = list(showcase.texts(model, stills))
    for length in showcase.LENGTHS:
        assert lines.count(f"| {length} | a {length} text |") == len(STILLS)
    for questions in showcase.QUESTIONS.values():
        assert all(f"| {question} | 7 |" in lines for question in questions)
    assert json.loads(lines[-2])[0] == {**BOX, "label": "banana", "score": 0.988}
    assert any('"reasoning"' in line for line in lines)


def test_texts_do_without_reasoning_and_other_skills(stills):
    lines = list(showcase.texts(Model(reasons=False), stills))
    assert sum("Reasoning is left out" in line for line in lines) == 2
    bare = list(showcase.texts(Model(()), stills))
    assert not any("|" in line or "`" in line for line in bare)


def test_stored_plots_are_small():
    plots = [path for path in CLIP.parent.glob("*-detected.*") if path.suffix == ".webp"]
    assert plots
    for path in plots:
        assert path.stat().st_size <= 1_500_000
        assert len(list(frames(path))) > 1


def test_questions_are_about_the_stills():
    assert set(showcase.QUESTIONS) == {still.name for still in STILLS}
