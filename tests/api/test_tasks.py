import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from photonlite.api import VisionModel
from photonlite.errors import SettingsError, UnknownArgumentError
from tests.serving import IMAGE, serve

WAYS: dict[str, Callable[..., Any]] = {
    "detect": lambda m, **o: m.detect(IMAGE, "mug", **o),
    "point": lambda m, **o: m.point(IMAGE, "mug", **o),
    "segment": lambda m, **o: m.segment(IMAGE, "mug", **o),
    "caption": lambda m, **o: m.caption(IMAGE, "short", **o),
    "query": lambda m, **o: m.query(IMAGE, "why?", **o),
    "encode_image": lambda m, **o: m.encode_image(IMAGE, **o),
    "adetect": lambda m, **o: asyncio.run(m.adetect(IMAGE, "mug", **o)),
    "aquery": lambda m, **o: asyncio.run(m.aquery(IMAGE, "why?", **o)),
    "acaption": lambda m, **o: asyncio.run(m.acaption(IMAGE, "short", **o)),
    "aencode_image": lambda m, **o: asyncio.run(m.aencode_image(IMAGE, **o)),
}


@pytest.fixture(scope="module")
def model() -> Iterator[VisionModel]:
    with serve() as model:
        yield model


@pytest.mark.parametrize("method", WAYS)
def test_an_unknown_option_names_the_method_and_the_nearest_argument(model: VisionModel, method: str) -> None:
    with pytest.raises(UnknownArgumentError, match=rf"^{method}\(\) takes no argument 'timeout' .*'deadline_s'\?\)"):
        WAYS[method](model, timeout=3)
    with pytest.raises(TypeError, match=rf"^{method}\(\).*\(did you mean 'cache_salt'\?\)"):
        WAYS[method](model, salt="x")


@pytest.mark.parametrize("method", ["detect", "point", "segment", "adetect"])
def test_a_threshold_argument_is_answered_with_the_name_min_score(model: VisionModel, method: str) -> None:
    with pytest.raises(UnknownArgumentError, match=r"'threshold' \(did you mean 'min_score'\?\)"):
        WAYS[method](model, threshold=0.3)
    with pytest.raises(UnknownArgumentError, match=r"'conf' \(did you mean 'min_score'\?\)"):
        WAYS[method](model, conf=0.3)


@pytest.mark.parametrize(("name", "setting"), [("temperature", "temperature"), ("max_new_tokens", "max_tokens")])
def test_a_setting_among_the_arguments_is_answered_with_where_it_belongs(
    model: VisionModel, name: str, setting: str
) -> None:
    with pytest.raises(UnknownArgumentError, match=rf"it is a setting, give it as settings=\{{'{setting}': ...\}}"):
        model.query(IMAGE, "why?", **{name: 1})  # type: ignore[arg-type]


def test_a_task_of_a_batch_gets_the_same_advice(model: VisionModel) -> None:
    task = {"skill": "detect", "image": IMAGE, "object": "mug"}
    late, picky, lacking = model.batch([task | {"timeout": 3}, task | {"threshold": 0.1}, {"skill": "detect"}])

    assert str(late).startswith("task 0: detect() takes no argument 'timeout' (did you mean 'deadline_s'?): ")
    assert "did you mean 'min_score'?" in str(picky)
    assert "lacks something: missing a required argument: 'image'" in str(lacking)


@pytest.mark.parametrize("deadline_s", [0, -1, -0.0, float("-inf")])
@pytest.mark.parametrize("method", ["detect", "encode_image", "acaption"])
def test_a_deadline_is_more_than_0(model: VisionModel, method: str, deadline_s: float) -> None:
    with pytest.raises(SettingsError, match=r"deadline_s is .*more than 0"):
        WAYS[method](model, deadline_s=deadline_s)


@pytest.mark.parametrize("name", ["realtime", "strict"])
def test_boolean_options_must_be_bools(model: VisionModel, name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is 1: give True or False"):
        WAYS["detect"](model, **{name: 1})


def test_a_misspelled_setting_gets_a_hint(model: VisionModel) -> None:
    with pytest.raises(SettingsError, match=r"'temprature' is unknown \(did you mean 'temperature'\?\): the"):
        model.caption(IMAGE, settings={"temprature": 1})
