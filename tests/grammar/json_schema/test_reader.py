import contextlib
import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from photonlite.errors import GrammarError, GrammarTooLargeError, SchemaError
from photonlite.grammar.automata.dfa import Dfa, compile_dfa
from photonlite.grammar.decoding.automaton import Automaton
from photonlite.grammar.decoding.typed import TypedGrammar
from photonlite.grammar.json_schema.reader import ANY_OBJECT, RECURSION, read_schema
from photonlite.request import Token
from tests.grammar.schemas import SCHEMAS, Pair
from tests.grammar.vocabularies import COORDINATE, END, EVERYTHING, accepts

TEXT: dict[str, Any] = {"type": "string"}
WHOLE: dict[str, Any] = {"type": "integer"}
BOX: dict[str, Any] = {
    "type": "object",
    "format": "box",
    "properties": {"x_min": {"type": "number"}},
    "required": ["x_min"],
}
CASES = settings(derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def compiled(schema: Any) -> Dfa:
    return compile_dfa(read_schema(schema)[0], native=True)


def fits(schema: Any, *texts: str) -> list[bool]:
    dfa = compiled(schema)
    return [accepts(dfa, text.encode()) for text in texts]


@pytest.mark.parametrize("format", ["int32", "int64", "float", "double"])
@pytest.mark.parametrize("kind", ["integer", "number", ["integer", "null"]])
def test_openapis_formats_of_numbers_are_taken(format: str, kind: str | list[str]) -> None:
    small, large = fits({"type": kind, "format": format}, str(2**31 - 1), str(-(2**31) - 1))

    assert small
    assert large == (format != "int32")


def test_a_format_may_be_that_of_another_type() -> None:
    assert fits({"type": ["string", "integer"], "format": "date"}, '"2026-11-29"', "7", '"x"') == [True, True, False]


def judge(value: Any, schema: Any) -> None:
    kind = jsonschema.Draft202012Validator
    jsonschema.validate(value, schema, cls=kind, format_checker=kind.FORMAT_CHECKER)


def answer(automaton: Automaton, budget: int, draw: random.Random) -> str:
    grammar, written = TypedGrammar(automaton, budget), b""
    while not grammar.finished:
        allowed = grammar.allowed
        ids = allowed.ids or tuple(n for n in range(automaton.tables.ids.vocab_size) if allowed.permits(n))
        chosen = draw.choice(ids)
        written += b"<number>" if chosen in (COORDINATE, COORDINATE + 1) else EVERYTHING.letters(chosen)
        grammar.accept(Token(chosen))
    return written.decode()


def against_the_validator(pair: Pair, data: st.DataObject) -> None:
    """Right values can be written, and whatever is written is right, under any budget."""
    schema, values = pair
    dfa = compiled(schema)
    value = data.draw(values)
    for separators in ((",", ":"), (", ", ": ")):
        assert accepts(dfa, json.dumps(value, ensure_ascii=False, separators=separators).encode())

    automaton = EVERYTHING.automaton(dfa)
    draw = random.Random(data.draw(st.integers(0, 2**32)))
    for over in (0, draw.randrange(12), 60):
        judge(json.loads(answer(automaton, automaton.shortest + over, draw)), schema)


@pytest.mark.long
@settings(CASES, max_examples=120)
@given(SCHEMAS, st.data())
def test_answers_are_right_and_right_answers_can_be_written(pair: Pair, data: st.DataObject) -> None:
    against_the_validator(pair, data)


@pytest.mark.long
@settings(CASES, max_examples=15)
@given(SCHEMAS, st.integers(1, 4), st.data())
def test_answers_of_schemas_that_hold_themselves_are_right(pair: Pair, depth: int, data: st.DataObject) -> None:
    inner, values = pair
    children = {"type": "array", "items": {"$ref": "#/$defs/T"}, "maxItems": 2}
    tree = {"type": "object", "properties": {"v": inner, "of": children}, "required": ["of"], "maxDepth": depth}
    nodes: st.SearchStrategy[Any] = st.just({"of": []})
    for _ in range(depth - 1):
        nodes = st.tuples(values, st.lists(nodes, max_size=2)).map(lambda drawn: {"v": drawn[0], "of": drawn[1]})
    against_the_validator(({"$defs": {"T": tree}, "$ref": "#/$defs/T"}, nodes), data)


TAGGED: dict[str, Any] = {
    "$defs": {
        "Cat": {
            "type": "object",
            "properties": {"kind": {"const": "cat", "default": "cat"}, "lives": {"type": "integer", "default": 9}},
        },
        "Dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "puppy"], "default": "dog"}, "name": TEXT}},
    },
    "discriminator": {"propertyName": "kind"},
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
}


def test_a_discriminator_with_a_default_is_always_written() -> None:
    texts = ('{"kind":"cat"}', '{"kind":"puppy","name":"x"}', '{"lives":9}', "{}", '{"kind":"dog","lives":9}')

    assert fits(TAGGED, *texts) == [True, True, False, False, False]
    # The same objects elsewhere need not have it.
    beside = {"$defs": TAGGED["$defs"], "type": "array", "prefixItems": [{"$ref": "#/$defs/Cat"}], "items": False}
    assert fits(beside, "[{}]") == [True]


def test_discriminators_may_stand_inside_one_another() -> None:
    kinds = {name: {**TAGGED["$defs"][name]} for name in ("Cat", "Dog")}
    kinds["Car"] = {"type": "object", "properties": {"kind": {"const": "car", "default": "car"}}}
    nested = {"$defs": kinds, "discriminator": {"propertyName": "kind"}}
    inner = {key: TAGGED[key] for key in ("oneOf", "discriminator")}
    schema = nested | {"oneOf": [inner, {"$ref": "#/$defs/Car"}]}

    assert fits(schema, '{"kind":"car"}', '{"kind":"dog"}', "{}") == [True, True, False]


@pytest.mark.parametrize(
    "changed",
    [
        {"Dog": {"type": "object", "properties": {"kind": {"const": "cat"}}}},
        {"Dog": {"type": "object", "properties": {"kind": TEXT}}},
        {"Dog": {"type": "object", "properties": {"name": TEXT}}},
        {name: {**TAGGED["$defs"][name], "type": ["object", "null"]} for name in ("Cat", "Dog")},
    ],
    ids=["same", "any", "none", "null"],
)
def test_branches_that_a_discriminator_does_not_tell_apart_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match="may hold for one value both"):
        read_schema(TAGGED | {"$defs": TAGGED["$defs"] | changed})[0]


def test_a_discriminated_union_may_hold_itself() -> None:
    pups = {"type": "array", "items": {"$ref": "#"}}
    dog = {"type": "object", "properties": {"kind": {"const": "dog"}, "pups": pups}, "maxDepth": 2}
    schema = TAGGED | {"$defs": TAGGED["$defs"] | {"Dog": dog}}

    assert fits(schema, '{"kind":"dog","pups":[{"kind":"cat"},{"kind":"dog","pups":[{"kind":"cat"}]}]}') == [True]
    third = '{"kind":"dog","pups":[{"kind":"dog","pups":[{"kind":"dog"}]}]}'
    assert fits(schema, third, '{"kind":"dog","pups":[{}]}') == [False, False]


@pytest.mark.slow
@settings(CASES, max_examples=500)
@given(SCHEMAS, st.data())
def test_thousands_of_schemas(pair: Pair, data: st.DataObject) -> None:
    against_the_validator(pair, data)


@pytest.mark.long
@pytest.mark.parametrize(
    "schema",
    [
        *(
            {"type": "string", "format": name}
            for name in ("date", "time", "date-time", "uuid", "email", "ipv4", "duration")
        ),
        {"type": "object"},
        {"type": "array"},
        {},
        True,
        {"type": "object", "additionalProperties": WHOLE},
        {"type": "object", "properties": {name: TEXT for name in "abcdefg"}},
        {"type": "array", "prefixItems": [TEXT, WHOLE]},
        {"type": "array", "prefixItems": [TEXT, WHOLE], "items": {"type": "null"}, "minItems": 1, "maxItems": 4},
        {"type": "string", "pattern": "a.c"},
        {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4},
        {"oneOf": [TEXT, WHOLE, {"type": "null"}]},
        {"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 0.1 + 0.2},
        {"minimum": 3},
        {"items": TEXT},
        {"const": {"k": [1, "é\u2028"]}},
    ],
)
def test_answers_of_each_kind_are_right(schema: Any) -> None:
    automaton, draw = EVERYTHING.automaton(compiled(schema)), random.Random(1)

    for over in (0, 3, 10, 30, 60, 90):
        judge(json.loads(answer(automaton, automaton.shortest + over, draw)), schema)


def test_properties_come_in_order_and_may_be_left_out_unless_required() -> None:
    schema = {"properties": {"a": WHOLE, "b": WHOLE, "c": WHOLE}, "required": ["b"], "title": "ignored"}

    assert fits(schema, '{"a":1,"b":2,"c":3}', '{"b":2}', '{"a": 1, "b": 2}', '{"b":2,"c":3}') == [True] * 4
    assert (
        fits(schema, "{}", '{"a":1}', '{"b":2,"a":1}', '{"b":2,}', '{"b":2,"d":1}', '{"b" :2}', '{"b":  2}')
        == [False] * 7
    )
    free = {"type": "object", "properties": {name: WHOLE for name in "abc"}}
    assert fits(free, "{}", '{"c":1}', '{"a":1,"c":1}', '{"b":1}', '{"a":1,"b":1,"c":1}') == [True] * 5
    assert fits(free, "{,}", '{"a":1,}', '{"c":1,"a":1}', '{"a":1"b":1}') == [False] * 4


def test_boxes_and_points_are_letters() -> None:
    schema = {"properties": {"box": {"anyOf": [BOX, {"type": "null"}]}, "at": {"type": "object", "format": "point"}}}

    assert fits(schema, '{"box":\x04\x04\x05}', '{"box":null,"at":\x04\x04}', '{"at": \x04\x04}') == [True] * 3
    assert fits(schema, '{"box":\x04\x04}', '{"at":\x04\x04\x05}', '{"box":{}}') == [False] * 3


def test_references_are_followed() -> None:
    schema = {
        "$defs": {"F": {"properties": {"n": {"$ref": "#/$defs/a~1b%20~0"}}}, "a/b ~": WHOLE},
        "type": "array",
        "items": {"$ref": "#/$defs/F"},
    }

    assert fits(schema, '[{"n":1},{}]', '[{"n":"x"}]') == [True, False]
    assert fits({"prefixItems": [WHOLE, {"$ref": "#/prefixItems/0"}]}, "[1,2]", '[1,"2"]') == [True, False]


def test_integers_may_be_spelled_as_multiples_of_one_and_lists_of_one_as_unique() -> None:
    assert fits({"type": "integer", "multipleOf": 1, "minimum": 1.5, "maximum": 3.5}, "1", "2", "3", "4") == [
        False,
        True,
        True,
        False,
    ]
    assert fits({"type": "array", "uniqueItems": True, "maxItems": 1, "items": WHOLE}, "[]", "[1]") == [True, True]
    assert fits({"allOf": [WHOLE]}, "1", '"1"') == [True, False]
    assert fits({"type": "integer", "enum": [1, 2.0, "a", True]}, "1", "2.0", '"a"', "true") == [
        True,
        True,
        False,
        False,
    ]


NODE: dict[str, Any] = {
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"n": WHOLE, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
            "required": ["n", "next"],
        }
    },
    "$ref": "#/$defs/Node",
}


def chain(length: int) -> str:
    return '{"n":1,"next":' * length + "null" + "}" * length


def test_a_schema_may_stand_in_itself_to_a_depth() -> None:
    lengths = range(1, 12)
    for depth in (None, 1, 2, 10):
        node = NODE["$defs"]["Node"] | ({} if depth is None else {"maxDepth": depth})
        found = fits(NODE | {"$defs": {"Node": node}}, *map(chain, lengths))
        assert found == [length <= (depth or RECURSION) for length in lengths]


def test_where_a_depth_ends_lists_are_empty_and_properties_missing() -> None:
    tree = {"properties": {"items": {"type": "array", "items": {"$ref": "#"}}}, "maxDepth": 2}
    assert fits(tree, '{"items":[{"items":[]},{}]}', '{"items":[{"items":[{}]}]}') == [True, False]
    left = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "maxDepth": 2}
    assert fits(left, '{"left":{},"right":{}}', '{"left":{"right":{}}}') == [True, False]
    names = {"type": "object", "additionalProperties": {"$ref": "#"}, "maxDepth": 2}
    assert fits(names, '{"a":{},"b":{}}', '{"a":{"b":{}}}') == [True, False]
    pair = {"type": "array", "prefixItems": [WHOLE, {"$ref": "#"}, WHOLE], "maxDepth": 2}
    assert fits(pair, "[1,[2],3]", "[1,[2,[3]]]", "[1,[2,3]]") == [True, False, False]
    kinds = {"type": ["array", "null"], "items": {"$ref": "#"}, "minItems": 1, "maxDepth": 2}
    assert fits(kinds, "null", "[null]", "[[null]]", "[[]]") == [True, True, False, False]


def test_schemas_may_hold_one_another_and_each_counts_for_itself() -> None:
    shelf = {"properties": {"boxes": {"items": {"$ref": "#/$defs/box"}, "type": "array"}}, "maxDepth": 2}
    box = {"properties": {"shelf": {"$ref": "#/$defs/shelf"}}, "maxDepth": 1}
    schema = {
        "$defs": {"shelf": shelf, "box": box},
        "prefixItems": [{"$ref": "#/$defs/shelf"}, {"$ref": "#/$defs/box"}],
    }

    found = fits(
        schema,
        '[{"boxes":[{"shelf":{"boxes":[]}}]},{"shelf":{"boxes":[]}}]',
        '[{"boxes":[{"shelf":{"boxes":[{}]}}]}]',
        '[{},{"shelf":{"boxes":[{}]}}]',
    )
    assert found == [True, False, False]

    once = {**schema, "$defs": {"shelf": {**shelf, "maxDepth": 1}, "box": box}}  # a box on a shelf holds no shelf
    found = fits(once, '[{"boxes":[{}]},{"shelf":{"boxes":[]}}]', '[{"boxes":[{"shelf":{"boxes":[]}}]},{}]')
    assert found == [True, False]


def test_a_depth_that_nests_too_deeply_says_what_to_lower() -> None:
    wide = {"items": {"items": {"items": {"items": {"$ref": "#"}}}}, "maxDepth": 10}
    with pytest.raises(GrammarTooLargeError, match="maxDepth"):
        read_schema(wide)


def test_unique_items_of_an_enum() -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b", 3, 3.0, True, 1]}, "uniqueItems": True}
    texts = ("[]", '["b","a"]', '[1,true,3,"b", "a"]', "[3,1]", '["a","a"]', "[3,3]", '["a","b","a"]', "[true,1,true]")
    assert fits(schema, *texts) == [True] * 4 + [False] * 4
    assert fits(schema | {"minItems": 2, "maxItems": 3}, *texts) == [False, True, False, True] + [False] * 4


@pytest.mark.parametrize(
    ("items", "right", "wrong"),
    [
        ({"type": "boolean"}, "[false,true]", "[true,true]"),
        ({"type": ["null", "boolean"]}, "[null,true,false]", "[null,null]"),
        ({"type": "integer", "minimum": -1, "maximum": 2}, "[2,-1,0]", "[2,2]"),
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": 50, "multipleOf": 15}, "[45,15]", "[15,15]"),
        ({"type": "integer", "minimum": 1, "maximum": 2, "multipleOf": 0.1}, "[2,1]", "[2,2]"),
        ({"type": "integer", "minimum": 0, "maximum": 5, "multipleOf": 0.2}, "[3,0,5]", "[3,3]"),
        ({"type": "integer", "minimum": 0, "maximum": 9, "multipleOf": 2.5}, "[5,0]", "[3]"),
        ({"$ref": "#/$defs/kind"}, '["b"]', '["b","b"]'),
        ({"anyOf": [{"const": "x"}, {"$ref": "#/$defs/kind"}, {"const": "a"}]}, '["a","x","b"]', '["a","a"]'),
    ],
)
def test_unique_items_of_other_finite_kinds(items: Any, right: str, wrong: str) -> None:
    schema = {"$defs": {"kind": {"enum": ["a", "b"]}}, "type": "array", "items": items, "uniqueItems": True}
    assert fits(schema, right, wrong) == [True, False]


def test_many_unique_items_come_in_the_order_of_their_values() -> None:
    names = [f"value {n}" for n in range(30)]
    schema = {"type": "array", "items": {"enum": names}, "uniqueItems": True}

    assert fits(schema, json.dumps(names), "[]", '["value 3","value 7"]', '["value 7","value 3"]', '["value 3"]') == [
        True,
        True,
        True,
        False,
        True,
    ]
    assert fits(schema | {"minItems": 1}, "[]", '["value 29"]') == [False, True]
    two = schema | {"maxItems": 2}  # few enough for any order
    assert fits(two, '["value 7","value 3"]', '["value 7","value 7"]', '["value 1","value 2","value 3"]') == [
        True,
        False,
        False,
    ]
    with pytest.raises(GrammarTooLargeError, match="allow fewer values, or any number of items"):
        read_schema(schema | {"maxItems": 15})


def test_any_object() -> None:
    dfa = compile_dfa(ANY_OBJECT, native=True)

    for text in ("{}", '{"a":1.5,"b":[{"c":[null,true]}]}', '{"a": {"b": {"c": {}}}}'):
        assert accepts(dfa, text.encode())
    for text in ("[]", "1", '{"a":[[[[]]]]}', '{"a":01}', '{"a"}', '{"a":\x04\x04}'):
        assert not accepts(dfa, text.encode())


def deep(count: int, inner: Any) -> Any:
    for _ in range(count):
        inner = {"type": "array", "items": inner}
    return inner


def lists(count: int) -> Any:
    inner: Any = 1
    for _ in range(count):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("schema", "keyword", "where"),
    [
        ({"type": "array", "items": {"not": TEXT}}, "not", "/items"),
        *(
            ({"type": "object", keyword: {}}, keyword, "")
            for keyword in ("if", "patternProperties", "propertyNames", "$anchor")
        ),
        *(({"type": "object", keyword: 1}, keyword, "") for keyword in ("minProperties", "maxProperties", "nullable")),
        ({"type": "array", "contains": TEXT}, "contains", ""),
        ({"type": "strin"}, "type", ""),
        ({"type": []}, "type", ""),
        ({"type": 3}, "type", ""),
        ({"properties": {"a/b": {"type": "integer", "multipleOf": 7}}}, "multipleOf", "/properties/a~1b"),
        ({"type": "number", "multipleOf": 0.3}, "multipleOf", ""),
        ({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 40_000}, "multipleOf", ""),
        ({"type": "integer", "multipleOf": 0}, "multipleOf", ""),
        ({"type": "number", "multipleOf": -0.5}, "multipleOf", ""),
        ({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6}, "minimum", ""),
        ({"type": "array", "uniqueItems": True}, "uniqueItems", ""),
        ({"type": "array", "uniqueItems": 1, "items": {"const": 1}}, "uniqueItems", ""),
        ({"items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 3}, "minItems", ""),
        ({"prefixItems": [{"const": 1}], "uniqueItems": True}, "uniqueItems", ""),
        ({"items": {"type": ["boolean", "string"]}, "uniqueItems": True}, "uniqueItems", ""),
        ({"items": {"type": "integer", "minimum": 0, "maximum": 1000}, "uniqueItems": True}, "uniqueItems", ""),
        (
            {"items": {"type": "integer", "minimum": 1, "maximum": 6, "multipleOf": 7}, "uniqueItems": True},
            "minimum",
            "/items",
        ),
        ({"type": "array", "items": False, "minItems": 1}, "minItems", ""),
        ({"oneOf": [WHOLE, {"type": "number"}]}, "oneOf", ""),
        ({"allOf": [TEXT, TEXT]}, "allOf", ""),
        ({"anyOf": []}, "anyOf", ""),
        ({"anyOf": 3}, "anyOf", ""),
        ({"anyOf": [TEXT], "type": "string"}, "type", ""),
        ({"$ref": "#/$defs/a", "$defs": {"a": TEXT}, "minLength": 1}, "minLength", ""),
        ({"enum": []}, "enum", ""),
        ({"type": "integer", "enum": ["a"]}, "enum", ""),
        ({"const": float("nan")}, "const", ""),
        ({"const": "\ud800"}, "const", ""),
        ({"const": {1: 2}}, "const", ""),
        ({"const": 10**5000}, "const", ""),
        ({"properties": {"\ud800": TEXT}}, "properties", ""),
        ({"properties": [1]}, "properties", ""),
        ({"properties": {}, "required": "ab"}, "required", ""),
        ({"properties": {"a": TEXT}, "required": ["b"]}, "required", ""),
        ({"properties": {"a": TEXT}, "additionalProperties": TEXT}, "additionalProperties", ""),
        ({"type": "object", "additionalProperties": 1}, "additionalProperties", ""),
        ({"properties": {"a": False}}, "", "/properties/a"),
        (False, "", ""),
        (3, "", ""),
        ({"type": "string", "format": "uri"}, "format", ""),
        ({"type": "integer", "format": "uint8"}, "format", ""),
        ({"type": "integer", "format": "date"}, "format", ""),
        ({"type": ["integer", "null"], "format": "box"}, "format", ""),
        ({"type": "boolean", "format": "int32"}, "format", ""),
        ({"type": "integer", "format": "int32", "minimum": 2**31}, "minimum", ""),
        ({"type": "object", "format": "boxes"}, "format", ""),
        ({"type": "object", "format": "box", "properties": {"count": WHOLE}}, "properties", ""),
        ({"type": "object", "format": "point", "required": ["x_min"]}, "required", ""),
        ({"type": "object", "format": "point", "properties": {"x": TEXT}}, "type", "/properties/x"),
        ({"type": "object", "format": "point", "properties": {"x": {"maximum": 0.5}}}, "maximum", "/properties/x"),
        ({"type": "object", "format": "box", "properties": {"score": {"minimum": 1}}}, "minimum", "/properties/score"),
        ({"type": "object", "format": "box", "properties": {"x_min": {"const": 0.5}}}, "const", "/properties/x_min"),
        ({"type": "string", "format": "date", "pattern": "a"}, "pattern", ""),
        ({"type": "string", "format": "date", "maxLength": 5}, "maxLength", ""),
        ({"type": "string", "pattern": r"\bfoo"}, "pattern", ""),
        ({"type": "string", "pattern": "\udc80"}, "pattern", ""),
        ({"type": "string", "pattern": 3}, "pattern", ""),
        ({"type": "string", "pattern": "(?:ab)+", "minLength": 3}, "minLength", ""),
        ({"type": "string", "minLength": -1}, "minLength", ""),
        ({"type": "string", "minLength": True}, "minLength", ""),
        ({"type": "string", "minLength": 1.5}, "minLength", ""),
        ({"type": "string", "maxLength": float("nan")}, "maxLength", ""),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength", ""),
        ({"type": "string", "minimum": 2}, "minimum", ""),
        ({"minLength": 1, "minimum": 2}, "minLength", ""),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "minimum", ""),
        ({"type": "integer", "minimum": 10**5000}, "minimum", ""),
        ({"type": "number", "maximum": float("inf")}, "maximum", ""),
        ({"$ref": "#"}, "$ref", ""),
        (
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"items": {"$ref": "#/$defs/a"}, "minItems": 1}}}
            | {"$ref": "#/$defs/a"},
            "$ref",
            "/$defs/b/items",
        ),
        ({"properties": {"next": {"$ref": "#"}}, "required": ["next"]}, "$ref", "/properties/next"),
        ({"items": {"$ref": "#"}, "maxDepth": 11}, "maxDepth", ""),
        ({"items": {"$ref": "#"}, "maxDepth": 0}, "maxDepth", ""),
        ({"items": {"$ref": "#"}, "maxDepth": "2"}, "maxDepth", ""),
        ({"$ref": "#/nowhere"}, "$ref", ""),
        ({"$ref": "http://example.com"}, "$ref", ""),
        ({"$ref": 3}, "$ref", ""),
        ({"$defs": 3}, "$defs", ""),
        ({"properties": {"a": {"$id": "y"}}}, "$id", "/properties/a"),
        ({"properties": {"a": {"id": "http://example.com/a"}}}, "id", "/properties/a"),
        ({"type": "object", "id": {"type": "string"}}, "id", ""),  # a property that is in no "properties"
        ({"type": "integer", "min": 3}, "min", ""),
    ],
)
def test_unenforceable_keywords_are_refused_by_keyword_and_place(schema: Any, keyword: str, where: str) -> None:
    with pytest.raises(SchemaError) as caught:
        read_schema(schema)[0]

    assert (caught.value.keyword, caught.value.where) == (keyword, where)


def test_annotations_of_other_drafts_and_of_openapi_restrict_nothing() -> None:
    plain = {"properties": {"a": {"type": "integer", "minimum": 3}, "b": {"enum": ["x"]}}, "required": ["a"]}
    noted = {
        "id": "http://example.com/schema",
        "links": [],
        "x-order": 1,
        "properties": {
            "a": {"id": "#a", "type": "integer", "minimum": 3, "example": 4, "x-unit": "mm"},
            "b": {"enum": ["x"], "x-enum-names": ["X"], "xml": {}, "externalDocs": {}},
        },
        "required": ["a"],
    }

    assert read_schema(noted) == read_schema(plain)


def test_a_place_with_half_a_character_is_named_in_text_that_can_be_sent() -> None:
    with pytest.raises(SchemaError, match=r"at /properties/\\ud800: ") as caught:
        read_schema({"properties": {"\ud800": {"not": {}}}})[0]

    assert caught.value.where == "/properties/\ud800"


CYCLE = [{"$ref": f"#/$defs/d{n}"} for n in range(9)]
DOUBLING = {f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}


@pytest.mark.parametrize(
    "schema",
    [
        deep(200, TEXT),
        {"const": lists(200)},
        {"enum": list(range(5001))},
        {"anyOf": [WHOLE] * 5001},
        {"oneOf": [{"const": n} for n in range(65)]},
        {"type": "string", "maxLength": 10**9},
        {"type": "string", "minLength": 10**300},
        {"type": "array", "minItems": 10**6},
        deep(10, {"type": "string", "maxLength": 20000}),
        {"type": "string", "pattern": "((x{100}){100}){100}"},
        {"$defs": DOUBLING | {"d30": TEXT}, "$ref": "#/$defs/d0"},
        {"items": {"anyOf": [{"items": {"$ref": "#"}}] * 9 + [TEXT]}, "maxDepth": 10},
        {"$defs": {f"d{n}": {"items": {"anyOf": CYCLE}, "minItems": 1} for n in range(9)}, "anyOf": CYCLE},
        {
            "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 9} for n in range(9)} | {"d9": TEXT},
            "$ref": "#/$defs/d0",
        },
    ],
)
def test_what_is_too_large_is_refused_before_it_is_compiled(schema: Any) -> None:
    with pytest.raises(GrammarTooLargeError):
        read_schema(schema)[0]


def test_thousands_of_listed_values() -> None:
    names = [f"value {n * 7919 % 10007}" for n in range(5000)]
    automaton = EVERYTHING.automaton(compiled({"enum": names}))

    assert json.loads(answer(automaton, 40, random.Random(0))) in names


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["string", "#", "#/items"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "enum", "items", "prefixItems", "properties", "required", "anyOf", "oneOf", "$ref", "pattern"]
            )
            | st.sampled_from(
                ["minItems", "maxLength", "minimum", "exclusiveMaximum", "const", "additionalProperties", "format"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.long
@settings(CASES, max_examples=400)
@given(JUNK)
def test_any_json_is_read_or_refused_with_a_typed_error(schema: Any) -> None:
    with contextlib.suppress(GrammarError):
        read_schema(schema)[0]


def test_no_end_id_is_needed_after_an_object() -> None:
    automaton = EVERYTHING.automaton(compiled({"properties": {}}))
    tables = automaton.tables

    assert automaton.shortest == 2
    assert not any(END in tables.rows.ids(row) for row in tables.row_of[~tables.complete, 0])
