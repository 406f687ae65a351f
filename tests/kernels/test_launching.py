from types import SimpleNamespace
from typing import Any

import pytest
import torch

from photonlite.kernels import launching
from photonlite.kernels.launching import dependent_launch, power_of_2, shared_memory


@pytest.mark.parametrize(
    ("least", "power"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1023, 1024), (1024, 1024), (1025, 2048)]
)
def test_the_next_power_of_two_is_no_smaller(least: int, power: int) -> None:
    assert power_of_2(least) == power


def on_a_card() -> Any:
    return SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("capability", "dependent"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), True), ((12, 1), True)]
)
def test_kernels_are_chained_from_capability_9_on(
    capability: tuple[int, int], dependent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_capability", lambda device: capability)

    options = dependent_launch(on_a_card())

    # Code that waits for the kernel in front and a launch that may begin before its end belong together.
    assert options.pop("PDL") is dependent
    assert options == ({"launch_pdl": True} if dependent else {})


def test_without_a_card_nothing_is_chained_and_no_memory_is_too_small() -> None:
    assert dependent_launch(torch.zeros(1)) == {"PDL": False}
    assert shared_memory(torch.zeros(1)) > 2**30


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_card_has_more_shared_memory_than_a_launch_gets_unasked() -> None:
    assert 48 * 1024 < shared_memory(torch.zeros(1, device="cuda")) < 2**20
