"""Truncated answers are reported by every method."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from photonlite.api import VisionModel
from photonlite.errors import TruncatedError
from tests.compiling import FakeCompiler, fake_compilers
from tests.serving import IMAGE, serve

FULL = {"type": "integer", "minimum": 10, "maximum": 99}
CUT: dict[str, tuple[dict[str, Any], str]] = {
    "caption": ({"length": "short", "settings": {"max_tokens": 1}}, "length"),
    "query": ({"question": "why?", "settings": {"max_tokens": 1}}, "length"),
    "detect": ({"object": "mug", "settings": {"max_objects": 1}}, "max_objects"),
    "point": ({"object": "mug", "settings": {"max_objects": 1}}, "max_objects"),
    "segment": ({"object": "mug", "settings": {"max_tokens": 4}}, "length"),
}
TYPED = {
    "int": {"schema": int, "settings": {"max_tokens": 1}},
    "regex": {"regex": "[ab]+", "settings": {"max_tokens": 2}},
    "reasoning": {"schema": FULL, "reasoning": True, "settings": {"max_tokens": 2}},
}
WHOLE = {"schema": FULL, "regex": "[ab]{3}", "choices": ["yes", "no"]}


@pytest.fixture(autouse=True)
def compilers(monkeypatch: pytest.MonkeyPatch) -> list[FakeCompiler]:
    return fake_compilers(monkeypatch)


@pytest.fixture
def model(compilers: list[FakeCompiler]) -> Iterator[VisionModel]:
    with serve() as model:
        yield model


def ways(model: VisionModel, skill: str) -> list[Callable[..., Any]]:
    """Return the results of the blocking method, its async twin, and a batch."""

    def batched(**arguments: Any) -> Any:
        [result] = model.batch([{"skill": skill, **arguments}], errors="raise")
        return result

    return [getattr(model, skill), lambda **arguments: asyncio.run(getattr(model, f"a{skill}")(**arguments)), batched]


@pytest.mark.parametrize("skill", CUT)
def test_a_truncated_answer_names_its_limit(model: VisionModel, skill: str) -> None:
    arguments, reason = CUT[skill]
    for ask in ways(model, skill):
        found = ask(image=IMAGE, **arguments)
        assert (found.finish_reason, found.truncated) == (reason, True)
        with pytest.raises(TruncatedError, match=r"max_(tokens|objects), which is [14]: raise it"):
            ask(image=IMAGE, **arguments, strict=True)


@pytest.mark.parametrize("form", TYPED)
def test_a_typed_value_forced_to_end_counts_as_truncated(model: VisionModel, form: str) -> None:
    for ask in ways(model, "query"):
        found = ask(image=IMAGE, question="how many?", **TYPED[form])
        assert (found.finish_reason, found.truncated) == ("length", True)
        with pytest.raises(TruncatedError, match="max_tokens, which is"):
            ask(image=IMAGE, question="how many?", **TYPED[form], strict=True)


@pytest.mark.parametrize("form", WHOLE)
def test_a_complete_value_passes_strict(model: VisionModel, form: str) -> None:
    for ask in ways(model, "query"):
        found = ask(image=IMAGE, question="how many?", **{form: WHOLE[form]}, strict=True)
        assert (found.finish_reason, found.truncated) == ("stop", False)


@pytest.mark.parametrize(
    "arguments", [CUT["query"][0], {"question": "how many?", **TYPED["regex"]}], ids=["text", "typed"]
)
def test_a_strict_stream_raises_at_its_end(model: VisionModel, arguments: dict[str, Any]) -> None:
    stream = model.query(IMAGE, stream=True, **arguments)
    assert stream.truncated is None
    text = "".join(stream["answer"])
    assert (stream.finish_reason, stream.truncated) == ("length", True)

    strict, pieces = model.query(IMAGE, stream=True, strict=True, **arguments), []
    with pytest.raises(TruncatedError):
        pieces.extend(strict["answer"])
    assert "".join(pieces) == text[: len("".join(pieces))]

    async def awaited() -> None:
        result = await model.aquery(IMAGE, stream=True, strict=True, **arguments)
        with pytest.raises(TruncatedError):
            await result.atext()

    asyncio.run(awaited())


def test_strict_applies_to_encoded_images_and_batches(model: VisionModel) -> None:
    image = model.encode_image(IMAGE, strict=True)
    task = {"skill": "caption", "image": image, "length": "short", "strict": True}
    cut, whole = model.batch([task | {"settings": {"max_tokens": 1}}, {**task, "strict": False}])

    assert isinstance(cut, TruncatedError)
    assert str(cut).startswith("task 0: the answer was cut short by max_tokens, which is 1")
    assert whole["caption"]


def test_a_full_context_is_reported_as_the_limit(model: VisionModel) -> None:
    with pytest.raises(TruncatedError, match="the model's context length: shorten the prompt"):
        model.detect(IMAGE, "mug " * 12, settings={"max_objects": 10_000}, strict=True)
