"""The page of mistakes: what is on it, how it is marked, and how large it may be."""

import re
from functools import cache

import numpy as np
import pytest

from bench.nano.evaluation.failures import page as failures
from bench.nano.evaluation.failures.drawing import COLOURS, SIDE, thumbnail
from bench.nano.evaluation.failures.page import write_failures
from bench.nano.evaluation.failures.panels import SECTIONS, Shape
from bench.nano.evaluation.failures.text import asked_html, caption_html
from bench.nano.evaluation.figures.headline import compare
from bench.nano.evaluation.records import CaptionRecord, QueryRecord
from bench.nano.scenes.objects import index_of
from tests.nano.evaluation.oracle import OBJECTS, SEEDS, Oracle, judged, scenes, sprites

BANANA, DOG, KEY = map(index_of, ("banana", "dog", "key"))
PANELS = {section.name: section.panels for section in SECTIONS}


@pytest.fixture(autouse=True)
def known_scenes(monkeypatch):
    # The page draws its scenes anew from their seeds, with sizes of their own.
    by_seed = dict(zip(SEEDS, scenes(), strict=True))
    monkeypatch.setattr(failures, "make_scene", lambda seed, *_: by_seed[seed])


def written(folder, records, **options):
    page = write_failures(folder, records, OBJECTS, sprites(), **options).read_text(encoding="utf-8")
    return page, re.findall(r'src="([^"]+)"', page)


def spoiled():
    return Oracle(
        boxes=lambda boxes: boxes[1:],
        points=lambda points: [(0.0, 0.0)] * len(points),
        mask=lambda _: [],
        text=lambda text: text.replace("1 ", "2 "),
        word=lambda word: f"not {word}",
        grounding=lambda points: points[1:],
        typed=lambda answer: answer + 1 if type(answer) is int else [] if isinstance(answer, list) else answer,
    )


@cache
def spoiled_records():
    """Enough scenes for every section to have a mistake."""
    return judged(spoiled())[:5]


@pytest.mark.long
def test_every_section_shows_its_scenes(tmp_path):
    records = spoiled_records()
    page, images = written(tmp_path, records, headline=compare(records, 10))
    assert all(f'id="{section.name}"' in page and f'href="#{section.name}"' in page for section in SECTIONS)
    shown = {image.removeprefix("failures/").split("-")[0] for image in images}
    assert shown == {section.name for section in SECTIONS}
    assert all((tmp_path / image).stat().st_size for image in images)
    assert {file.name for file in (tmp_path / "failures").iterdir()} == {one.split("/")[1] for one in images}
    assert "detect, F1 at IoU 0.5" in page


def test_scenes_without_mistakes_are_left_off(tmp_path):
    page, images = written(tmp_path, judged(Oracle()))
    assert images == []
    assert "<article" not in page
    assert "0 of 12 scenes" in page


def test_skills_that_were_not_examined_have_no_section(tmp_path):
    page, _ = written(tmp_path, judged(Oracle(refuses=("segment", "references", "reasoning"))))
    assert set(re.findall(r'<section id="(\w+)"', page)) == {
        "detect", "point", "caption", "count", "spatial", "colour", "typed",
    }  # fmt: skip


def test_worst_scenes_come_first(tmp_path):
    records = judged(Oracle(boxes=lambda boxes: []), ["detect"])
    _, images = written(tmp_path, records)
    order = list(dict.fromkeys(int(image.split("-")[1]) for image in images))
    missed = {record.seed: sum(len(question.truth) for question in record.detections) for record in records}
    assert [missed[seed] for seed in order] == sorted(missed.values(), reverse=True)


@pytest.mark.long
def test_the_page_keeps_to_its_size(tmp_path, monkeypatch):
    records = spoiled_records()
    _, all_images = written(tmp_path, records)
    monkeypatch.setattr(failures, "MAX_BYTES", failures._TEXT_BYTES + 200_000)
    _, images = written(tmp_path, records)
    assert 0 < len(images) < len(all_images)
    assert sum(file.stat().st_size for file in (tmp_path / "failures").iterdir()) <= 200_000


def test_images_of_an_earlier_page_are_replaced(tmp_path):
    written(tmp_path, judged(spoiled(), ["detect"]))
    written(tmp_path, judged(Oracle(), ["detect"]))
    assert list((tmp_path / "failures").iterdir()) == []


def test_words_from_outside_cannot_be_html():
    shown = asked_html(QueryRecord("count", "name", "<i>how many?", "1", "<b>2</b>"))
    assert "<i>" not in shown
    assert "<del>&lt;b&gt;2&lt;/b&gt;</del> <ins>1</ins>" in shown


def test_captions_are_marked_where_they_are_wrong():
    caption = CaptionRecord(
        "A picture of 2 bananas, 1 dog and 3 glorps. The dog is at the top and left.",
        {BANANA: 3, DOG: 1, KEY: 1},
        "long",
        {BANANA: ["left"], DOG: ["left"], KEY: ["top"]},
    )
    shown = caption_html(caption)
    assert re.findall("<del>(.*?)</del>", shown) == ["2 bananas", "3 glorps", "top"]
    assert re.findall("<ins>(.*?)</ins>", shown) == ["3 bananas, 1 key"]


def test_a_kind_that_is_named_twice_is_wrong_the_second_time():
    shown = caption_html(CaptionRecord("1 dog, 1 key and 1 dog.", {DOG: 1, KEY: 1}))
    assert shown.endswith("1 dog, 1 key and <del>1 dog</del>.</p>")


def test_what_is_missed_and_what_is_wrong_have_their_own_colours():
    (record,) = judged(Oracle(boxes=lambda boxes: [(0.0, 0.0, 0.02, 0.02)]), ["detect"])[:1]
    roles = [shape.role for panel in PANELS["detect"](record) for shape in panel.shapes]
    assert set(roles) == {"missed", "wrong"}
    (record,) = judged(Oracle(boxes=lambda boxes: [*boxes, (0.0, 0.0, 0.02, 0.02)]), ["detect"])[:1]
    roles = [shape.role for panel in PANELS["detect"](record) for shape in panel.shapes]
    assert set(roles) == {"found", "right", "wrong"}


def test_marks_that_were_handed_in_are_drawn():
    record = judged(Oracle(word=lambda word: "Nothing at all", mask=lambda _: [], points=lambda _: []))[0]
    for section in ("point", "segment", "reference"):
        shapes = [shape for panel in PANELS[section](record) for shape in panel.shapes]
        assert any(shape.role == "reference" for shape in shapes)
    assert any(shape.object is not None for panel in PANELS["segment"](record) for shape in panel.shapes)


@pytest.mark.parametrize(
    "shape",
    [
        Shape("wrong", (0.5, 0.5)),
        Shape("wrong", (0.25, 0.25, 0.5, 0.5)),
        Shape("wrong", outline=[(0.2, 0.2), (0.8, 0.2), (0.5, 0.8)]),
        Shape("wrong", object=0),
    ],
)
def test_shapes_leave_their_colour(shape):
    scene = scenes()[0]
    plain, drawn = (np.asarray(thumbnail(scene, shapes), int) for shapes in ((), (shape,)))
    assert max(drawn.shape) == SIDE
    changed = (plain != drawn).any(axis=2)
    assert 20 < changed.sum() < changed.size / 2
    colour = np.array([int(COLOURS["wrong"][i : i + 2], 16) for i in (1, 3, 5)])
    assert (np.abs(drawn - colour).sum(axis=2) < 60).sum() > (np.abs(plain - colour).sum(axis=2) < 60).sum() + 20
