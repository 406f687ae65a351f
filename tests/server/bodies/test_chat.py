"""A conversation becomes one question about one image; which parameters are used, ignored and refused."""

from typing import Any

import pytest

from photonlite.server.bodies.base import validate
from photonlite.server.bodies.chat import ChatCompletionRequest
from photonlite.server.errors import HttpError
from photonlite.skills.chat import flat_text, read_messages

MESSAGES = [{"role": "user", "content": "How many?"}]


URI = "data:image/png;base64,AAAA"
SCHEMA = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
NEUTRAL: dict[str, Any] = {
    "n": 1,
    "frequency_penalty": 0.0,
    "presence_penalty": 0,
    "logit_bias": {},
    "logprobs": False,
    "top_logprobs": 0,
    "modalities": ["text"],
    "reasoning": False,
    "reasoning_effort": "none",
    "tools": [],
    "tool_choice": "auto",
    "functions": [],
    "function_call": "none",
}
IGNORED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
)


def read(**parameters: Any) -> ChatCompletionRequest:
    return validate(ChatCompletionRequest, {"messages": MESSAGES, **parameters})


@pytest.mark.parametrize("value", [0, -1])
def test_top_k_may_mean_all(value: int) -> None:
    assert read(top_k=value).arguments["settings"] == {}


def test_parts_are_limited_over_all_messages() -> None:
    half = {"role": "user", "content": [{"type": "text", "text": "x"}] * 513}
    assert "1026 parts, over the limit of 1024" in refusal(messages=[half, half]).message


def form(**parameters: Any) -> dict[str, Any]:
    """What the answer has to be."""
    arguments = read(**parameters).arguments
    return {name: value for name, value in arguments.items() if name not in ("messages", "settings")}


def refusal(**parameters: Any) -> HttpError:
    with pytest.raises(HttpError) as error:
        _ = read(**parameters).arguments
    assert error.value.status == 422
    return error.value


def test_messages_alone_are_enough() -> None:
    chat = read()

    assert question(chat) == "How many?"
    assert chat.arguments["settings"] == {}
    assert (chat.model, chat.stream, chat.include_usage) == (None, False, False)


def test_settings_go_to_the_model_under_its_own_names() -> None:
    settings = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.3, "seed": 3}
    chat = read(max_completion_tokens=5, **settings)

    assert chat.arguments["settings"] == settings | {"max_tokens": 5}
    assert read(max_tokens=7).arguments["settings"] == {"max_tokens": 7}
    assert read(stop=["a", "b"]).arguments["settings"] == {"stop": ["a", "b"]}


def test_a_stream_and_its_usage_are_understood() -> None:
    chat = read(stream=True, stream_options={"include_usage": True}, model="nano")

    assert (chat.stream, chat.include_usage, chat.model) == (True, True, "nano")


def test_null_means_left_out() -> None:
    names = ["temperature", "max_tokens", "seed", "stop", "stream", "stream_options", "model", "tools", "n", "user"]

    assert read(**dict.fromkeys(names)) == read()


def test_parameters_that_change_nothing_are_accepted() -> None:
    assert read(**NEUTRAL, **dict.fromkeys(IGNORED, "anything")).arguments == read().arguments


@pytest.mark.parametrize(
    ("parameters", "code", "words"),
    [
        ({"frequency": 1}, "unknown_field", "the field 'frequency' is unknown"),
        ({"strem": True}, "unknown_field", "did you mean 'stream'?"),
        ({"stream": "yes"}, "invalid_field", "'stream' must be true or false"),
        ({"model": 5}, "invalid_field", "'model' must be text"),
        ({"stream": True, "stream_options": True}, "invalid_field", "'stream_options' must be an object"),
        ({"stream": True, "stream_options": {"usage": True}}, "unknown_field", "'usage' is unknown"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "invalid_field", "include_usage' must be true or"),
        ({"stream_options": {"include_usage": True}}, "invalid_input", "with 'stream': true only"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "invalid_input", "mean the same"),
        ({"n": 2}, "invalid_input", "'n' is 2: only 1 is supported"),
        ({"n": True}, "invalid_input", "'n' is True"),
        ({"logprobs": 0}, "invalid_input", "'logprobs' is 0: only False"),
        ({"logprobs": True}, "invalid_input", "'logprobs'"),
        ({"tools": [{"type": "function"}]}, "invalid_input", "'tools'"),
        ({"reasoning_effort": "high"}, "invalid_input", "'reasoning_effort' is 'high'"),
    ],
)
def test_unsupported_parameters_are_refused_by_name(parameters: dict[str, Any], code: str, words: str) -> None:
    error = refusal(**parameters)

    assert error.code == code
    assert words in error.message


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(url: str = URI) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "high"}}


def question(asked: ChatCompletionRequest) -> str:
    """Return the conversation as a model for single questions reads it."""
    return flat_text(read_messages(asked.conversation).turns)


def says(role: str, words: Any) -> dict[str, Any]:
    return {"role": role, "content": words}


def test_a_single_question_is_asked_unchanged() -> None:
    conversation = read(messages=[says("user", " How many?\n")])

    assert question(conversation) == "How many?"
    assert conversation.images == []


def test_parts_are_joined_and_the_image_is_found() -> None:
    conversation = read(messages=[user(text("Look."), image(), text("How many?"))])

    assert question(conversation) == "Look.\nHow many?"
    assert conversation.images == [URI]


def test_instructions_come_first_then_earlier_turns_then_the_question() -> None:
    conversation = read(
        messages=[
            says("system", "Be brief."),
            user(text("How many mugs?"), image()),
            says("assistant", "Two."),
            says("developer", "In English."),
            says("user", "And spoons?"),
        ]
    )

    assert question(conversation) == "Be brief.\nIn English.\n\nUser: How many mugs?\nAssistant: Two.\n\nAnd spoons?"
    assert conversation.images == [URI]


def test_turns_without_text_are_left_out() -> None:
    turns = [user(image()), says("assistant", None), says("user", "And now?")]

    assert question(read(messages=turns)) == "And now?"


def test_an_image_that_is_sent_again_counts_once_and_others_count() -> None:
    turns = [user(text("a"), image()), says("assistant", "b"), user(text("c"), image(), image("https://x/y.png"))]

    assert read(messages=turns).images == [URI, "https://x/y.png"]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (None, "'messages' is missing"),
        ([], "there are 0 messages: give 1 to 1024"),
        ("hello", "messages is of type str: give a list"),
        (["hello"], "message 1 is of type str"),
        ([says("user", "a")] * 1025, "there are 1025 messages: give 1 to 1024"),
        ([{"role": "user"}], "the content of message 1 is of type NoneType"),
        ([says("user", 5)], "the content of message 1 is of type int"),
        ([user({"type": ["text"]})], "message 1 has the part {'type': ['text']}: give {"),
        ([user({"type": "text", "text": 5})], "message 1 has the part {'text': 5, 'type': 'text'}"),
        ([user({"type": "image_url", "image_url": {"url": None}})], "message 1 has the part"),
        ([user(text("a"), {"type": "image", "image": "/etc/picture.png"})], "message 1 has the part"),
        ([user({"type": "input_audio", "input_audio": {}})], "message 1 has the part"),
        ([says("tool", "5")], "message 1 has the role 'tool': it is one of system, developer, user, assistant"),
        ([says({}, "5")], "message 1 has the role {}"),  # type: ignore[arg-type]
        ([says("system", "Be brief.")], "the last message is the system's"),
        ([says("user", "a"), says("assistant", "b")], "the last message is the assistant's"),
        ([says("user", " ")], "the last message holds no text"),
        ([user(image())], "the last message holds no text"),
        ([user(text("a"), image() | {"max_pixels": 3136})], "the field 'max_pixels', which is not used: resize the"),
        ([user({"type": "image_url", "image_url": {"url": URI, "detail": "low"}})], "the detail 'low': only auto or"),
        ([says("user", "a") | {"name": "Ann"}], "message 1 has the field 'name', which is not used"),
        ([says("user", "a"), says("assistant", "b") | {"audio": {"id": "x"}}, says("user", "c")], "the field 'audio'"),
        ([says("user", "a"), says("assistant", "b") | {"refusal": "No."}, says("user", "c")], "the field 'refusal'"),
        ([says("user", "a"), says("assistant", "") | {"function_call": {}}, says("user", "c")], "'function_call'"),
        ([{"role": "system", "content": [image()]}, says("user", "a")], "message 1 is the system's and holds an image"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}, says("user", "a")], "the field 'tool_calls'"),
    ],
)
def test_invalid_conversations_are_refused(messages: Any, words: str) -> None:
    assert words in refusal(messages=messages).message


def test_an_answer_of_openais_client_can_be_sent_back() -> None:
    # What `choices[0].message.model_dump()` of the package openai has.
    unused = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls"))

    for more in (unused, {"annotations": [], "tool_calls": [], "parsed": {"count": 2}}):
        messages = [says("user", "a"), says("assistant", "Two.") | more, says("user", "b")]
        assert question(read(messages=messages)) == "User: a\nAssistant: Two.\n\nb"
        assert flat_text(read_messages(messages).turns) == "User: a\nAssistant: Two.\n\nb"


@pytest.mark.parametrize("url", ["/etc/picture.png", "file:///etc/picture.png", "x" * 1000])
def test_an_image_url_is_never_a_path(url: str) -> None:
    with pytest.raises(HttpError, match=r"message 1 has the image_url .* it takes data: and https: URLs") as refused:
        read(messages=[user(text("a"), {"type": "image_url", "image_url": {"url": url}})])
    assert (refused.value.status, refused.value.code) == (400, "invalid_image_url")
    assert len(refused.value.message) < 200


def test_hints_for_caching_change_no_answer() -> None:
    hint = {"cache_control": {"type": "ephemeral"}}

    assert read(messages=[user(text("a") | hint) | hint]).conversation == read(messages=[user(text("a"))]).conversation


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
    assert form(**given) == arguments


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"response_format": "json_object"}, "'response_format' must be an object"),
        ({"response_format": {}}, "'response_format.type' is missing"),
        ({"response_format": {"type": "grammar"}}, "type' must be 'text', 'json_object' or 'json_schema'"),
        (
            {"response_format": {"type": "json_object", "schema": {}}},
            "the field 'schema' is unknown (did you mean 'json_schema'?): the fields are type, json_schema",
        ),
        ({"response_format": {"type": "json_schema"}}, "'response_format' must have 'json_schema'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "json_schema.schema' is missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "loose": 1}}},
            "the field 'loose' is unknown",
        ),
        ({"structured_outputs": ["yes"]}, "'structured_outputs' must be an object"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "the field 'grammar' is unknown"),
        ({"structured_outputs": {"json": 5}}, "'structured_outputs.json' must be a JSON Schema"),
        ({"structured_outputs": {"json_object": 1}}, "json_object' must be true or false"),
        ({"structured_outputs": {"regex": 5}}, "regex' must be text"),
        ({"structured_outputs": {"choice": "yes"}}, "choice' must be a list of texts"),
        ({"structured_outputs": {"choice": ["yes", 5]}}, "choice' must be a list of texts"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "'regex' and 'choice': give one"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "'response_format' and 'structured_outputs' both constrain",
        ),
    ],
)
def test_invalid_fields_are_refused_by_name(given: dict[str, Any], words: str) -> None:
    assert words in refusal(**given).message
