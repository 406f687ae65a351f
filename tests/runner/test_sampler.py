import math

import pytest
import torch

from photonlite.errors import NumericalError
from photonlite.request import Allowed, SamplingSettings
from photonlite.runner.sampler import Sampler, choose_bins, choose_id, coordinate_radius, size_radius

CPU = torch.device("cpu")
GREEDY = Sampler(SamplingSettings(), CPU)
DECIDES = Allowed((5, 0), coordinate=5, end=0)
ANY_DECIDES = Allowed(None, coordinate=5, end=0)


def sampler(temperature: float = 1.0, top_p: float = 1.0, seed: int = 0) -> Sampler:
    return Sampler(SamplingSettings(temperature=temperature, top_p=top_p, seed=seed), CPU)


def shares(one: Sampler, logits: torch.Tensor, draws: int = 4000) -> list[float]:
    index = one.pick(logits.expand(draws, -1))
    return (index.bincount(minlength=logits.shape[-1]) / draws).tolist()


def test_greedy_takes_the_first_of_equals() -> None:
    assert int(GREEDY.pick(torch.tensor([0.0, 3.0, 1.0, 3.0, 3.0]))) == 1
    assert int(GREEDY.pick(torch.zeros(50_000))) == 0


def test_temperature_flattens_the_distribution() -> None:
    logits = torch.tensor([0.7, 0.2, 0.1]).log()

    assert shares(sampler(), logits) == pytest.approx([0.7, 0.2, 0.1], abs=0.03)
    halves = logits.exp().sqrt()
    assert shares(sampler(temperature=2), logits) == pytest.approx((halves / halves.sum()).tolist(), abs=0.03)


@pytest.mark.parametrize(
    ("top_p", "wanted"),
    [(1.0, [0.5, 0.3, 0.2]), (0.8, [0.5, 0.3, 0.2]), (0.79, [5 / 8, 3 / 8, 0]), (0.49, [1, 0, 0]), (0.0, [1, 0, 0])],
)
def test_top_p_drops_what_comes_after_more_than_top_p(top_p: float, wanted: list[float]) -> None:
    # 0.5 + 0.3 rounds to just above 0.8 or below it: keep clear of the edge.
    logits = torch.tensor([0.5, 0.299, 0.201]).log()

    assert shares(sampler(top_p=top_p), logits) == pytest.approx(wanted, abs=0.03)


def test_the_order_of_entries_does_not_matter_to_top_p() -> None:
    assert shares(sampler(top_p=0.6), torch.tensor([0.1, 0.2, 0.7]).log())[2] == 1


def test_a_seed_repeats_a_result_and_another_one_does_not() -> None:
    logits = torch.zeros(1000)

    assert int(sampler(seed=1).pick(logits)) == int(sampler(seed=1).pick(logits))
    assert len({int(sampler(seed=seed).pick(logits)) for seed in range(5)}) > 1
    unseeded = [int(Sampler(SamplingSettings(temperature=1.0), CPU).pick(logits)) for _ in range(5)]
    assert len(set(unseeded)) > 1


def test_requests_do_not_share_random_numbers() -> None:
    one, other = sampler(seed=1), sampler(seed=1)
    logits = torch.zeros(1000)

    alone = [int(one.pick(logits)) for _ in range(3)]
    torch.randn(7)
    assert [int(other.pick(logits)) for _ in range(3)] == alone


@pytest.mark.parametrize("temperature", [1e-60, 1e-30, 1e-3])
def test_a_tiny_temperature_is_greedy_not_an_overflow(temperature: float) -> None:
    assert int(sampler(temperature=temperature).pick(torch.tensor([1.0, 90.0, 80.0]))) == 1


def test_rows_are_chosen_independently() -> None:
    assert GREEDY.pick(torch.tensor([[1.0, 2.0], [4.0, 3.0]])).tolist() == [1, 0]
    assert sampler(top_p=0.0).pick(torch.tensor([[1.0, 2.0], [4.0, 3.0]])).tolist() == [1, 0]


def test_suppressed_ids_are_never_chosen() -> None:
    logits = torch.tensor([1.0, 9.0, 8.0, 2.0])

    assert choose_id(logits, Allowed(), GREEDY) == (1, 1.0)
    assert choose_id(logits, Allowed(suppressed=(1,)), GREEDY) == (2, 1.0)
    assert choose_id(logits, Allowed(suppressed=(1, 2)), GREEDY) == (3, 1.0)
    assert logits[1] == 9


def test_only_the_listed_ids_are_compared() -> None:
    logits = torch.zeros(8)
    logits[3], logits[6], logits[2] = 9, 2, 1

    assert choose_id(logits, Allowed((2, 6)), GREEDY)[0] == 6


def test_two_ids_decide_and_ties_go_on() -> None:
    logits = torch.zeros(8)
    logits[3] = 50.0

    assert choose_id(logits, DECIDES, GREEDY) == (5, 0.5)
    logits[0] = 1.0
    token_id, probability = choose_id(logits, DECIDES, GREEDY)
    assert token_id == 0
    assert probability == pytest.approx(1 / (1 + math.e))


def test_any_id_but_the_end_goes_on_with_a_coordinate() -> None:
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
def test_logits_that_are_not_finite_are_an_error(allowed: Allowed, bad: float) -> None:
    logits = torch.zeros(8)
    logits[5] = bad
    with pytest.raises(NumericalError, match=r"not finite: .*dtype='float32'"):
        choose_id(logits, allowed, GREEDY)


@pytest.mark.parametrize("one", [GREEDY, sampler()])
def test_bins_that_are_not_finite_are_an_error(one: Sampler) -> None:
    logits = torch.zeros(2, 30)
    logits[1, 7] = math.nan
    with pytest.raises(NumericalError, match="coordinate or size"):
        choose_bins(logits, 1.0, one)


def test_the_mass_counts_bins_within_the_radius() -> None:
    probability = torch.full((2, 10), 0.02)
    probability[0, 2:5] = torch.tensor([0.2, 0.5, 0.16])
    probability[1, 9] = 0.82

    index, masses = choose_bins(probability.log(), 1.4, GREEDY)

    assert index.tolist() == [3, 9]
    assert masses == pytest.approx([0.86, 0.84])


def test_a_radius_counts_the_bin_at_its_edge() -> None:
    probability = torch.full((1, 5), 0.1)
    probability[0, 2] = 0.6

    assert choose_bins(probability.log(), 2.0, GREEDY)[1] == pytest.approx((1.0,))
    assert choose_bins(probability.log(), 1.99, GREEDY)[1] == pytest.approx((0.8,))


def test_sampled_bins_report_the_mass_around_what_was_drawn() -> None:
    probability = torch.full((1, 100), 0.4 / 99)
    probability[0, 50] = 0.6
    drawn = {}
    for seed in range(30):
        index, masses = choose_bins(probability.log(), 0.0, sampler(seed=seed))
        drawn[int(index)] = masses[0]

    assert len(drawn) > 3
    assert drawn.pop(50) == pytest.approx(0.6)
    assert list(drawn.values()) == pytest.approx([0.4 / 99] * len(drawn))


def test_radii_are_one_percent_of_the_picture_and_ten_percent_of_a_size() -> None:
    assert coordinate_radius(1024) == pytest.approx(10.24)
    bins, octaves = 1024, 10
    radius = size_radius(bins, octaves)
    assert 2 ** (octaves * radius / (bins - 1)) == pytest.approx(1.1)
    assert 14 < radius < 15
