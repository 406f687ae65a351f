import pytest
import torch

from photonlite.kernels import cards
from photonlite.kernels.cards import Card
from photonlite.models.qwen.fused.decode import FusedDecode
from photonlite.models.qwen.fused.prefill import FusedPrefill
from photonlite.models.qwen.fused.text import FusedText
from tests.models.qwen.fused.steps import CONFIGS, random_decoder


def fused(dtype: torch.dtype, card: Card | None, monkeypatch: pytest.MonkeyPatch) -> FusedText:
    monkeypatch.setattr(cards, "HAS_TRITON", True)
    monkeypatch.setattr(cards, "card_of", lambda device: card)
    return FusedText(random_decoder(*CONFIGS["3"]).to(dtype))


def test_a_card_that_runs_all_kernels_runs_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = fused(torch.bfloat16, Card("RTX 3090", (8, 6), 101_376), monkeypatch)
    assert isinstance(parts.step_decoder(), FusedDecode)
    assert isinstance(parts.prompt_decoder(), FusedPrefill)
    assert parts.plain_parts() == {}


def test_an_older_card_runs_none_and_says_which_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = fused(torch.bfloat16, Card("Tesla T4", (7, 5), 65_536), monkeypatch)
    assert parts.step_decoder() is None
    assert parts.prompt_decoder() is None
    assert parts.plain_parts() == {
        "prompts": "the kernel norms needs compute capability 8.0, Tesla T4 has 7.5",
        "decode steps": "the kernel small_batch_gemm needs compute capability 8.0, Tesla T4 has 7.5",
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_steps_in_other_types_than_bfloat16_stay_plain(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = fused(dtype, Card("RTX 4090", (8, 9), 101_376), monkeypatch)
    assert parts.step_decoder() is None
    assert isinstance(parts.prompt_decoder(), FusedPrefill)
    kind = str(dtype).removeprefix("torch.")
    assert parts.plain_parts() == {"decode steps": f"kernels take weights in bfloat16, these are in {kind}"}


def test_on_a_processor_only_products_of_8_bits_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = fused(torch.float32, None, monkeypatch)
    assert parts.step_decoder() is None
    assert parts.prompt_decoder() is None
    assert isinstance(parts.prompt_decoder(fp8=True), FusedPrefill)
