from functools import partial
from typing import Any

import pytest
import torch

from bench import cpu_attention
from photonlite.kernels.paged_attention import paged_attention
from tests.kernels.pages import scattered


def test_the_baseline_attends_as_the_engine_does() -> None:
    torch.manual_seed(0)
    case = scattered([5, 17, 1], 4, 2, 8, 4, torch.float64)
    torch.testing.assert_close(cpu_attention.padded(*case), paged_attention(*case))


def test_each_request_runs_with_the_baseline_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, list[int]] = {"baseline": [], "engine": []}

    def spy(way: str, *given: Any) -> torch.Tensor:
        calls[way].append(len(given[0]))
        return paged_attention(*given)

    monkeypatch.setattr(cpu_attention, "padded", partial(spy, "baseline"))
    monkeypatch.setattr("photonlite.runner.decode.paged_attention", partial(spy, "engine"))
    monkeypatch.setattr(cpu_attention, "CLIENTS", 2)

    rows = cpu_attention.request_rows(1)

    assert len(rows) == 3
    for found in calls.values():
        assert set(found) == {1, 2}  # the caption of one client, and of two at once
