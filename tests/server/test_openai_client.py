"""The `openai` package, unmodified, against a live server."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from photonlite.errors import EngineDiedError, StepError
from tests.server.fake import FakeModel
from tests.server.live import Live, live, live_model

DESK = Path(__file__).resolve().parents[2] / "assets" / "desk.png"
KEY = "a-key"
MESSAGES: Any = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "How many?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "high"}},
        ],
    },
]


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(api_keys=(KEY,)) as running:
        yield running


@pytest.fixture
def client(server: Live) -> Iterator[openai.OpenAI]:
    with connect(server) as client:
        yield client


def connect(server: Live, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def test_a_completion_is_read(client: openai.OpenAI, server: Live) -> None:
    completion = client.chat.completions.create(model="fake", messages=MESSAGES, max_completion_tokens=9, seed=1)

    (choice,) = completion.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "two of them", "stop")
    assert completion.usage is not None
    assert completion.usage.total_tokens == 743
    assert completion.id == f"chatcmpl-{completion._request_id}"
    assert isinstance(server.fake, FakeModel)
    assert server.fake.calls[-1].arguments["question"] == "Be brief.\n\nHow many?"


def test_an_answer_goes_into_the_next_request(client: openai.OpenAI) -> None:
    message = client.chat.completions.create(model="fake", messages=MESSAGES).choices[0].message

    for earlier in (message, message.model_dump()):
        turns: Any = [*MESSAGES, earlier, {"role": "user", "content": "Sure?"}]
        assert client.chat.completions.create(model="fake", messages=turns).choices[0].message == message


def test_a_stream_is_read(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ) as chunks:
        received = list(chunks)

    *pieces, last = received
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "two of them"
    assert pieces[-1].choices[0].finish_reason == "stop"
    assert last.usage is not None
    assert last.usage.completion_tokens == 3


def test_the_helper_for_streams_builds_the_whole_completion(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="fake", messages=MESSAGES) as stream:
        stream.until_done()
        completion = stream.get_final_completion()

    assert completion.choices[0].message.content == "two of them"


def test_coroutines_are_served(server: Live) -> None:
    async def ask() -> tuple[str | None, str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
            whole = await client.chat.completions.create(model="fake", messages=MESSAGES)
            stream = await client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return whole.choices[0].message.content, "".join(pieces)

    assert asyncio.run(ask()) == ("two of them", "two of them")


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").owned_by == "photonlite"


def test_errors_have_their_types(client: openai.OpenAI, server: Live) -> None:
    with connect(server, "another") as stranger, pytest.raises(openai.AuthenticationError) as refused:
        stranger.models.list()
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.UnprocessableEntityError) as unusable:
        client.chat.completions.create(model="fake", messages=MESSAGES, temperature=-1)
    assert "temperature" in unusable.value.message
    with pytest.raises(openai.UnprocessableEntityError) as unknown:
        client.chat.completions.create(model="fake", messages=MESSAGES, extra_body={"colour": "red"})
    assert unknown.value.code == "unknown_field"


def test_a_full_server_is_a_rate_limit_error_that_says_when_to_try_again() -> None:
    with live(requests_per_minute=1) as server, connect(server) as client:
        client.models.list()
        with pytest.raises(openai.RateLimitError) as limited:
            client.chat.completions.create(model="fake", messages=MESSAGES)

    assert int(limited.value.response.headers["retry-after"]) >= 1


@pytest.mark.parametrize(("error", "status"), [(StepError("no"), 500), (EngineDiedError("dead"), 503)])
def test_a_failing_engine_is_a_server_error(error: BaseException, status: int) -> None:
    with live(FakeModel(error)) as server, connect(server) as client, pytest.raises(openai.APIStatusError) as failed:
        client.chat.completions.create(model="fake", messages=MESSAGES)

    assert isinstance(failed.value, openai.InternalServerError)
    assert failed.value.status_code == status


def test_an_error_within_a_stream_is_raised_while_it_is_read() -> None:
    fake = FakeModel()
    fake.late_error = StepError("the device is gone")
    with live(fake) as server, connect(server) as client:
        chunks = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
        with chunks, pytest.raises(openai.APIError, match="the device is gone"):
            list(chunks)


def test_the_shipped_model_counts_through_it() -> None:
    image = f"data:image/png;base64,{base64.b64encode(DESK.read_bytes()).decode()}"
    messages: Any = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "How many bananas are there?"},
                {"type": "image_url", "image_url": {"url": image}},
            ],
        }
    ]
    with live_model() as server, connect(server) as client:
        completion = client.chat.completions.create(model="nano", messages=messages)

    assert completion.choices[0].message.content == "2"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens > 500
