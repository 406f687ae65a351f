"""Every body is checked without copying or quoting what is large in it."""

from typing import Any

import pytest

from photonlite.server.bodies.base import Body, validate
from photonlite.server.bodies.chat import ChatCompletionRequest
from photonlite.server.bodies.skills import CaptionRequest, DetectRequest, QueryRequest
from photonlite.server.errors import HttpError

LARGE = "secret" * 100_000
URI = f"data:image/png;base64,{LARGE}"


def refusal(model: type[Body], fields: dict[str, Any]) -> HttpError:
    with pytest.raises(HttpError) as error:
        validate(model, fields)
    return error.value


def test_an_image_is_not_copied() -> None:
    part = {"type": "image_url", "image_url": {"url": URI}}
    message = {"role": "user", "content": [{"type": "text", "text": "?"}, part]}

    assert validate(CaptionRequest, {"image_url": URI}).image_url is URI
    assert validate(ChatCompletionRequest, {"messages": [message]}).images[0] is URI


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (CaptionRequest, {"length": LARGE}),
        (CaptionRequest, {"image_url": [URI]}),
        (CaptionRequest, {"settings": LARGE}),
        (CaptionRequest, {LARGE: 1}),
        (DetectRequest, {"image_url": URI}),
        (DetectRequest, {"image_url": URI, "object": {LARGE: LARGE}}),
        (QueryRequest, {"question": "?", "choices": [LARGE, 5]}),
        (QueryRequest, {"question": "?", "spatial_refs": [LARGE]}),
        (ChatCompletionRequest, {"messages": LARGE}),
        (ChatCompletionRequest, {"messages": [{"role": LARGE, "content": "?"}]}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": [{"type": LARGE}]}]}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": "?"}], "n": LARGE}),
    ],
)
def test_an_error_quotes_a_few_characters_at_most(model: type[Body], fields: dict[str, Any]) -> None:
    message = refusal(model, fields).message

    assert len(message) < 600
    assert message.count("secret") <= 10


def test_null_counts_as_left_out_also_for_required_fields() -> None:
    assert validate(CaptionRequest, {"length": None, "model": None}).given == {}
    assert refusal(DetectRequest, {"object": None}).code == "missing_field"


def test_a_misspelled_field_is_refused_with_the_nearest_name() -> None:
    error = refusal(DetectRequest, {"objct": "mug"})

    assert error.code == "unknown_field"
    assert (
        "(did you mean 'object'?): the fields are image_url, stream, settings, strict, model, adapter" in error.message
    )


def test_arguments_are_the_given_fields_unchanged() -> None:
    refs = [[0.5, 0.5], {"x": 0, "y": 1, "label": "mug"}]
    schema = {"type": "object"}
    fields = {"question": "?", "spatial_refs": refs, "schema": schema, "stream": False, "model": "m", "strict": True}

    arguments = validate(QueryRequest, fields).arguments

    assert arguments == {"question": "?", "spatial_refs": refs, "schema": schema}
    assert arguments["spatial_refs"] is refs
    assert arguments["schema"] is schema
