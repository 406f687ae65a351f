"""The page of mistakes: which answers are on it, in what order, and what is drawn."""

import re
from functools import cache

import numpy as np
import pytest

from bench.nano.evaluation.failures import COLOURS, MISTAKES, SIDE, Shape, thumbnail, write_failures
from bench.nano.evaluation.records import CaptionRecord, QueryRecord, SceneRecord
from bench.nano.scenes.objects import index_of
from tests.nano.evaluation.oracle import SEEDS, Oracle, judged, perfect_records, scenes

BANANA, DOG, KEY = map(index_of, ("banana", "dog", "key"))


def written(folder, records):
    write_failures(folder, records, lambda seed: scenes()[SEEDS.index(seed)])
    page = (folder / "failures.html").read_text(encoding="utf-8")
    return page, re.findall(r"src=(\S+\.jpg)", page)


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
    """Enough scenes for every skill to have a mistake."""
    return judged(spoiled())[:5]


def texts(skill, **fields):
    record = SceneRecord(0, "wood", 10, 10, **fields)
    return [mistake.html for mistake in MISTAKES[skill](record)]


def roles(record, skill):
    return {shape.role for mistake in MISTAKES[skill](record) for shape in mistake.shapes}


@pytest.mark.long
def test_every_skill_shows_its_scenes(tmp_path):
    _, images = written(tmp_path, spoiled_records())
    assert {image.removeprefix("failures/").split("-")[0] for image in images} == set(MISTAKES)
    assert all((tmp_path / image).stat().st_size for image in images)
    assert {file.name for file in (tmp_path / "failures").iterdir()} == {one.split("/")[1] for one in images}


def test_scenes_without_mistakes_are_left_off(tmp_path):
    page, images = written(tmp_path, perfect_records())
    assert images == []
    assert page.count("0 of 12 scenes") == len(MISTAKES)


def test_worst_scenes_come_first(tmp_path):
    records = judged(Oracle(boxes=lambda boxes: []), ["detect"])
    _, images = written(tmp_path, records)
    order = list(dict.fromkeys(int(image.split("-")[1]) for image in images))
    missed = {record.seed: sum(len(question.truth) for question in record.detections) for record in records}
    assert [missed[seed] for seed in order] == sorted(missed.values(), reverse=True)


def test_images_of_an_earlier_page_are_removed(tmp_path):
    written(tmp_path, judged(spoiled(), ["detect"]))
    written(tmp_path, judged(Oracle(), ["detect"]))
    assert list((tmp_path / "failures").iterdir()) == []


def test_answers_are_escaped():
    [shown] = texts("query", questions=[QueryRecord("count", "name", "<i>how many?", "1", "<b>2</b>")])
    assert "<i>" not in shown
    assert "<del>&lt;b&gt;2&lt;/b&gt;</del> <ins>1</ins>" in shown


def test_captions_show_wrong_zones_and_the_truth():
    caption = CaptionRecord(
        "A picture of 2 bananas, 1 dog and 3 glorps. The dog is at the top and left.",
        {BANANA: 3, DOG: 1, KEY: 1},
        "long",
        {BANANA: ["left"], DOG: ["left"], KEY: ["top"]},
    )
    [shown] = texts("caption", captions=[caption])
    assert re.findall("<del>(.*?)</del>", shown) == ["top"]
    assert re.findall("<ins>(.*?)</ins>", shown) == ["3 banana, 1 dog, 1 key"]


def test_a_kind_that_a_caption_names_twice_is_a_mistake():
    assert len(texts("caption", captions=[CaptionRecord("1 dog, 1 key and 1 dog.", {DOG: 1, KEY: 1})])) == 1
    assert texts("caption", captions=[CaptionRecord("1 dog and 1 key.", {DOG: 1, KEY: 1})]) == []


def test_missed_and_wrong_boxes_have_their_own_colours():
    (record,) = judged(Oracle(boxes=lambda boxes: [(0.0, 0.0, 0.02, 0.02)]), ["detect"])[:1]
    assert roles(record, "detect") == {"missed", "wrong"}
    (record,) = judged(Oracle(boxes=lambda boxes: [*boxes, (0.0, 0.0, 0.02, 0.02)]), ["detect"])[:1]
    assert roles(record, "detect") == {"found", "right", "wrong"}


def test_references_of_the_request_are_drawn():
    record = judged(Oracle(word=lambda word: "Nothing at all", mask=lambda _: [], points=lambda _: []))[0]
    for skill in ("point", "segment", "query"):
        assert "reference" in roles(record, skill)
    assert any(shape.object is not None for one in MISTAKES["segment"](record) for shape in one.shapes)


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
