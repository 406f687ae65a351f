import re
import reprlib
from pathlib import Path
from typing import Any

import pytest

from photonlite.errors import ImageUrlError, PromptError
from photonlite.request import Turn
from photonlite.skills.chat import MAX_TURNS, flat_text, read_messages, unique_images

QUESTION = {"role": "user", "content": "How many?"}


def image(value: object) -> dict[str, Any]:
    return {"type": "image", "image": value}


def says(part: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [part, "What is it?"]}


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


PATH = "/etc/picture.png"


@pytest.mark.parametrize("url", [PATH, Path(PATH), f"file://{PATH}", b"bytes", 7])
@pytest.mark.parametrize("nested", [True, False])
def test_an_image_url_is_never_a_path(url: object, nested: bool) -> None:
    part = {"type": "image_url", "image_url": {"url": url} if nested else url}
    with pytest.raises(ImageUrlError, match=re.escape(f"message 1 has the image_url {reprlib.repr(url)}")):
        read_messages([{"role": "user", "content": [part, "What is it?"]}])


@pytest.mark.parametrize("url", ["data:image/png;base64,AAAA", "https://example.com/a.png", "HTTP://example.com/a.png"])
@pytest.mark.parametrize("nested", [True, False])
def test_an_image_url_is_a_data_uri_or_a_url(url: str, nested: bool) -> None:
    part = {"type": "image_url", "image_url": {"url": url, "detail": "auto"} if nested else url}

    assert read_messages([{"role": "user", "content": [part, "What is it?"]}]).images == (url,)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (QUESTION | {"name": "Ann"}, "message 1 has the field 'name', which is not used; the fields are role, content"),
        (QUESTION | {"contents": "x"}, "the field 'contents' (did you mean 'content'?)"),
        (QUESTION | {"tool_calls": [{}]}, "the field 'tool_calls'"),
        (QUESTION | {"refusal": "No."}, "the field 'refusal'"),
        (says(image("x") | {"min_pixels": 3136}), "the field 'min_pixels', which is not used: resize the image"),
        (says(image("x") | {"max_pixles": 5}), "the field 'max_pixles'"),
        (says(image("x") | {"resized_height": 56}), "the field 'resized_height', which is not used: resize the image"),
        (says(image("x") | {"text": "y"}), "the field 'text'"),
        (says({"type": "text", "text": "x", "image": "y"}), "the field 'image'"),
        (says({"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}), "the detail 'low': only auto"),
        (says({"type": "image_url", "image_url": {"url": "data:x", "max_pixels": 5}}), "the field 'max_pixels'"),
    ],
)
def test_a_field_that_is_not_used_is_refused_by_name(message: Any, words: str) -> None:
    with pytest.raises(PromptError, match=re.escape(words)):
        read_messages([message])


def test_fields_that_change_no_answer_are_taken() -> None:
    hint = {"cache_control": {"type": "ephemeral"}}
    unused = {"refusal": None, "audio": None, "tool_calls": [], "annotations": [{"type": "url_citation"}]}
    unused |= {"reasoning_content": "They look alike."}
    messages = [QUESTION | hint, {"role": "assistant", "content": "Two.", **unused}, says(image("x") | hint)]

    assert read_messages(messages).images == ("x",)


def test_parts_are_limited_over_all_messages() -> None:
    half = {"role": "user", "content": ["x"] * (MAX_TURNS // 2 + 1)}
    with pytest.raises(PromptError, match=f"the messages have {MAX_TURNS + 2} parts"):
        read_messages([half, half])


def test_a_conversation_has_a_length() -> None:
    with pytest.raises(PromptError, match="the messages have 100001 characters, over the limit of 100000"):
        read_messages([{"role": "user", "content": "x" * 50_001}, {"role": "user", "content": "y" * 50_000}])
