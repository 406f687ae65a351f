"""What goes over the wire at /v1/chat/completions and /v1/models."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.applications import Starlette

from photonlite.results import Answer
from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from tests.server.asgi import Exchange, post
from tests.server.fake import METRICS, FakeModel
from tests.serving import run

PATH = "/v1/chat/completions"
PNG = "data:image/png;base64,iVBORw0KGgo="
USAGE = {"prompt_tokens": 740, "completion_tokens": 3, "total_tokens": 743}


@pytest.fixture
def fake() -> FakeModel:
    return FakeModel()


@pytest.fixture
def app(fake: FakeModel) -> Starlette:
    return create_app(fake, ServerConfig(max_tokens=100, max_prompt_characters=50))


def body(text: str = "How many?", images: Sequence[str] = (), **parameters: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": url}} for url in images)]
    return {"messages": [{"role": "user", "content": parts}], **parameters}


def ask(app: Starlette, *arguments: Any, **parameters: Any) -> Exchange:
    exchange: Exchange = run(post(app, PATH, body(*arguments, **parameters)))
    return exchange


def events(exchange: Exchange) -> list[Any]:
    lines = exchange.body.decode().split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    texts = [line.removeprefix("data: ") for line in lines]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def test_an_answer_has_every_field(app: Starlette, fake: FakeModel) -> None:
    exchange = ask(app, "How many?", [PNG], max_tokens=5, temperature=0.5)

    assert exchange.status == 200
    answer = exchange.json
    assert answer.pop("id").removeprefix("chatcmpl-") == exchange.headers["x-request-id"]
    assert answer.pop("created") > 1_700_000_000
    message = {"role": "assistant", "content": "two of them", "refusal": None}
    assert answer == {
        "object": "chat.completion",
        "model": "fake",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    (call,) = fake.calls
    assert (call.skill, call.image, call.stream) == ("query", b"\x89PNG\r\n\x1a\n", False)
    assert call.arguments["question"] == "How many?"
    assert call.arguments["settings"]["max_tokens"] == 5
    assert call.arguments["settings"]["temperature"] == 0.5


def test_a_question_without_an_image_is_asked_without_one(app: Starlette, fake: FakeModel) -> None:
    assert ask(app).status == 200
    assert fake.calls[0].image is None


def test_an_answer_that_was_cut_says_so(app: Starlette, fake: FakeModel) -> None:
    fake.results["query"] = Answer("two of", metrics=METRICS, finish_reason="length")

    assert ask(app).json["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequences_are_a_setting_of_the_model(app: Starlette, fake: FakeModel, stream: bool) -> None:
    assert ask(app, stop=[" them", "o"], stream=stream).status == 200

    assert fake.calls[0].arguments["settings"]["stop"] == [" them", "o"]


def test_a_stream_has_a_role_pieces_a_finish_reason_and_an_end(app: Starlette, fake: FakeModel) -> None:
    exchange = ask(app, stream=True)

    assert fake.calls[0].stream
    assert exchange.headers["content-type"].startswith("text/event-stream")
    *chunks, end = events(exchange)
    assert end == "[DONE]"
    assert {(chunk["id"], chunk["object"]) for chunk in chunks} == {(chunks[0]["id"], "chat.completion.chunk")}
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "two "},
        {"content": "of "},
        {"content": "them"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, None, "stop"]
    assert not any("usage" in chunk for chunk in chunks)


def test_usage_comes_last_where_it_is_wanted(app: Starlette) -> None:
    *chunks, last, _ = events(ask(app, stream=True, stream_options={"include_usage": True}))

    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]) == ([], USAGE)


def test_an_error_after_the_first_piece_ends_the_stream(app: Starlette, fake: FakeModel) -> None:
    fake.late_error = RuntimeError("a secret")

    *_, last = events(ask(app, stream=True))

    assert set(last["error"]) == {"message", "type", "code"}
    assert "secret" not in last["error"]["message"]


@pytest.mark.parametrize(
    ("parameters", "status", "code"),
    [
        ({"model": "gpt-4o"}, 404, "model_not_found"),
        ({"images": [PNG, "data:image/png;base64,AAAA"]}, 422, "too_many_images"),
        ({"images": ["nonsense"]}, 400, "invalid_image_url"),
        ({"images": ["https://example.com/x.png"]}, 422, "remote_image_refused"),
        ({"text": "x" * 51}, 422, "prompt_too_long"),
        ({"max_tokens": 101}, 422, "over_limit"),
        ({"max_tokens": 0}, 422, "invalid_settings"),
        ({"temperature": -1}, 422, "invalid_settings"),
        ({"temperature": "hot"}, 422, "invalid_settings"),
        ({"seed": 1.5}, 422, "invalid_settings"),
        ({"n": 2}, 422, "invalid_input"),
        ({"colour": "red"}, 422, "unknown_field"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_their_status(
    app: Starlette, parameters: dict[str, Any], status: int, code: str, stream: bool
) -> None:
    exchange = ask(app, stream=stream, **parameters)

    assert (exchange.status, exchange.code) == (status, code)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"messages": NaN}', b"9" * 5000, b"[" * 5000, b'"\xff"'])
def test_a_body_that_is_no_json_object_is_refused(app: Starlette, data: bytes) -> None:
    exchange = run(post(app, PATH, data, {"content-type": "application/json"}))

    assert exchange.status == 400
    assert exchange.json["error"]["message"]


def test_only_json_is_taken(app: Starlette) -> None:
    exchange = run(post(app, PATH, json.dumps(body()).encode(), {"content-type": "text/plain"}))

    assert (exchange.status, exchange.code) == (415, "unsupported_content_type")


def test_the_model_is_listed_and_found_also_with_a_slash_in_its_name(app: Starlette, fake: FakeModel) -> None:
    fake.name = "vikhyatk/moondream2"

    listed = run(post(app, "/v1/models", b"", method="GET")).json
    found = run(post(app, "/v1/models/vikhyatk/moondream2", b"", method="GET")).json
    missing = run(post(app, "/v1/models/moondream2", b"", method="GET"))

    assert listed == {"object": "list", "data": [found]}
    assert (found["id"], found["object"], found["owned_by"]) == ("vikhyatk/moondream2", "model", "photonlite")
    assert (missing.status, missing.code) == (404, "model_not_found")


@pytest.mark.parametrize("stream", [False, True])
def test_moondreams_own_client_chats_without_naming_a_model(app: Starlette, stream: bool) -> None:
    """What `moondream.vl(endpoint=...).chat(messages)` of version 2.0 sends."""
    sent = {"model": "moondream3-preview", "stream": stream, "reasoning": False}

    assert ask(app, **sent).status == 200
    assert ask(app, **{**sent, "model": "moondream/moondream3-preview"}).status == 200
    assert ask(app, **{**sent, "reasoning": True}).status == 422
    assert ask(app, **{**sent, "model": "moondream4"}).status == 404


def test_aliases_are_the_owners_choice(fake: FakeModel) -> None:
    app = create_app(fake, ServerConfig(model_aliases=("robot-eyes",)))

    for name, status in (("robot-eyes", 200), ("fake", 200), ("moondream3-preview", 404)):
        body = {"model": name, "messages": [{"role": "user", "content": "How many?"}]}
        assert run(post(app, "/v1/chat/completions", body)).status == status
        assert run(post(app, "/v1/query", {"model": name, "question": "How many?"})).status == status
