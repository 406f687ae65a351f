from typing import Any

import pytest

from photonlite.errors import ImageUrlError, PromptError
from photonlite.request import Turn
from photonlite.skills.chat import MAX_TURNS, flat_text, read_messages, unique_images

QUESTION = {"role": "user", "content": "How many?"}


def image(value: object) -> dict[str, Any]:
    return {"type": "image", "image": value}


def test_texts_and_images_keep_their_places() -> None:
    found = read_messages(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [image("a.png"), "What is it?", image(b"bytes")]},
            {"role": "assistant", "content": [{"type": "text", "text": "A mug."}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}, "And this?"]},
        ]
    )

    assert found.turns == (
        Turn("system", ("Be brief.",)),
        Turn("user", (None, "What is it?", None)),
        Turn("assistant", ("A mug.",)),
        Turn("user", (None, "And this?")),
    )
    assert found.images == ("a.png", b"bytes", "data:x")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("How many?", "messages is of type str"),
        ({"role": "user"}, "messages is of type dict"),
        (None, "messages is of type NoneType"),
        ([], "there are 0 messages"),
        ([QUESTION] * (MAX_TURNS + 1), f"there are {MAX_TURNS + 1} messages"),
        (["How many?"], "message 1 is of type str"),
        ([{"content": "x"}], "message 1 has the role None"),
        ([QUESTION, {"role": "tool", "content": "x"}], "message 2 has the role 'tool'"),
        ([{"role": ["user"], "content": "x"}], r"message 1 has the role \['user'\]"),
        ([{"role": "user"}], "content of message 1 is of type NoneType"),
        ([{"role": "user", "content": {"type": "text"}}], "content of message 1 is of type dict"),
        ([{"role": "user", "content": ["x"] * (MAX_TURNS + 1)}], f"the messages have {MAX_TURNS + 1} parts"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 1 has the part"),
        ([{"role": "user", "content": [{"type": "video", "video": "x"}]}], "message 1 has the part"),
        ([{"role": "user", "content": [{"type": "image", "image": None}]}], "message 1 has the part"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "message 1 has the part"),
        ([{"role": "user", "content": [7]}], "message 1 has the part 7"),
        ([{"role": "system", "content": [image("x")]}, QUESTION], "message 1 is the system's and holds an image"),
        (
            [QUESTION, {"role": "assistant", "content": [image("x")]}, QUESTION],
            "message 2 is the assistant's and holds",
        ),
        ([QUESTION, {"role": "assistant", "content": "x"}], "the last message is the assistant's"),
        ([{"role": "user", "content": [image("x"), "  "]}], "the last message holds no text"),
    ],
)
def test_what_is_no_conversation_is_refused(messages: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        read_messages(messages)


def test_a_conversation_as_one_question_names_who_spoke() -> None:
    turns = (
        Turn("system", ("Be brief.",)),
        Turn("user", (None, "What is it?")),
        Turn("assistant", ("A mug.",)),
        Turn("assistant", ("",)),
        Turn("user", ("And this?", " Or that?")),
    )

    assert flat_text(turns) == "Be brief.\n\nUser: What is it?\nAssistant: A mug.\n\nAnd this?\n Or that?"
    assert flat_text(turns[1:2]) == "What is it?"


def test_images_that_are_sent_again_count_once() -> None:
    first, second = object(), object()

    assert unique_images([first, "a", b"a", second, "a", first, b"a"]) == (first, "a", b"a", second)


def test_an_image_url_is_never_a_path() -> None:
    part = {"type": "image_url", "image_url": {"url": "/etc/picture.png"}}
    with pytest.raises(ImageUrlError, match=r"message 1 has the image_url '/etc/picture\.png'"):
        read_messages([{"role": "user", "content": [part, "What is it?"]}])


def test_parts_are_limited_over_all_messages() -> None:
    half = {"role": "user", "content": ["x"] * (MAX_TURNS // 2 + 1)}
    with pytest.raises(PromptError, match=f"the messages have {MAX_TURNS + 2} parts"):
        read_messages([half, half])


def test_a_conversation_has_a_length() -> None:
    with pytest.raises(PromptError, match="the messages have 100001 characters, over the limit of 100000"):
        read_messages([{"role": "user", "content": "x" * 50_001}, {"role": "user", "content": "y" * 50_000}])
