"""A stop sequence ends the computation of an answer, not only its text."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from photonlite import VisionModel
from photonlite.errors import SettingsError
from tests.serving import IMAGE, serve

LIMIT = 25


@pytest.fixture(scope="module")
def model() -> Iterator[VisionModel]:
    with serve() as served:
        yield served


def whole(model: VisionModel, **asked: Any) -> Any:
    return model.query(IMAGE, "why?", **asked)


def streamed(model: VisionModel, **asked: Any) -> Any:
    result = model.query(IMAGE, "why?", stream=True, **asked)
    assert "".join(result["answer"]) == result.text
    return result


def awaited(model: VisionModel, **asked: Any) -> Any:
    return asyncio.run(model.aquery(IMAGE, "why?", **asked))


def awaited_stream(model: VisionModel, **asked: Any) -> Any:
    async def ask() -> Any:
        result = await model.aquery(IMAGE, "why?", stream=True, **asked)
        await result.atext()
        return result

    return asyncio.run(ask())


def batched(model: VisionModel, **asked: Any) -> Any:
    return model.batch([{"skill": "query", "image": IMAGE, "question": "why?", **asked}])[0]


def in_a_chat(model: VisionModel, **asked: Any) -> Any:
    return model.chat([{"role": "user", "content": [{"type": "image", "image": IMAGE}, "why?"]}], **asked)


def captioned(model: VisionModel, **asked: Any) -> Any:
    return model.caption(IMAGE, **asked)


@pytest.mark.parametrize("ask", [whole, streamed, awaited, awaited_stream, batched, in_a_chat, captioned])
def test_an_answer_is_computed_up_to_the_stop_sequence(model: VisionModel, ask: Callable[..., Any]) -> None:
    full = ask(model, settings={"max_tokens": LIMIT})
    stop = full.text[4:6]
    found = ask(model, settings={"max_tokens": LIMIT, "stop": stop})

    assert found.text == full.text.partition(stop)[0]
    assert (found.finish_reason, found.truncated) == ("stop", False)
    assert 0 < found.metrics.output_tokens < full.metrics.output_tokens


def test_a_stop_sequence_does_not_end_reasoning(model: VisionModel) -> None:
    full = model.query(IMAGE, "why?", reasoning=True, settings={"max_tokens": LIMIT})
    stop = full.text[2:4]
    found = model.query(IMAGE, "why?", reasoning=True, settings={"max_tokens": LIMIT, "stop": [stop, "\0"]})

    assert found["reasoning"] == full["reasoning"]
    assert found.text == full.text.partition(stop)[0]


@pytest.mark.parametrize("form", [{"choices": ["yes", "no"]}, {"regex": "a+"}, {"schema": bool}])
def test_an_answer_with_a_form_refuses_stop_sequences(model: VisionModel, form: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="'stop' is for answers in words"):
        model.query(IMAGE, "why?", settings={"stop": "END"}, **form)


@pytest.mark.parametrize("stop", ["", ["a", ""], list("abcde"), 5, ["a", 5], "x" * 1001, {}])
def test_stop_sequences_are_checked(model: VisionModel, stop: Any) -> None:
    with pytest.raises(SettingsError, match="setting 'stop' is"):
        model.query(IMAGE, "why?", settings={"stop": stop})
