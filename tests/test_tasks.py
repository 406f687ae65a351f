import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from PIL import Image

from photonlite.api import VisionModel
from photonlite.errors import InputError
from photonlite.images.crops import cut_crops
from photonlite.images.decode import load_image
from photonlite.models.checkpoint import LoadedModel
from photonlite.request import SamplingSettings
from photonlite.skills import caption, detect, point, query, segment
from tests.plain import PlainEngine
from tests.serving import SKILLS, arguments, double, make_image, method, serve
from tests.tiny import CPU, tiny_config

SAMPLED = {"temperature": 1.5, "top_p": 0.9, "seed": 7}


SETTINGS = pytest.mark.parametrize("settings", [{}, SAMPLED], ids=["greedy", "sampled"])


@pytest.fixture(scope="module", params=["photonlite_nano", "moondream2"])
def family(request: pytest.FixtureRequest) -> Iterator[tuple[VisionModel, LoadedModel]]:
    loaded = double(tiny_config(request.param))
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
            return segment.finish(request, prompts, oracle.generate(request, crops).complete())
        case "caption":
            request = caption.build(prompts, "short", settings=sampling)
            return caption.finish(prompts, oracle.generate(request, crops).complete())
    reasoning = skill == "reason"
    request = query.build(
        prompts,
        query.read_question(
            prompts, "why?", with_image=crops is not None, reasoning=reasoning, refs=None, settings=sampling
        ),
    )
    return query.finish(request, prompts, oracle.generate(request, crops).complete())


def near(value: Any) -> Any:
    """Scores are single-precision sums in another order: they agree to five decimals, everything else altogether."""
    if isinstance(value, dict):
        return {key: round(item, 5) if key == "score" else near(item) for key, item in value.items()}
    return [near(item) for item in value] if isinstance(value, list) else value


@pytest.mark.long
@SETTINGS
@pytest.mark.parametrize("skill", SKILLS)
def test_answers_are_those_of_the_oracle(
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
def test_answers_without_an_image_are_those_of_the_oracle(
    family: tuple[VisionModel, LoadedModel], settings: dict[str, Any]
) -> None:
    model, loaded = family
    settings = settings | {"max_tokens": 25}

    assert model.query(None, "why?", settings=settings) == expected(loaded, "query", None, settings)


def test_tasks_of_a_batch_may_be_typed(family: tuple[VisionModel, LoadedModel]) -> None:
    model, _ = family
    ask = {"skill": "query", "image": make_image(1), "question": "why?"}
    chosen, matched = model.batch([ask | {"choices": ["yes", "no"]}, ask | {"regex": "[ab]{3}"}])

    assert chosen["answer"] in ("yes", "no")
    assert set(chosen["scores"]) == {"yes", "no"}
    assert re.fullmatch("[ab]{3}", matched["answer"])
    with pytest.raises(InputError, match=r"task 0: detect\(\) takes no argument 'schema'"):
        model.batch([{"skill": "detect", "image": make_image(1), "object": "mug", "schema": {}}], errors="raise")
