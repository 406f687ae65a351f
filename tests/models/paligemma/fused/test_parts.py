import dataclasses
import importlib.util

import pytest
import torch
from torch import nn

from photonlite.kernels import cards
from photonlite.kernels.cards import Card
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.fused.decode import FusedDecode
from photonlite.models.paligemma.fused.prefill import FusedPrefill
from photonlite.models.paligemma.fused.vision import FusedTower
from photonlite.models.paligemma.model import PaliGemmaModel
from tests.conftest import Ended
from tests.models.paligemma.fused.test_decode import CONFIGS
from tests.models.paligemma.fused.test_vision import CONFIGS as TOWERS

NEW = Card("RTX 3090", (8, 6), 101_376)


def model_on(
    card: Card | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, window: int | None = None
) -> PaliGemmaModel:
    monkeypatch.setattr(cards, "HAS_TRITON", True)
    monkeypatch.setattr(cards, "card_of", lambda device: card)
    text = dataclasses.replace(CONFIGS["capped"], window=window)
    config = PaliGemmaConfig(text, TOWERS["heads of 8"], image_id=0, bos_id=1, end_id=2)
    model = PaliGemmaModel(config, first_location=3).requires_grad_(False).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def test_a_card_that_runs_all_kernels_runs_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_on(NEW, torch.bfloat16, monkeypatch)
    assert isinstance(model.crop_encoder(), FusedTower)
    steps, prompts = model.step_decoder(), model.prompt_decoder()
    assert isinstance(steps, FusedDecode)
    assert isinstance(prompts, FusedPrefill)
    assert prompts._blocks is steps._blocks  # joined once
    assert model.plain_parts() == {}


def test_an_older_card_runs_none_and_says_which_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_on(Card("Tesla T4", (7, 5), 65_536), torch.bfloat16, monkeypatch)
    assert model.crop_encoder() is model.vision
    assert model.step_decoder() is None
    assert model.prompt_decoder() is None
    assert model.plain_parts() == {
        "image encoder": "the kernel norms needs compute capability 8.0, Tesla T4 has 7.5",
        "prompts": "the kernel norms needs compute capability 8.0, Tesla T4 has 7.5",
        "decode steps": "the kernel small_batch_gemm needs compute capability 8.0, Tesla T4 has 7.5",
    }


def test_the_encoder_alone_takes_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_on(NEW, torch.float16, monkeypatch)
    assert isinstance(model.crop_encoder(), FusedTower)
    assert model.prompt_decoder() is None
    reason = "kernels take weights in bfloat16, these are in float16"
    assert model.plain_parts() == {"prompts": reason, "decode steps": reason}


def test_a_window_within_the_context_keeps_the_decoder_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_on(NEW, torch.bfloat16, monkeypatch, window=255)
    assert model.prompt_decoder() is None
    assert model.step_decoder() is None
    assert set(model.plain_parts().values()) == {"fused attention sees all of 256 positions, a layer 255"}
    assert model_on(NEW, torch.bfloat16, monkeypatch, window=256).plain_parts() == {}


def test_on_a_processor_only_products_of_8_bits_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_on(None, torch.float32, monkeypatch)
    assert model.crop_encoder() is model.vision
    assert isinstance(model.crop_encoder(fp8=True), FusedTower)
    assert model.prompt_decoder(fp8=True) is None
    assert model.step_decoder() is None


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.models.paligemma.fused.interpreted")
def test_all_parts_agree_with_the_plain_model_in_tritons_interpreter(ended: Ended) -> None:
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout
