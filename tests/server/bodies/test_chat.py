"""Which parameters of a chat completion are used, ignored and refused."""

from typing import Any

import pytest

from photonlite.server.bodies.chat import IGNORED, NEUTRAL, read_chat
from photonlite.server.errors import HttpError

MESSAGES = [{"role": "user", "content": "How many?"}]


def read(**parameters: Any) -> Any:
    return read_chat({"messages": MESSAGES, **parameters})


def test_messages_alone_are_enough() -> None:
    chat = read()

    assert chat.conversation.question == "How many?"
    assert (chat.model, chat.settings, chat.stop, chat.stream, chat.include_usage) == (None, {}, (), False, False)


def test_settings_go_to_the_model_under_its_own_names() -> None:
    chat = read(max_completion_tokens=5, temperature=0.5, top_p=0.9, seed=3)

    assert chat.settings == {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "seed": 3}
    assert read(max_tokens=7).settings == {"max_tokens": 7}


def test_a_stream_and_its_usage_are_understood() -> None:
    chat = read(stream=True, stream_options={"include_usage": True}, stop="END", model="nano")

    assert (chat.stream, chat.include_usage, chat.stop, chat.model) == (True, True, ("END",), "nano")
    assert read(stop=["a", "b"]).stop == ("a", "b")


def test_what_the_answer_has_to_be_becomes_an_argument_of_the_query() -> None:
    assert read().form == {}
    assert read(structured_outputs={"choice": ["yes", "no"]}).form == {"choices": ["yes", "no"]}


def test_null_means_left_out() -> None:
    names = ["temperature", "max_tokens", "seed", "stop", "stream", "stream_options", "model", "tools", "n", "user"]

    assert read(**dict.fromkeys(names)) == read()


def test_what_does_not_change_an_answer_is_taken() -> None:
    neutral = {name: values[0] for name, values in NEUTRAL.items()}

    assert read(**neutral, **dict.fromkeys(IGNORED, "anything")) == read()


@pytest.mark.parametrize(
    ("parameters", "status", "words"),
    [
        ({"frequency": 1}, 422, "parameter 'frequency' is unknown"),
        ({"stream": "yes"}, 422, "'stream' must be true or false"),
        ({"model": 5}, 422, "'model' must be text"),
        ({"stop": 5}, 422, "'stop' must be text"),
        ({"stop": ["a", 5]}, 422, "'stop' must be text"),
        ({"stream": True, "stream_options": True}, 422, "'stream_options' must be an object"),
        ({"stream": True, "stream_options": {"usage": True}}, 422, "stream option 'usage' is unknown"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, 422, "'include_usage' must be true or false"),
        ({"stream_options": {"include_usage": True}}, 422, "with 'stream': true only"),
        ({"stop": ["a", "b", "c", "d", "e"]}, 422, "at most 4 sequences"),
        ({"stop": ""}, 422, "at least one character"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, 422, "mean the same"),
        ({"n": 2}, 422, "parameter 'n' is 2: only 1 is supported"),
        ({"n": True}, 422, "parameter 'n' is True"),
        ({"logprobs": True}, 422, "parameter 'logprobs'"),
        ({"response_format": {"type": "xml"}}, 422, "'response_format' has the type 'xml'"),
        ({"tools": [{"type": "function"}]}, 422, "parameter 'tools'"),
        ({"reasoning_effort": "high"}, 422, "parameter 'reasoning_effort'"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(parameters: dict[str, Any], status: int, words: str) -> None:
    with pytest.raises(HttpError) as refusal:
        read(**parameters)

    assert refusal.value.status == status
    assert words in refusal.value.message


@pytest.mark.parametrize("body", [None, [], "text", 5])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    with pytest.raises(HttpError) as refusal:
        read_chat(body)

    assert refusal.value.status == 400
