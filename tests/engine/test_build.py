from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from photonlite.config import EngineConfig
from photonlite.device.parts import CardParts
from photonlite.engine import build
from photonlite.errors import MissingDependencyError, SettingsError
from photonlite.models.base import CropEncoder
from photonlite.models.moondream.model import MoondreamModel
from photonlite.observe.metrics import EngineMetrics
from photonlite.runner.graphs import GraphReport
from tests.serving import IMAGE, double, serve


@pytest.mark.parametrize("wanted", [False, True])
def test_images_are_encoded_in_fp8_if_the_settings_say_so(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given = MoondreamModel.crop_encoder
    encoders: list[CropEncoder] = []
    encoded: list[CropEncoder] = []

    def spied(self: MoondreamModel, *, fp8: bool = False) -> CropEncoder:
        assert fp8 == wanted
        encoder = given(self, fp8=fp8)
        work = encoder.encode
        monkeypatch.setattr(encoder, "encode", lambda pixels: (encoded.append(encoder), work(pixels))[1])
        encoders.append(encoder)
        return encoder

    monkeypatch.setattr(MoondreamModel, "crop_encoder", spied)
    with serve(double(), fp8_linears=wanted) as model:
        model.caption(IMAGE, "short")

    assert len(encoders) == 1
    assert encoded == encoders


@pytest.mark.long
def test_without_fused_kernels_the_models_own_methods_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(double()) as model:
        wanted = model.detect(IMAGE, "mug"), model.caption(IMAGE, "short")

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("no fused kernels are wanted")

    for name in ("crop_encoder", "prompt_decoder", "step_decoder"):
        monkeypatch.setattr(MoondreamModel, name, asked)
    for name in ("heads", "input_weights"):
        monkeypatch.setattr(MoondreamModel, name, property(asked))
    with serve(double(), fused=False) as model:
        found = model.detect(IMAGE, "mug"), model.caption(IMAGE, "short")

    assert len(wanted[0]) > 0
    assert list(found[0]) == list(wanted[0])
    assert found[1].text == wanted[1].text


def test_8_bit_products_are_refused_without_fused_kernels() -> None:
    with pytest.raises(SettingsError, match="'fp8_linears' is True: it must be False where 'fused' is False"):
        EngineConfig(fused=False, fp8_linears=True)


def on_card(monkeypatch: pytest.MonkeyPatch, parts: Any) -> Callable[[int], Any]:
    """Return what divides a card of 132 SMs; `parts` is called in place of the driver."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(build, "card_parts", parts)
    return partial(build._divide, torch.device("cuda", 0))


@pytest.mark.parametrize("error", [MissingDependencyError("no bindings"), SettingsError("no green contexts")])
def test_a_card_that_cannot_be_divided_is_shared(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    divided = on_card(monkeypatch, Mock(side_effect=error))

    with caplog.at_level("WARNING", "photonlite"):
        assert divided(68) is None

    assert caplog.messages == [f"Encoding and decoding share the whole card: {error}"]


def test_a_card_is_divided_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Mock()
    divided = on_card(monkeypatch, parts)

    assert divided(0) is build._divide(torch.device("cpu"), 68) is None
    assert not parts.called
    assert divided(68) is parts.return_value
    with pytest.raises(SettingsError, match="'encode_sms' is 132: it must be below 132"):
        divided(132)


class Graphs:
    """An encoder's graphs, so many for the whole card and so many in a part."""

    def __init__(self, whole: int, in_part: int) -> None:
        self.whole, self.in_part = whole, in_part

    def capture(self, _: object, *, in_part: bool = False) -> GraphReport:
        return GraphReport(self.in_part if in_part else self.whole, 1.0, 10)


@pytest.mark.parametrize(("whole", "in_part"), [(16, 16), (16, 3), (0, 0), (16, 0)])
def test_a_part_in_which_no_image_can_be_encoded_is_refused(
    whole: int, in_part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CudaCapturer", Mock())
    monkeypatch.setattr(build, "GraphedCrops", Mock(return_value=Graphs(whole, in_part)))
    parts: Any = CardParts(*(SimpleNamespace(sms=sms) for sms in (120, 12)))  # type: ignore[arg-type]
    config = EngineConfig(encoding="beside", encode_sms=16)
    made = partial(build._crop_encoder, double().model, torch.device("cuda", 0), torch.float16, config, parts)

    if whole and not in_part:
        with pytest.raises(
            SettingsError, match=r"cannot be encoded in a part of 12 SMs.*'encode_sms' must be larger, or 0"
        ):
            made()
    else:
        assert made()[2] == GraphReport(whole + in_part, 2.0, 20)


@pytest.mark.parametrize("sms", [None, 8])
def test_a_part_for_realtime_requests_is_one_of_a_divided_card(
    sms: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(encoding="beside", encode_sms=sms, realtime_part=True, max_batch=3)
    with caplog.at_level("WARNING", "photonlite"):
        built = build.build(double().model, torch.device("cpu"), torch.float64, config)
    built.core.runner.close()

    assert built.core.scheduler.limits.realtime_part == (sms is not None)
    refused = ["Real-time requests have no part of the card: it is not divided"]
    assert caplog.messages == ([] if sms else refused)


def test_what_is_not_fused_on_a_card_is_logged_and_part_of_the_metrics(caplog: pytest.LogCaptureFixture) -> None:
    class Old:
        def plain_parts(self) -> dict[str, str]:
            return {"prompts": "the kernel norms needs compute capability 8.0, Tesla T4 has 7.5"}

    with caplog.at_level("INFO", "photonlite"):
        found = build.plain_parts(Old(), torch.device("cuda", 0))  # type: ignore[arg-type]

    metrics = EngineMetrics(plain=found)
    reason = "the kernel norms needs compute capability 8.0, Tesla T4 has 7.5"
    assert caplog.messages == [f"Not fused: prompts, because {reason}"]
    assert metrics.snapshot()["plain"] == {"prompts": reason}
    assert f"not fused prompts, because {reason}" in metrics.summary()
    assert build.plain_parts(Old(), torch.device("cpu")) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize("kv_cache_bytes", [None, 200_000])
def test_the_planned_cache_is_what_its_buffers_take(kv_cache_bytes: int | None) -> None:
    loaded, page = double(), 4
    config = EngineConfig(page_size=page, kv_cache_bytes=kv_cache_bytes, max_batch=3)
    built = build.build(loaded.model, torch.device("cpu"), torch.float64, config)
    cache = built.core.runner._model_runner.cache  # type: ignore[attr-defined]
    taken, plan = cache.keys.nbytes + cache.values.nbytes, built.memory
    built.core.runner.close()

    assert taken == plan.kv_bytes == plan.pages * plan.page_bytes
    if kv_cache_bytes is not None:
        assert kv_cache_bytes - plan.page_bytes < taken <= kv_cache_bytes


def test_a_served_model_tells_what_is_not_fused() -> None:
    with serve(double()) as model:
        assert model.metrics()["plain"] == {}  # on the CPU nothing is expected to be
