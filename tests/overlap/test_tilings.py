import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.overlap import tilings
from bench.overlap.tilings import FEW, IN, Kinds, fewer_sms
from photonlite.kernels import tilings as products
from photonlite.models.moondream.config import TextConfig
from tests.tuning.virtual import Timed, VirtualCard

KINDS = Kinds(TextConfig())


class Step:
    """A step that takes as long as a table says of its tiling; not what it computes."""

    def __init__(self, times: dict[Any, float], wrong: Any = None) -> None:
        self._times, self._wrong = times, wrong
        self.logits: torch.Tensor | None = None

    def capture(self, lane: Any) -> Any:
        tiling = products.tiling_of(8, 14336, 2048)
        if tiling not in self._times:
            raise ValueError("does not fit")
        self.logits = torch.tensor([1.0, 3.0 if tiling == self._wrong else 2.0])
        return Timed("decode", self._times[tiling])


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(KINDS, "candidates", {"in": IN})
    return SimpleNamespace(sms=64, capture=lambda step: step.capture(None))


def test_the_fastest_tiling_is_chosen_and_those_that_do_not_fit_are_said(lane: Any) -> None:
    usual, said = products.tiling_of(8, 14336, 2048), []
    step: Any = Step({usual: 0.002, IN[0]: 0.0018, IN[1]: 0.0017, IN[2]: 0.00169})

    chosen = KINDS.search(VirtualCard(), lane, step, time.perf_counter() + 60, said.append)

    assert chosen == {"in": IN[2]}
    assert sum("does not fit" in line for line in said) == len(IN) - 3
    assert products.tiling_of(8, 14336, 2048) == usual, "put back"


def test_a_gain_within_the_noise_is_none(lane: Any) -> None:
    step: Any = Step({products.tiling_of(8, 14336, 2048): 0.002, IN[0]: 0.001999})

    assert KINDS.search(VirtualCard(), lane, step, time.perf_counter() + 60, lambda _: None) == {}


def test_no_candidate_begins_after_the_end(lane: Any) -> None:
    step: Any = Step({products.tiling_of(8, 14336, 2048): 0.002, IN[0]: 0.001})

    assert KINDS.search(VirtualCard(), lane, step, time.perf_counter() - 1, lambda _: None) == {}


def test_a_tiling_that_computes_something_else_is_an_error(lane: Any) -> None:
    step: Any = Step({products.tiling_of(8, 14336, 2048): 0.002, IN[0]: 0.001}, wrong=IN[0])

    with pytest.raises(AssertionError, match="away from those as usual"):
        KINDS.search(VirtualCard(), lane, step, time.perf_counter() + 60, lambda _: None)


def test_programs_are_counted_by_tiles_and_parts() -> None:
    assert KINDS.programs(FEW) == "in 56, out 32, head 200"


def test_blas_is_told_of_fewer_sms_and_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(tilings.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tilings.torch.backends.cuda, "preferred_blas_library", lambda *name: told.append(name) or "old")
    monkeypatch.setattr(tilings.torch._C, "_set_sm_carveout_experimental", told.append)

    with pytest.raises(ValueError, match="inside"), fewer_sms(84, 132):
        raise ValueError("inside")

    assert told == [(), ("cublaslt",), 48, None, ("old",)]
