"""Conversations about several images over `/v1/chat/completions`, answered by a model that reads them as such."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image

import photonlite
from photonlite import VisionModel
from tests.models.qwen.tiny import reference_model, save
from tests.server.live import Live, live_model
from tests.serving import make_image

PICTURES = [make_image(1, (70, 50)), make_image(2, (33, 90))]
LIMIT = 12


def uri(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def turns(picture: Any) -> Any:
    """A conversation; `picture` writes an image as a part of a message."""
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [picture(PICTURES[0]), {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": "A mug."},
        {"role": "user", "content": [{"type": "text", "text": "And this one?"}, picture(PICTURES[1])]},
        {"role": "user", "content": [picture(PICTURES[0]), {"type": "text", "text": "Or this one again?"}]},
    ]


SENT = turns(lambda image: {"type": "image_url", "image_url": {"url": uri(image)}})
SPOKEN = turns(lambda image: {"type": "image", "image": image})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VisionModel]:
    folder = save(reference_model("3"), tmp_path_factory.mktemp("qwen"), "3")
    with photonlite.load(folder, device="cpu", dtype="float32", engine={"max_context": 500}) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def server(model: VisionModel) -> Iterator[Live]:
    with live_model(model, max_images=3) as running:
        yield running


def complete(server: Live, messages: Any = SENT, **more: Any) -> Any:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        found = client.chat.completions.create(model=server.fake.name, messages=messages, max_tokens=LIMIT, **more)
        return list(found) if more.get("stream") else found


def test_it_answers_as_the_library_does(server: Live, model: VisionModel) -> None:
    expected = model.chat(SPOKEN, settings={"max_tokens": LIMIT})

    found = complete(server)

    assert found.choices[0].message.content == expected["answer"]
    assert found.usage.prompt_tokens == expected.metrics.prompt_tokens


def test_a_stream_gives_the_same_text(server: Live, model: VisionModel) -> None:
    pieces = [chunk.choices[0].delta.content or "" for chunk in complete(server, stream=True)]

    assert "".join(pieces) == model.chat(SPOKEN, settings={"max_tokens": LIMIT})["answer"]


def test_the_images_matter_and_their_order_does(server: Live) -> None:
    swapped = [*SENT[:1], {**SENT[1], "content": [SENT[3]["content"][1], SENT[1]["content"][1]]}, *SENT[2:]]

    assert complete(server, swapped).choices[0].message.content != complete(server).choices[0].message.content


def test_more_images_than_the_server_takes_are_refused(server: Live) -> None:
    third = {"type": "image_url", "image_url": {"url": uri(make_image(3, (40, 40)))}}
    with pytest.raises(openai.UnprocessableEntityError, match="4 images, over the limit of 3"):
        complete(server, [*SENT, {"role": "user", "content": [third, {"type": "text", "text": "And?"}]}])


def test_an_image_in_a_system_turn_is_refused(server: Live) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="message 1 is the system's and holds an image"):
        complete(server, [{**SENT[1], "role": "system"}, SENT[-1]])


def test_a_broken_image_fails_its_conversation_alone(server: Live) -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    with pytest.raises(openai.BadRequestError):
        complete(server, [{"role": "user", "content": [*SENT[1]["content"], broken]}])
    assert complete(server).choices[0].message.content
