import pytest
import torch
from torch import nn

from photonlite.kernels import cards
from photonlite.kernels.cards import Card
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.fused.decode import FusedDecode
from photonlite.models.paligemma.fused.vision import FusedTower
from photonlite.models.paligemma.model import PaliGemmaModel
from tests.models.paligemma.fused.test_decode import CONFIGS
from tests.models.paligemma.fused.test_vision import CONFIGS as TOWERS

LACKING = {"prompts": "fused attention of prompts has neither soft caps nor windows"}


def model_on(card: Card | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> PaliGemmaModel:
    monkeypatch.setattr(cards, "HAS_TRITON", True)
    monkeypatch.setattr(cards, "card_of", lambda device: card)
    config = PaliGemmaConfig(CONFIGS["capped"], TOWERS["heads of 8"], image_id=0, bos_id=1, end_id=2)
    model = PaliGemmaModel(config, first_location=3).requires_grad_(False).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def test_a_card_that_runs_all_kernels_runs_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_on(Card("RTX 3090", (8, 6), 101_376), torch.bfloat16, monkeypatch)
    assert isinstance(model.crop_encoder(), FusedTower)
    assert isinstance(model.step_decoder(), FusedDecode)
    assert model.plain_parts() == LACKING


def test_an_older_card_runs_none_and_says_which_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_on(Card("Tesla T4", (7, 5), 65_536), torch.bfloat16, monkeypatch)
    assert model.crop_encoder() is model.vision
    assert model.step_decoder() is None
    assert model.plain_parts() == LACKING | {
        "image encoder": "the kernel norms needs compute capability 8.0, Tesla T4 has 7.5",
        "decode steps": "the kernel small_batch_gemm needs compute capability 8.0, Tesla T4 has 7.5",
    }


def test_the_encoder_takes_any_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_on(Card("RTX 4090", (8, 9), 101_376), torch.float16, monkeypatch)
    assert isinstance(model.crop_encoder(), FusedTower)
    assert model.plain_parts().keys() == {"prompts", "decode steps"}


def test_on_a_processor_only_products_of_8_bits_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_on(None, torch.float32, monkeypatch)
    assert model.crop_encoder() is model.vision
    assert isinstance(model.crop_encoder(fp8=True), FusedTower)
