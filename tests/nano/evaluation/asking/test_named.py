"""Questions about properties of any names: what is asked, and what a wrong value under an unseen name costs."""

import random
from collections import Counter

import jsonschema
import pytest

from bench.nano.evaluation.asking.named import json_questions, object_of
from bench.nano.evaluation.asking.typed import FORMS, Wanted, read_object
from bench.nano.evaluation.figures.headline import compare
from bench.nano.evaluation.figures.summary import format_table, summarize
from bench.nano.evaluation.figures.typed import conforms, typed_figures
from bench.nano.evaluation.records import FieldRecord, SceneRecord, TypedRecord
from bench.nano.questions.text import properties
from tests.nano.evaluation.oracle import scenes


@pytest.fixture(scope="module")
def questions():
    """Those with properties of any names."""
    found = [one for scene in scenes() for seed in range(6) for one in json_questions(scene, random.Random(seed))]
    return [one for one in found if isinstance(one.wanted, list) and getattr(one.wanted[0], "form", None)]


def test_all_forms_are_asked_under_trained_and_unseen_names(questions):
    assert len(questions) == 5 * 6 * len(scenes())
    seen = Counter((one.form, one.names) for question in questions for one in question.wanted)
    both = {(form, names) for form in FORMS for names in ("trained", "unseen")}
    assert set(seen) == both - {("unknowable", "unseen")}
    kinds = {one.kind for question in questions for one in question.wanted}
    assert kinds == {"count", "present", "name", "colour", "zone", "text", "unknowable"}


def test_unseen_names_are_not_those_of_training(questions):
    trained = {
        properties.styled(name, style)
        for meaning in properties.MEANINGS
        for name in properties.names(meaning, "train")
        for style in properties.STYLES
    }
    unseen = {one.key for question in questions for one in question.wanted if one.names == "unseen"}
    assert len(unseen) > 50
    assert not unseen & trained


def test_schemas_are_json_schemas(questions):
    for question in questions:
        jsonschema.Draft202012Validator.check_schema(question.task["schema"])


def test_what_cannot_be_known_may_be_null_or_empty_but_not_made_up():
    schema = {"type": "string"}
    wanted = [Wanted("email", "unknowable", None, form="unknowable", schema=schema)]
    for answer, right in ((None, True), ("", True), ("none@none.none", True), (0, True), ("bob@home.org", False)):
        assert read_object(None, wanted, {"email": answer})[0].right == right


def test_objects_inside_are_read_and_must_keep_to_their_schemas():
    wanted = [Wanted("count", "count", 2, outer="dogs", form="nested"), Wanted("x", "present", True, outer="cat")]
    schema = object_of(wanted)
    assert [one.right for one in read_object(None, wanted, {"dogs": {"count": 2}, "cat": {"x": False}})] == [
        True,
        False,
    ]
    assert conforms({"dogs": {"count": 2}, "cat": {"x": "yes"}}, schema)
    assert not conforms({"dogs": {"count": "2"}, "cat": {"x": "yes"}}, schema)
    assert not conforms({"count": 2}, schema)


def test_figures_tell_unseen_names_apart_and_the_longest_answer():
    def record(right, names, tokens):
        field = FieldRecord("n", "count", 2, 2, right, names, "int")
        return TypedRecord("answer", "?", '{"n":2}', object_of([Wanted("n", "count", 2, form="int")]), [field], tokens)

    answers = [record(True, "trained", 5), record(False, "unseen", 70), record(True, "unseen", 6)]
    figures = typed_figures(answers)
    assert (figures["fields_right"], figures["unseen_names"], figures["longest_answer_tokens"]) == (1.0, 0.5, 70)
    assert figures["by_form"] == {"int": {"trained": 1.0, "unseen": 0.5, "fields": 3}}
    scene = SceneRecord(1, "plain", 10, 10, typed=answers)
    headline = {row.name: row.figure for row in compare([scene], 10)}
    assert headline["typed, fields right"] == 1.0
    assert headline["typed, right under names never trained on"] == 0.5
    assert "by form" in format_table(summarize([scene]))
