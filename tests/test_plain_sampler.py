import math
from typing import Any

import pytest
import torch
from torch import Tensor

from photonlite.errors import NumericalError
from photonlite.request import Allowed, SamplingSettings
from tests.plain import Sampler, choose_bins, choose_id

GREEDY = Sampler(SamplingSettings())
DECIDES = Allowed((5, 0), coordinate=5, end=0)
ANY_DECIDES = Allowed(None, coordinate=5, end=0)


def sampler(
    temperature: float = 1.0, top_p: float = 1.0, seed: int = 0, index: int = 0, top_k: int | None = None
) -> Sampler:
    return Sampler(SamplingSettings(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed), index)


def pick(one: Sampler, logits: Tensor) -> int:
    return int(one.pick(logits[None], 0))


def shares(logits: Tensor, draws: int = 1500, **settings: Any) -> list[float]:
    index = torch.tensor([pick(sampler(**settings, index=n), logits) for n in range(draws)])
    return (index.bincount(minlength=len(logits)) / draws).tolist()


def test_greedy_takes_the_first_of_equals() -> None:
    assert pick(GREEDY, torch.tensor([0.0, 3.0, 1.0, 3.0, 3.0])) == 1
    assert pick(GREEDY, torch.zeros(50_000)) == 0


@pytest.mark.long
def test_temperature_flattens_the_distribution() -> None:
    logits = torch.tensor([0.7, 0.2, 0.1]).log()

    assert shares(logits) == pytest.approx([0.7, 0.2, 0.1], abs=0.04)
    halves = logits.exp().sqrt()
    assert shares(logits, temperature=2) == pytest.approx((halves / halves.sum()).tolist(), abs=0.04)


@pytest.mark.long
@pytest.mark.parametrize(
    ("top_p", "wanted"),
    [(1.0, [0.5, 0.3, 0.2]), (0.8, [0.5, 0.3, 0.2]), (0.79, [5 / 8, 3 / 8, 0]), (0.49, [1, 0, 0]), (0.0, [1, 0, 0])],
)
def test_top_p_drops_what_comes_after_more_than_top_p(top_p: float, wanted: list[float]) -> None:
    # 0.5 + 0.3 rounds to just above 0.8 or below it: keep clear of the edge.
    assert shares(torch.tensor([0.5, 0.299, 0.201]).log(), top_p=top_p) == pytest.approx(wanted, abs=0.04)


@pytest.mark.long
@pytest.mark.parametrize(
    ("top_k", "top_p", "wanted"), [(2, 1.0, [5 / 8, 3 / 8, 0]), (1, 1.0, [1, 0, 0]), (2, 0.6, [1, 0, 0])]
)
def test_top_k_comes_before_top_p(top_k: int, top_p: float, wanted: list[float]) -> None:
    # Of two, 0.5 is 0.625 of the mass.
    assert shares(torch.tensor([0.5, 0.3, 0.2]).log(), top_k=top_k, top_p=top_p) == pytest.approx(wanted, abs=0.04)


def test_seed_and_index_determine_a_draw() -> None:
    logits = torch.zeros(1000)

    assert pick(sampler(seed=1, index=2), logits) == pick(sampler(seed=1, index=2), logits)
    assert len({pick(sampler(seed=seed), logits) for seed in range(5)}) == 5
    assert len({pick(sampler(index=index), logits) for index in range(5)}) == 5


@pytest.mark.parametrize("temperature", [1e-60, 1e-30, 1e-3])
def test_a_tiny_temperature_is_greedy_not_an_overflow(temperature: float) -> None:
    assert pick(sampler(temperature=temperature), torch.tensor([1.0, 90.0, 80.0])) == 1


def test_rows_are_drawn_independently() -> None:
    assert GREEDY.pick(torch.tensor([[1.0, 2.0], [4.0, 3.0]]), 0).tolist() == [1, 0]
    width, height = sampler().pick(torch.zeros(2, 1000), 1).tolist()
    assert width != height


def test_suppressed_ids_are_never_chosen() -> None:
    logits = torch.tensor([1.0, 9.0, 8.0, 2.0])

    assert choose_id(logits, Allowed(), GREEDY) == (1, 1.0)
    assert choose_id(logits, Allowed(suppressed=(1, 2)), GREEDY) == (3, 1.0)
    assert logits[1] == 9


def test_only_the_listed_ids_are_compared() -> None:
    logits = torch.zeros(8)
    logits[3], logits[6], logits[2] = 9, 2, 1

    assert choose_id(logits, Allowed((2, 6)), GREEDY)[0] == 6


def test_end_or_continue_is_decided_between_two_ids_and_ties_continue() -> None:
    logits = torch.zeros(8)
    logits[3] = 50.0

    assert choose_id(logits, DECIDES, GREEDY) == (5, 0.5)
    logits[0] = 1.0
    token_id, probability = choose_id(logits, DECIDES, GREEDY)
    assert token_id == 0
    assert probability == pytest.approx(1 / (1 + math.e))


def test_any_id_but_the_end_continues_with_a_coordinate() -> None:
    logits = torch.zeros(8)
    logits[3], logits[0] = 2.0, 1.0

    token_id, probability = choose_id(logits, ANY_DECIDES, GREEDY)

    assert token_id == 5
    assert probability == pytest.approx(1 - float(logits.softmax(0)[0]))
    logits[0] = 3.0
    assert choose_id(logits, ANY_DECIDES, GREEDY)[0] == 0


def test_a_decision_is_reported_at_temperature_one() -> None:
    logits = torch.tensor([0.0, 0, 0, 0, 0, 1])

    assert choose_id(logits, DECIDES, sampler(temperature=5))[1] == pytest.approx(1 / (1 + math.exp(-1)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("allowed", [Allowed(), DECIDES, ANY_DECIDES, Allowed(suppressed=(1,))])
def test_non_finite_logits_raise_an_error(allowed: Allowed, bad: float) -> None:
    logits = torch.zeros(8)
    logits[5] = bad
    with pytest.raises(NumericalError):
        choose_id(logits, allowed, GREEDY)


@pytest.mark.parametrize("one", [GREEDY, sampler()])
def test_non_finite_bins_raise_an_error(one: Sampler) -> None:
    logits = torch.zeros(2, 30)
    logits[1, 7] = math.nan
    with pytest.raises(NumericalError):
        choose_bins(logits, 1.0, one)


def test_the_mass_counts_bins_around_the_chosen_one() -> None:
    probability = torch.full((2, 10), 0.02)
    probability[0, 2:5] = torch.tensor([0.2, 0.5, 0.16])
    probability[1, 9] = 0.82

    index, masses = choose_bins(probability.log(), 1.4, GREEDY)

    assert index.tolist() == [3, 9]
    assert masses == pytest.approx([0.86, 0.84])
