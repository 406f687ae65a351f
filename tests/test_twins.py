from collections.abc import Iterator
from typing import Any

import pytest

from photonlite.api import VisionModel
from photonlite.errors import ImageNotFoundError, InputError, PromptError
from photonlite.models.checkpoint import LoadedModel
from tests.serving import IMAGE, SKILLS, arguments, double, method, run, serve
from tests.tiny import tiny_config

SAMPLED = {"temperature": 1.5, "top_p": 0.9, "seed": 7}


SETTINGS = pytest.mark.parametrize("settings", [{}, SAMPLED], ids=["greedy", "sampled"])


@pytest.fixture(scope="module", params=["photonlite_nano", "moondream2"])
def family(request: pytest.FixtureRequest) -> Iterator[tuple[VisionModel, LoadedModel]]:
    loaded = double(tiny_config(request.param))
    with serve(loaded) as model:
        yield model, loaded


@pytest.fixture
def model() -> Iterator[VisionModel]:
    with serve() as model:
        yield model


@pytest.mark.long
@SETTINGS
@pytest.mark.parametrize("skill", SKILLS)
def test_async_twins_answer_the_same(
    family: tuple[VisionModel, LoadedModel], skill: str, settings: dict[str, Any]
) -> None:
    model, _ = family
    asked = arguments(skill, IMAGE, settings | {"max_objects": 4, "max_tokens": 25})

    assert run(method(model, skill, "a")(**asked)) == method(model, skill)(**asked)


@pytest.mark.parametrize("skill", ["caption", "query", "reason"])
def test_async_streams_give_the_same_text_and_then_the_outcome(model: VisionModel, skill: str) -> None:
    asked = arguments(skill, IMAGE, {"max_tokens": 30})
    key = "caption" if skill == "caption" else "answer"
    whole = method(model, skill)(**asked)

    async def main() -> tuple[Any, list[str], str]:
        result = await method(model, skill, "a")(**asked, stream=True)
        with pytest.raises(InputError, match=r"await result\.atext\(\)"):
            _ = result.text
        pieces = [piece async for piece in result[key]]
        return result, pieces, await result.atext()

    result, pieces, text = run(main())
    assert "".join(pieces) == text == result.text == whole[key]
    assert len(pieces) > 3
    assert result.get("reasoning") == whole.get("reasoning")
    assert result.finish_reason == whole.finish_reason
    assert result.metrics.output_tokens == whole.metrics.output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_is_a_typed_error_at_the_call(model: VisionModel, stream: bool) -> None:
    with pytest.raises(ImageNotFoundError):
        run(model.acaption("nowhere.png", stream=stream))
    with pytest.raises(PromptError):
        run(model.aquery(IMAGE, "", stream=stream))


def test_an_async_encoding_serves_as_well(model: VisionModel) -> None:
    async def main() -> Any:
        image = await model.aencode_image(IMAGE)
        assert await model.aencode_image(image) is image
        return await model.adetect(image, "mug")

    assert run(main()) == model.detect(IMAGE, "mug")
