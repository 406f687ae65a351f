"""What an answer has to be, in OpenAI's words and in vLLM's."""

from typing import Any

import pytest

from photonlite.server.bodies.chat_format import read_format
from photonlite.server.errors import HttpError

SCHEMA = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({}, {}),
        ({"response_format": {"type": "text"}}, {}),
        ({"structured_outputs": {}}, {}),
        ({"structured_outputs": {"json": None, "json_object": False}}, {}),
        ({"response_format": {"type": "json_object"}}, {"schema": dict}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": 1}}},
            {"schema": SCHEMA},
        ),
        ({"structured_outputs": {"json": SCHEMA}}, {"schema": SCHEMA}),
        ({"structured_outputs": {"json": '{"type": "null"}'}}, {"schema": '{"type": "null"}'}),
        ({"structured_outputs": {"json_object": True}}, {"schema": dict}),
        ({"structured_outputs": {"regex": "[a-z]+"}}, {"regex": "[a-z]+"}),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"choices": ["yes", "no"]}),
        ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}}, {"regex": "a"}),
    ],
)
def test_both_parameters_become_arguments_of_query(given: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert read_format(given) == arguments


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"response_format": "json_object"}, "'response_format' must be an object"),
        ({"response_format": {}}, "the type None: the types are text, json_object, json_schema"),
        ({"response_format": {"type": "grammar"}}, "the type 'grammar'"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "'response_format' has 'schema'"),
        ({"response_format": {"type": "json_schema"}}, "'json_schema' must be an object"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "'json_schema' must be an object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "loose": 1}}},
            "'json_schema' has 'loose'",
        ),
        ({"structured_outputs": ["yes"]}, "'structured_outputs' must be an object"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "'structured_outputs' has 'grammar'"),
        ({"structured_outputs": {"json": 5}}, "'json' must be a JSON Schema"),
        ({"structured_outputs": {"json_object": 1}}, "'json_object' must be true or false"),
        ({"structured_outputs": {"regex": 5}}, "'regex' must be a pattern"),
        ({"structured_outputs": {"choice": "yes"}}, "'choice' must be a list of texts"),
        ({"structured_outputs": {"choice": ["yes", 5]}}, "'choice' must be a list of texts"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "'regex' and 'choice': give one"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "'response_format' and 'structured_outputs' both say",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(HttpError, match=words) as caught:
        read_format(given)

    assert caught.value.status == 422
