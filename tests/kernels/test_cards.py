import importlib.util

import pytest
import torch

from photonlite.kernels import cards, triton_utils
from photonlite.kernels.cards import CARDS, Card, Need, obstacle, wrong_type
from tests.conftest import Ended

HEADS = [(64, 1), (128, 2), (128, 7), (256, 2)]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "HAS_TRITON", True)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_card_from_the_least_capability_on_runs_everything_but_fp8(card: Card, heads: tuple[int, int]) -> None:
    needs = [*cards.encoder_needs(), *cards.prompt_needs(*heads), *cards.step_needs(*heads)]
    runs = {need.kernel: obstacle(card, [need]) is None for need in needs}
    assert set(runs.values()) == {card.name != "T4"}
    assert (obstacle(card, cards.fp8_needs("experts")) is None) == (
        card.name in ("RTX 4090", "L4", "H100 and H200")
    )  # fmt: skip


def test_what_keeps_a_kernel_from_a_card_is_told_by_name() -> None:
    old, small = Card("Tesla T4", (7, 5), 65_536), Card("small", (8, 6), 40_000)
    assert obstacle(old, cards.step_needs(128, 2)) == (
        "the kernel small_batch_gemm needs compute capability 8.0, Tesla T4 has 7.5"
    )
    assert obstacle(small, cards.prompt_needs(128, 2)) == (
        "the kernel prefill_attention needs 98304 bytes of shared memory, small has 40000"
    )
    assert obstacle(small, [Need("norms")]) is None
    assert obstacle(None, []) == "kernels need a CUDA device"


def test_without_triton_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "HAS_TRITON", False)
    assert obstacle(CARDS[-1], cards.encoder_needs()) == "kernels need Triton, which is not installed"


def test_other_types_of_weights_are_told() -> None:
    assert wrong_type(torch.bfloat16, cards.HALF) is None
    assert wrong_type(torch.float64, cards.HALF) == "kernels take weights in bfloat16, float16, these are in float64"


def test_a_processor_is_no_card() -> None:
    assert cards.card_of(CPU) is None
    assert not triton_utils.has_triton(CPU)


@pytest.mark.parametrize(("capability", "runs"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_kernels_run_from_the_least_capability_on(
    capability: tuple[int, int], runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_utils, "HAS_TRITON", True)
    monkeypatch.setattr(triton_utils, "_capability", lambda device: capability)
    assert triton_utils.has_triton(torch.device("cuda", 0)) is runs


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long(first=True)
@pytest.mark.program("tests.kernels.compiled")
def test_kernels_compiled_for_every_card_take_no_more_than_the_table_says(ended: Ended) -> None:
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "compiled kernels fit" in ended.stdout
