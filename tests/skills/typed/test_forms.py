import dataclasses
import enum
import json
import re
import sys
import types
import typing
from typing import Any, Literal

import pydantic
import pytest
from typing_extensions import TypedDict

from photonlite.errors import GrammarError, GrammarTooLargeError, SchemaError
from photonlite.results import Box
from photonlite.skills.typed.forms import ChoicesForm, TextForm, form_of


class Fruit(pydantic.BaseModel):
    name: Literal["apple", "pear"]
    box: Box | None


@dataclasses.dataclass
class Shelf:
    fruit: list[Fruit]
    count: int


class Thing:
    """Nothing that pydantic knows."""


class Plain(TypedDict):
    count: int


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Even(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def _even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number


def written(schema: Any) -> TextForm:
    form = form_of(schema, None, None)
    assert isinstance(form, TextForm)
    return form


def test_plain_text_answers_have_no_form() -> None:
    assert form_of(None, None, None) is None


@pytest.mark.parametrize("given", [({}, ["a"], None), ({}, None, "a"), (None, ["a"], "a"), ({}, ["a"], "a")])
def test_an_answer_has_one_form(given: tuple[Any, Any, Any]) -> None:
    with pytest.raises(GrammarError, match="were given"):
        form_of(*given)


FRUIT = {"name": "pear", "box": {"x_min": 0.0, "y_min": 0.0, "x_max": 1.0, "y_max": 0.5, "score": 0.5}}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Fruit, json.dumps(FRUIT), Fruit(name="pear", box=Box(0, 0, 1, 0.5, 0.5))),
        (Shelf, json.dumps({"fruit": [FRUIT | {"box": None}], "count": 1}), Shelf([Fruit(name="pear", box=None)], 1)),
        (Plain, '{"count":3}', {"count": 3}),
        (Colour, '"blue"', Colour.BLUE),
        (Literal["a", 3], "3", 3),
        (list[int], "[1,2]", [1, 2]),
        (int | None, "null", None),
        (Box, json.dumps(FRUIT["box"]), Box(0, 0, 1, 0.5, 0.5)),
    ],
    ids=["model", "dataclass", "typed-dict", "enum", "literal", "list", "union", "box"],
)
def test_types_have_a_schema_and_read_their_text(kind: Any, text: str, value: Any) -> None:
    form = written(kind)

    assert form.spec.kind == "schema"
    assert json.loads(form.spec.source) == pydantic.TypeAdapter(kind).json_schema()
    assert form.read(text) == value
    assert type(form.read(text)) is type(value)
    assert not form.spelled


def test_a_json_schema_keeps_the_order_of_its_properties_and_reads_plain_values() -> None:
    schema = {"type": "object", "properties": {"z": {"format": "box", "type": "object"}, "a": {"type": "null"}}}
    for given in (schema, json.dumps(schema, indent=2), types.MappingProxyType(schema)):
        form = written(given)
        assert form.spec.source == json.dumps(schema, separators=(",", ":"))
        assert form.read('{"z":{"x_min":0},"a":null}') == {"z": {"x_min": 0}, "a": None}


def test_a_byte_order_mark_begins_no_schema() -> None:
    assert form_of('\ufeff{"type": "boolean"}', None, None) == form_of('{"type": "boolean"}', None, None)


def test_dict_is_any_object() -> None:
    assert (written(dict).spec.kind, written(dict).spec.source) == ("object", "")


def test_equal_questions_have_equal_languages() -> None:
    assert written(Fruit).spec == written(Fruit).spec
    assert hash(written({"type": "null"}).spec) == hash(written({"type": "null"}).spec)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("{", "not JSON"),
        ("[1]", "JSON list"),
        ({"const": {1, 2}}, "written as JSON"),
        ({"const": float("nan")}, "written as JSON"),
        ({"count": int}, "a TypedDict in its place"),
        (object(), "no JSON schema"),
        (3, "no JSON schema"),
        (Thing, "no JSON schema"),
        (lambda: 3, "no JSON schema"),
        ("nonsense", "not JSON"),
    ],
)
def test_types_without_a_schema_are_refused(schema: Any, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        form_of(schema, None, None)


def test_recursive_schema_dicts_are_refused() -> None:
    deep: dict[str, Any] = {}
    deep["items"] = deep
    with pytest.raises(GrammarError):
        form_of(deep, None, None)
    nested: dict[str, Any] = {}
    for _ in range(100_000):
        nested = {"items": nested}
    with pytest.raises(GrammarTooLargeError, match="nested"):
        form_of(nested, None, None)
    while nested:  # taken apart from outside: Python would do it recursively
        nested = nested.pop("items")
    with pytest.raises(GrammarTooLargeError, match="nested"):
        form_of('{"items":' * 100_000, None, None)
    with pytest.raises(GrammarTooLargeError, match="limit of 1000000"):
        form_of({"description": "x" * 1_000_000}, None, None)
    with pytest.raises(GrammarTooLargeError, match="limit of 1000000"):
        form_of(" " * 1_000_001, None, None)


def test_an_answer_that_breaks_a_rule_outside_the_schema_says_so() -> None:
    assert written(Even).read('{"number":2}') == Even(number=2)
    with pytest.raises(SchemaError, match=r"not to its validators: Value error, odd \(at number\)"):
        written(Even).read('{"number":3}')


@pytest.mark.parametrize("regex", ["[a-z]+", re.compile("[a-z]+")])
def test_a_pattern_reads_as_text(regex: Any) -> None:
    form = form_of(None, None, regex)

    assert isinstance(form, TextForm)
    assert (form.spec.kind, form.spec.source, form.spelled) == ("regex", "[a-z]+", True)
    assert form.read("abc") == "abc"


@pytest.mark.parametrize("regex", [3, b"a", re.compile(b"a"), re.compile("a", re.IGNORECASE)])
def test_values_other_than_patterns_are_refused(regex: Any) -> None:
    with pytest.raises(GrammarError, match="regex"):
        form_of(None, None, regex)


def test_a_pattern_with_flags_gets_advice_that_works() -> None:
    with pytest.raises(GrammarError, match=r"text without flags, with both cases written out, such as \[aA\]"):
        form_of(None, None, re.compile("a", re.IGNORECASE))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic reads it from Python 3.12 on")
def test_a_typed_dict_of_typing_is_told_what_to_import() -> None:
    class Old(typing.TypedDict):
        count: int

    with pytest.raises(SchemaError, match="from typing_extensions import TypedDict"):
        written(Old)
    with pytest.raises(SchemaError, match="from typing_extensions import TypedDict"):
        written(list[Old])


def test_choices_are_texts_in_their_order() -> None:
    assert form_of(None, ["yes", "no"], None) == ChoicesForm(("yes", "no"))
    assert form_of(None, (text for text in "ab"), None) == ChoicesForm(("a", "b"))


@pytest.mark.parametrize(
    ("choices", "error", "complaint"),
    [
        ("yes", GrammarError, "choices is of type str"),
        (3, GrammarError, "choices is of type int"),
        ({"yes": 1}, GrammarError, "choices is of type dict"),
        ([], GrammarError, "empty"),
        (["a", 3], GrammarError, "a choice is of type int"),
        (["a", " "], GrammarError, "a choice is empty"),
        (["a", "b", "a"], GrammarError, "'a' is given twice"),
        (["x" * 1001], GrammarTooLargeError, "limit of 1000"),
        (map(str, range(5001)), GrammarTooLargeError, "5001 choices, over the limit of 5000"),
        ([f"{n:1000}" for n in range(201)], GrammarTooLargeError, "201000 characters together, over the limit"),
    ],
)
def test_unusable_choices_are_refused(choices: Any, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        form_of(None, choices, None)


def term(**attributes: Any) -> Any:
    """Something that says it is of outlines."""
    kind = type("Term", (), {"__module__": "outlines.types.dsl"})
    made = kind()
    vars(made).update(attributes)
    return made


@pytest.mark.parametrize("place", range(3))
def test_terms_of_outlines_are_known_wherever_they_stand(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def given(what: Any) -> Any:
        return form_of(*(what if index == place else None for index in range(3)))

    module = types.SimpleNamespace(to_regex=lambda term: f"({term.terms[0]})*")
    monkeypatch.setitem(sys.modules, "outlines.types.dsl", module)  # type: ignore[arg-type]

    assert given(term(pattern="[0-9]+")).spec.source == "[0-9]+"
    assert given(term(schema='{"type":"null"}')).spec.source == '{"type":"null"}'
    assert given(term(items=["a", "b"])) == ChoicesForm(("a", "b"))
    assert given(term(terms=["a"])).spec.source == "(a)*"


def test_terms_that_are_no_regular_language_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "outlines.types.dsl", raising=False)
    with pytest.raises(GrammarError, match="neither a schema nor a pattern nor choices"):
        form_of(term(definition="start: start start"), None, None)

    def to_regex(term: Any) -> str:
        raise TypeError("no grammars")

    monkeypatch.setitem(sys.modules, "outlines.types.dsl", types.SimpleNamespace(to_regex=to_regex))  # type: ignore[arg-type]
    with pytest.raises(GrammarError, match="no grammars"):
        form_of(term(definition="start: start start"), None, None)


def test_outlines_own_terms() -> None:
    outlines_types = pytest.importorskip("outlines.types")
    dsl = pytest.importorskip("outlines.types.dsl")

    assert form_of(outlines_types.Regex("[0-9]+"), None, None) == form_of(None, None, "[0-9]+")
    assert form_of(dsl.Choice(["a", "b"]), None, None) == ChoicesForm(("a", "b"))
    assert written(outlines_types.JsonSchema('{"type": "null"}')).spec.source == '{"type":"null"}'
    assert written(dsl.either("a", "b")).spec.kind == "regex"


def test_a_schema_with_a_duplicate_name_is_refused() -> None:
    with pytest.raises(SchemaError, match="the name 'type' stands twice"):
        form_of('{"type": "object", "properties": {"a": {"type": "string", "type": "integer"}}}', None, None)
