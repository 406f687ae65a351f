from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from photonlite.kernels import triton_utils
from photonlite.kernels.triton_utils import RowSplit, dependent_launch, power_of_2, shared_memory, split_row


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
    monkeypatch.setattr(triton_utils, "_capability", lambda device: capability)

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


@given(dim=st.integers(1, 20_000))
def test_two_pieces_hold_a_row_of_any_length(dim: int) -> None:
    row = split_row(dim)

    assert row.left + row.right == dim
    assert row.left == row.left_width
    assert row.right <= row.right_width <= row.left_width
    assert row.right_width & (row.right_width - 1) == 0


@given(left=st.integers(1, 9000), right=st.integers(0, 9000))
def test_given_pieces_stay_what_they_are(left: int, right: int) -> None:
    row = RowSplit(left, right)

    assert (row.left, row.right) == (left, right)
    for size, width in ((left, row.left_width), (max(1, right), row.right_width)):
        assert width // 2 < size <= width
        assert width & (width - 1) == 0


def test_rows_of_the_models_leave_little_unused() -> None:
    for dim in (1152, 2048, 4304, 8192, 10240):
        row = split_row(dim)
        assert row.left_width + (row.right_width if row.right else 0) <= 1.02 * dim
