"""Questions about held-out scenes: which are put, and what is kept of the answers."""

import json
import re
from collections import Counter
from dataclasses import asdict

import pytest

from bench.nano.evaluation.asking.subjects import instances, object_at
from bench.nano.evaluation.asking.words import ABOUT, LENGTHS
from bench.nano.evaluation.examine import examine, questions_about
from bench.nano.evaluation.records import SKILLS
from bench.nano.questions.text.typed import CLEARLY_LARGEST
from bench.nano.scenes.objects import index_of
from photonlite.errors import CapacityError
from tests.nano.evaluation.oracle import OBJECTS, SEEDS, Oracle, judged, marked, perfect_records, scenes


def mentions(words, kind):
    return any(re.search(rf"\b{name}\b", words) for name in OBJECTS[kind].names)


@pytest.fixture(scope="module")
def records():
    return perfect_records()


def test_every_kind_is_asked_for_and_two_things_that_are_not_there(records):
    for record, scene in zip(records, scenes(), strict=True):
        for questions in (record.detections, record.points):
            wanted = [question.wanted for question in questions]
            assert {question.kind for question in questions if question.truth} == {o.index for o in scene.objects}
            assert (wanted.count("absent"), wanted.count("unknown")) == (1, 1)
            assert not any(question.truth for question in questions if question.wanted in ("absent", "unknown"))


def test_one_instance_is_pointed_at_by_a_mark(records):
    for record, scene in zip(records, scenes(), strict=True):
        (question,) = [question for question in record.points if question.reference]
        assert question.truth == [scene.objects[marked(scene, question.reference)].box]
        repeated = {kind for kind, count in Counter(item.index for item in scene.objects).items() if count > 1}
        assert question.kind in (repeated or {item.index for item in scene.objects})
    assert {len(q.reference) for record in records for q in record.points if q.reference} == {2, 4}


def test_outlines_are_asked_for_with_a_mark_without_and_of_what_is_not_there(records):
    for record, scene in zip(records, scenes(), strict=True):
        *largest, at_mark, missing = record.outlines
        assert (missing.place, missing.wanted in ("absent", "unknown")) == (None, True)
        assert at_mark.place == marked(scene, at_mark.reference)
        for outline in largest:
            area = [
                (item.box[2] - item.box[0]) * (item.box[3] - item.box[1])
                for item in scene.objects
                if item.index == outline.kind
            ]
            box = scene.objects[outline.place].box
            others = sorted(area)[:-1]
            assert (box[2] - box[0]) * (box[3] - box[1]) == max(area)
            assert not others or max(area) >= CLEARLY_LARGEST * others[-1]


def test_all_kinds_of_questions_are_put_somewhere(records):
    about = Counter(question.about for record in records for question in record.questions)
    assert set(about) == set(ABOUT)
    assert about["count"] == about["existence"] == 3 * len(records)
    assert about["reasoning"] == 2 * len(records)
    assert [caption.length for caption in records[0].captions] == list(LENGTHS)


def test_right_answers_are_those_of_the_image(records):
    for record, scene in zip(records, scenes(), strict=True):
        counts = Counter(item.index for item in scene.objects)
        for question in record.questions:
            if question.about in ("count", "reasoning"):
                assert question.expected == str(counts[question.kind])
            if question.about == "existence":
                assert question.expected == ("Yes" if counts[question.kind] else "No")
            if question.about == "total":
                assert question.expected == str(len(scene.objects))
            if question.about == "at_point":
                assert question.expected == OBJECTS[scene.objects[object_at(scene, question.reference)].index].name
            if question.about == "at_box":
                assert question.expected == OBJECTS[scene.objects[marked(scene, question.reference)].index].name
            if question.about == "at_nothing":
                assert (question.expected, object_at(scene, question.reference)) == ("Nothing", -1)


def test_answers_about_places_name_what_is_there(records):
    for record, scene in zip(records, scenes(), strict=True):
        places = {kind: (cx, cy) for kind, cx, cy in instances(scene)}
        for question in record.questions:
            if question.about in ("relation", "comparison") and question.expected != "Nothing":
                assert index_of(question.expected) in places
            words = question.question.lower()
            if question.about == "comparison" and " left" in words:
                named = [x for kind, (x, _) in places.items() if mentions(words, kind)]
                assert places[index_of(question.expected)][0] == min(named)


def test_questions_of_a_skill_are_the_same_whatever_else_is_asked():
    together = examine(Oracle(), scenes()[0], SEEDS[0])
    for skill, kept in (("point", "points"), ("segment", "outlines"), ("query", "questions")):
        alone = examine(Oracle(), scenes()[0], SEEDS[0], [skill])
        assert getattr(alone, kept) == getattr(together, kept) != []


def test_an_image_is_encoded_once_and_asked_about_in_one_batch():
    model = Oracle()
    examine(model, scenes()[0], SEEDS[0])
    assert (model.encoded, model.batches) == (1, 1)


def test_what_a_checkpoint_cannot_do_is_left_out():
    record = examine(Oracle(refuses=("segment", "references", "reasoning")), scenes()[0], SEEDS[0])
    assert record.outlines == []
    assert all(question.reference is None for question in (*record.points, *record.questions))
    assert not any(question.about == "reasoning" for question in record.questions)
    assert record.detections
    assert record.questions


def test_other_errors_are_raised():
    class Broken(Oracle):
        def batch(self, tasks, *, errors):
            return [CapacityError("too long") for _ in tasks]

    with pytest.raises(CapacityError, match="too long"):
        examine(Broken(), scenes()[0], SEEDS[0])


def test_records_are_fit_for_json(records):
    again = json.loads(json.dumps([asdict(record) for record in records]))
    assert again[0]["points"][0]["on_object"] == records[0].points[0].on_object
    assert len(again) == len(records)


def test_points_are_judged_by_visible_pixels():
    beside = judged(Oracle(points=lambda points: [(0.0, 0.0)] * len(points)), ["point"])
    asked = [question for record in beside for question in record.points if question.truth]
    corner = [object_at(scene, (0.0, 0.0)) for scene in scenes()]
    assert set(corner) == {-1}
    assert not any(hit for question in asked for hit in (*question.on_object, *question.found))


def test_skills_are_those_of_the_public_interface():
    tasks = {question.task["skill"] for skill in SKILLS for question in questions_about(scenes()[0], 1, skill)}
    assert tasks == set(SKILLS) - {"typed"}  # a typed answer is that of a query with a schema
