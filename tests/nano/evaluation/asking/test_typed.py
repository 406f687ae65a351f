"""Typed questions about held-out scenes: what is right, and what each kind of mistake costs."""

from collections import Counter

import jsonschema
import pytest

from bench.nano.evaluation.asking.typed import CASES, MAX_COUNT, Wanted, object_of, read_items, schema_of
from bench.nano.evaluation.figures.headline import compare
from bench.nano.evaluation.figures.summary import format_table, summarize
from bench.nano.evaluation.figures.typed import conforms, is_valid
from bench.nano.evaluation.records import TypedRecord
from tests.nano.evaluation.oracle import Oracle, judged, scenes

BOX = {"x_min": 0.1, "y_min": 0.1, "x_max": 0.3, "y_max": 0.3, "score": 0.5}


@pytest.fixture(scope="module")
def answers():
    return [one for record in judged(Oracle(), ["typed"]) for one in record.typed]


def figures(spoil):
    records = judged(Oracle(typed=spoil), ["typed"])
    return summarize(records)["typed"], {row.name: row for row in compare(records, 20)}


def test_all_cases_are_asked_and_right_answers_are_right(answers):
    cases = Counter(answer.case for answer in answers)
    assert set(cases) == set(CASES)
    assert cases["kind"] == cases["missing"] == cases["objects"] == len(scenes())
    assert all(field.right for answer in answers for field in answer.fields)
    assert all(map(is_valid, answers))
    kinds = {field.kind for answer in answers for field in answer.fields}
    assert kinds >= {"name", "count", "present", "zone", "box", "point"}
    assert any(field.expected is None for answer in answers for field in answer.fields)


def test_schemas_are_json_schemas(answers):
    for answer in answers:
        jsonschema.Draft202012Validator.check_schema(answer.schema)


def spoiled(value, change):
    if isinstance(value, list):
        return [spoiled(one, change) for one in value]
    if isinstance(value, dict) and "score" not in value:
        return {key: spoiled(one, change) for key, one in value.items()}
    return change(value)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda value: value + 1 if type(value) is int else value, "count"),
        (lambda value: not value if isinstance(value, bool) else value, "present"),
        (lambda value: value | {"x_min": 0.99, "x_max": 1.0} if isinstance(value, dict) and len(value) == 5 else value,
         "box"),
        (lambda value: value | {"x": 0.0, "y": 0.0} if isinstance(value, dict) and len(value) == 3 else value, "point"),
    ],
)  # fmt: skip
def test_a_mistake_costs_its_own_figure(change, kind):
    found, headline = figures(lambda answer: spoiled(answer, change))
    right = {name: value for name, value in found.items() if name.endswith("_right") and name != "fields_right"}
    assert right.pop(f"{kind}_right") < 0.5
    # Items of lists belong together by their boxes: without them nothing is theirs.
    assert {value for name, value in right.items() if kind != "box" or name != "name_right"} == {1}
    assert found["fields_right"] < 1
    assert headline["typed, fields right"].figure == pytest.approx(found["fields_right"])
    assert headline["typed, answers that keep to the schema"].met


def test_missing_items_and_those_too_many_are_wrong():
    wanted = [[Wanted("name", "name", "dog"), Wanted("count", "count", 2)]]
    dog, cat = {"name": "dog", "count": 2}, {"name": "cat", "count": 1}
    assert [field.right for field in read_items("", wanted, [dog])] == [True, True]
    assert [field.right for field in read_items("", wanted, [])] == [False, False]
    assert [field.right for field in read_items("all", wanted, {"all": [cat, dog, dog]})] == [True] * 2 + [False] * 4


def test_what_does_not_keep_to_its_schema_is_seen():
    schema = object_of([Wanted("name", "name", ""), Wanted("box", "box", None)], nullable=True)
    assert conforms({"name": None, "box": BOX}, schema)
    for wrong in ({"box": BOX, "name": None}, {"name": "x" * 41, "box": None}, {"name": 3, "box": None}, [], {}):
        assert not conforms(wrong, schema)
    assert not conforms({"name": None, "box": BOX | {"x_max": 1.2}}, schema)
    assert not conforms(MAX_COUNT + 1, schema_of("count"))
    assert not conforms(True, schema_of("count"))
    assert not is_valid(TypedRecord("thing", "?", '{"name":', schema, []))


def test_the_table_has_typed_answers():
    table = format_table(summarize(judged(Oracle(), ["typed"])))
    assert "typed, fields right" in table
    assert "outermost" in table
