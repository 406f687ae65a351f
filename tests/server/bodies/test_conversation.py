"""A conversation becomes one question about one image."""

from typing import Any

import pytest

from photonlite.server.bodies.conversation import read_conversation
from photonlite.server.errors import HttpError

URI = "data:image/png;base64,AAAA"


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(url: str = URI) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def says(role: str, words: Any) -> dict[str, Any]:
    return {"role": role, "content": words}


def test_a_single_question_stays_as_it_is() -> None:
    conversation = read_conversation([says("user", " How many?\n")])

    assert conversation.question == "How many?"
    assert conversation.images == ()


def test_parts_are_joined_and_the_image_is_found() -> None:
    conversation = read_conversation([user(text("Look."), image(), text("How many?"))])

    assert conversation.question == "Look.\nHow many?"
    assert conversation.images == (URI,)


def test_earlier_turns_stand_before_the_last_question_and_instructions_before_everything() -> None:
    conversation = read_conversation(
        [
            says("system", "Be brief."),
            user(text("How many mugs?"), image()),
            says("assistant", "Two."),
            says("developer", "In English."),
            says("user", "And spoons?"),
        ]
    )

    assert conversation.question == "Be brief.\nIn English.\n\nUser: How many mugs?\nAssistant: Two.\n\nAnd spoons?"
    assert conversation.images == (URI,)


def test_turns_without_text_leave_no_trace() -> None:
    turns = [user(image()), says("assistant", None), says("user", "And now?")]

    assert read_conversation(turns).question == "And now?"


def test_an_image_that_is_sent_again_counts_once_and_others_count() -> None:
    turns = [user(text("a"), image()), says("assistant", "b"), user(text("c"), image(), image("https://x/y.png"))]

    assert read_conversation(turns).images == (URI, "https://x/y.png")


@pytest.mark.parametrize(
    ("messages", "status", "words"),
    [
        (None, 422, "'messages' must be a list"),
        ([], 422, "at least one message"),
        ("hello", 422, "'messages' must be a list"),
        (["hello"], 422, "messages[0] must be an object"),
        ([{"role": "user"}], 422, "messages[0].content must be text or a list"),
        ([says("user", 5)], 422, "messages[0].content must be text or a list"),
        ([says("user", ["hello"])], 422, "messages[0].content[0] must be an object with a 'type'"),
        ([user({"type": ["text"]})], 422, "must be an object with a 'type'"),
        ([user({"type": "text", "text": None})], 422, "messages[0].content[0].text must be text"),
        ([user({"type": "image_url", "image_url": URI})], 422, "image_url must be an object with a 'url'"),
        ([user({"type": "image_url", "image_url": {"url": None}})], 422, "image_url must be an object with a 'url'"),
        ([says("tool", "5")], 422, "the role 'tool'"),
        ([says({}, "5")], 422, "the role {}"),  # type: ignore[arg-type]
        ([says("system", "Be brief.")], 422, "the last message is the system's"),
        ([says("user", "a"), says("assistant", "b")], 422, "the last message is the assistant's"),
        ([says("user", " ")], 422, "the last message holds no text"),
        ([user(image())], 422, "the last message holds no text"),
        ([user({"type": "input_audio", "input_audio": {}})], 422, "of the type 'input_audio'"),
        ([{"role": "system", "content": [image()]}, says("user", "a")], 422, "the system's parts may be text"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}, says("user", "a")], 422, "calls a tool"),
    ],
)
def test_what_cannot_be_asked_is_refused(messages: Any, status: int, words: str) -> None:
    with pytest.raises(HttpError) as refusal:
        read_conversation(messages)

    assert refusal.value.status == status
    assert words in refusal.value.message
