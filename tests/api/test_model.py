import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from PIL import Image

from photonlite.api import VisionModel
from photonlite.errors import (
    CapacityError,
    GrammarError,
    ImageNotFoundError,
    InputError,
    PromptError,
    UnknownAdapterError,
)
from photonlite.images.crops import cut_crops
from photonlite.images.decode import load_image
from photonlite.models.base import ModelView
from photonlite.models.checkpoint import LoadedModel
from photonlite.request import SamplingSettings
from photonlite.skills import caption, detect, point, query, segment
from tests.plain import PlainEngine
from tests.serving import IMAGE, SKILLS, arguments, double, make_image, method, run, serve
from tests.tiny import CPU, EXPERTS, tiny_config

SAMPLED = {"temperature": 1.5, "top_p": 0.9, "seed": 7}
FEW = {"temperature": 1.5, "top_k": 3, "seed": 7}


SETTINGS = pytest.mark.parametrize("settings", [{}, SAMPLED, FEW], ids=["greedy", "top_p", "top_k"])


@pytest.fixture(scope="module", params=["photonlite_nano", "moondream2", "moondream3"])
def family(request: pytest.FixtureRequest) -> Iterator[tuple[VisionModel, LoadedModel]]:
    loaded = double(tiny_config(request.param, text=EXPERTS if request.param == "moondream3" else {}))
    with serve(loaded) as model:
        yield model, loaded


def expected(loaded: LoadedModel, skill: str, image: Image.Image | None, settings: dict[str, Any]) -> Any:
    prompts, sampling = loaded.prompts, SamplingSettings.from_dict(settings)
    oracle = PlainEngine(loaded.model, CPU, torch.float64)
    crops = None if image is None else cut_crops(load_image(image), loaded.model.crop_spec)
    refs = [(0.2, 0.3)]
    match skill:
        case "detect":
            request = detect.build(prompts, "mug", settings=sampling)
            return detect.finish(request, oracle.generate(request, crops).complete())
        case "point":
            request = point.build(prompts, "mug", refs=refs, settings=sampling)
            return point.finish(request, oracle.generate(request, crops).complete())
        case "segment":
            request = segment.build(prompts, "mug", refs=refs, settings=sampling)
            return segment.finish(prompts, request, oracle.generate(request, crops).complete())
        case "caption":
            request = caption.build(prompts, "short", settings=sampling)
            return caption.finish(request, prompts, oracle.generate(request, crops).complete())
    reasoning = skill == "reason"
    request = query.build(
        prompts,
        query.read_question(
            prompts, "why?", images=int(crops is not None), reasoning=reasoning, refs=None, settings=sampling
        ),
    )
    return query.finish(request, prompts, oracle.generate(request, crops).complete())


def near(value: Any) -> Any:
    """Round scores to five decimals: they are single-precision sums in another order."""
    if isinstance(value, dict):
        return {key: round(item, 5) if key == "score" else near(item) for key, item in value.items()}
    return [near(item) for item in value] if isinstance(value, list) else value


@pytest.mark.long
@SETTINGS
@pytest.mark.parametrize("skill", SKILLS)
def test_answers_equal_the_oracle(
    family: tuple[VisionModel, LoadedModel], skill: str, settings: dict[str, Any]
) -> None:
    model, loaded = family
    settings = settings | {"max_objects": 4, "max_tokens": 25}
    for image in (make_image(1), make_image(2, (20, 17))):
        found = method(model, skill)(**arguments(skill, image, settings))
        wanted = expected(loaded, skill, image, settings)

        assert near(found) == near(wanted)
        assert found.finish_reason == wanted.finish_reason
        assert found.metrics.output_tokens == wanted.metrics.output_tokens
        assert found.metrics.prompt_tokens == wanted.metrics.prompt_tokens


@SETTINGS
def test_answers_without_an_image_equal_the_oracle(
    family: tuple[VisionModel, LoadedModel], settings: dict[str, Any]
) -> None:
    model, loaded = family
    settings = settings | {"max_tokens": 25}

    assert model.query(None, "why?", settings=settings) == expected(loaded, "query", None, settings)


def test_tasks_of_a_batch_may_have_typed_answers(family: tuple[VisionModel, LoadedModel]) -> None:
    model, _ = family
    ask = {"skill": "query", "image": make_image(1), "question": "why?"}
    chosen, matched = model.batch([ask | {"choices": ["yes", "no"]}, ask | {"regex": "[ab]{3}"}])

    assert chosen["answer"] in ("yes", "no")
    assert set(chosen["scores"]) == {"yes", "no"}
    assert re.fullmatch("[ab]{3}", matched["answer"])
    with pytest.raises(InputError, match=r"task 0: detect\(\) takes no argument 'schema'"):
        model.batch([{"skill": "detect", "image": make_image(1), "object": "mug", "schema": {}}], errors="raise")


@pytest.fixture
def model() -> Iterator[VisionModel]:
    with serve() as model:
        yield model


@pytest.mark.long
@pytest.mark.parametrize("skill", SKILLS)
def test_async_twins_give_equal_answers(family: tuple[VisionModel, LoadedModel], skill: str) -> None:
    model, _ = family
    asked = arguments(skill, IMAGE, SAMPLED | {"max_objects": 4, "max_tokens": 25})

    assert run(method(model, skill, "a")(**asked)) == method(model, skill)(**asked)


@pytest.mark.parametrize("skill", ["caption", "query", "reason"])
def test_async_streams_give_the_same_text_and_then_metrics(model: VisionModel, skill: str) -> None:
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


def test_a_call_is_checked_without_being_made(model: VisionModel) -> None:
    before = model.metrics()["counters"]["requests_submitted"]
    model.check_call("detect", image=b"no image", object="mug")
    wrong: list[tuple[str, dict[str, Any], type[Exception]]] = [
        ("query", {"question": " "}, PromptError),
        ("query", {"question": "?", "choices": ["one"] * 5000}, GrammarError),
        ("detect", {"object": ["mug"] * 65}, PromptError),
        ("caption", {"adapter": "none"}, UnknownAdapterError),
        ("query", {"question": "word " * 790}, CapacityError),
    ]
    for skill, given, error in wrong:
        with pytest.raises(error):
            model.check_call(skill, image=b"no image", **given)

    assert model.metrics()["counters"]["requests_submitted"] == before


def test_an_image_encoded_by_the_async_twin_is_reused(model: VisionModel) -> None:
    async def main() -> Any:
        image = await model.aencode_image(IMAGE)
        assert await model.aencode_image(image) is image
        return await model.adetect(image, "mug")

    assert run(main()) == model.detect(IMAGE, "mug")


class WordsOnly(ModelView):
    """A model without coordinates and sizes, as most families are."""

    numbers = None


def test_a_model_without_numbers_answers_in_words() -> None:
    loaded = double()
    words = LoadedModel("words", WordsOnly(loaded.model), loaded.prompts)
    questions = [{"settings": {"max_tokens": 6}}, {"choices": ["ab", "ac"]}, {"regex": "[ab]{3}"}]

    with serve(loaded) as model, VisionModel(words, CPU, torch.float64) as other:
        for asked in questions:
            assert other.query(IMAGE, "why?", **asked) == model.query(IMAGE, "why?", **asked)
        assert other.caption(IMAGE) == model.caption(IMAGE)
