"""What launches cost and may hold."""

import math
from typing import Any

import pytest

from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.fifo import FifoPolicy
from photonlite.scheduler.limits import LaunchModel, Limits
from photonlite.scheduler.realtime import RealtimePolicy
from photonlite.sequence import Sequence

ANYBODY: Any = None


def policy(max_pause_s: float) -> FifoPolicy:
    limits = Limits(64, 128, 4096, 16, launch_budget_s=0.004, max_pause_s=max_pause_s)
    return FifoPolicy(CacheManager(PagePool(100, 4)), limits)


def test_one_crop_is_launched_before_anything_was_measured() -> None:
    assert LaunchModel(16).within(0.004) == 1


def test_a_time_budget_becomes_at_least_one_crop_at_the_measured_rate() -> None:
    crops = LaunchModel(16)
    crops.observe(4, 0.004)

    assert crops.within(0.0045) == 4
    assert crops.within(0.0001) == 1


def test_estimates_follow_the_device() -> None:
    crops = LaunchModel(16)
    crops.observe(1, 0.001)
    for _ in range(30):
        crops.observe(1, 0.003)

    assert crops.within(0.009) == 3


def test_the_fixed_cost_of_a_launch_is_not_charged_to_units() -> None:
    slope = LaunchModel(16)
    for size in (750, 10, 10, 750, 10, 30, 10, 10, 10):
        slope.observe(size, 0.010 + 4e-6 * size)

    assert slope.per_unit == pytest.approx(4e-6)
    assert slope.within(0.004) == 1000


def test_noise_keeps_the_cost_of_a_unit_between_zero_and_its_share() -> None:
    slope = LaunchModel(16)
    slope.observe(100, 0.010)
    slope.observe(200, 0.005)  # less time for more: no line to follow

    assert slope.per_unit is not None
    assert 0.005 / 200 <= slope.per_unit <= 0.010 / 100


def test_the_cost_of_a_launch_includes_its_fixed_cost() -> None:
    slope = LaunchModel(16)
    assert slope.cost(100) == math.inf
    assert slope.least(100) == 0

    for size in (750, 10, 10, 750, 10, 30, 10, 10, 10):
        slope.observe(size, 0.010 + 4e-6 * size)

    assert slope.cost(500) == pytest.approx(0.012)
    assert slope.least(500) == pytest.approx(0.002)
    assert slope.cost(0) == pytest.approx(0.010)


@pytest.mark.parametrize(
    ("waiting", "decoding", "pause_s"), [(0, 1, 0.004), (8, 8, 0.004), (8, 2, 0.016), (60, 3, 0.03), (1000, 1, 0.03)]
)
def test_a_pause_grows_with_the_ratio_of_waiting_to_decoding_sequences(
    waiting: int, decoding: int, pause_s: float
) -> None:
    assert policy(max_pause_s=0.03).pause_s(waiting, decoding) == pytest.approx(pause_s)


def test_the_budget_of_a_launch_holds_where_the_longest_pause_is_shorter() -> None:
    assert policy(max_pause_s=0.0).pause_s(60, 1) == 0.004


def test_the_size_of_a_launch_is_halved_at_once_and_grows_slowly() -> None:
    crops = LaunchModel(16)
    crops.shrink(12)
    assert crops.most == 6
    crops.shrink(1)
    assert crops.most == 1
    for _ in range(2 * 32 - 1):
        crops.observe(1, 0.001)
    assert crops.most == 2
    for _ in range(1000):
        crops.observe(1, 0.001)
    assert crops.most == 16


def runs_of(*lengths: int) -> Any:
    return [(None, tuple(range(length))) for length in lengths]


def test_runs_are_taken_where_they_save_as_many_positions_as_their_launch_could_decode() -> None:
    fifo = policy(0.035)
    assert fifo.worth_a_launch(runs_of(3), 3)  # nothing was measured: as a decode step
    assert not fifo.worth_a_launch(runs_of(3), 4)
    assert fifo.worth_a_launch(runs_of(3, 2), 5)
    assert not fifo.worth_a_launch(runs_of(3, 1), 4)  # one token saves nothing: it is decoded

    fifo.run_cost.observe_decode(0.001)
    fifo.run_cost.observe_run(0.003)

    assert not fifo.worth_a_launch(runs_of(2), 1)
    assert fifo.worth_a_launch(runs_of(3), 1)
    assert not fifo.worth_a_launch(runs_of(3), 2)
    assert fifo.worth_a_launch(runs_of(3, 3), 2)


def awaiting(number: int, expected: tuple[int, ...], *, realtime: bool = False) -> Sequence:
    """A sequence whose next token a step in flight samples."""
    request = Request("", (Token(1),), ANYBODY, 50, SamplingSettings(), realtime=realtime)
    one = Sequence(number, request, ANYBODY, 0)
    one.expected_run, one.num_computed_tokens, one.inflight_refs = expected, 1, 1
    return one


def test_runs_are_assumed_where_their_launch_computes_as_many_positions_as_decode_steps_would() -> None:
    fifo = policy(0.035)
    short, long, none = awaiting(0, (1,)), awaiting(1, (1, 2, 3)), awaiting(2, ())
    assert fifo.choose_expecting([short, long, none], 6) == {short, long}
    assert fifo.choose_expecting([short, long, none], 7) == set()

    fifo.run_cost.observe_decode(0.001)
    fifo.run_cost.observe_run(0.002)

    assert fifo.choose_expecting([short], 1) == {short}
    assert fifo.choose_expecting([short], 2) == set()
    long.inflight_refs = 0  # its token has come
    assert fifo.choose_expecting([long], 1) == set()


def test_runs_of_bulk_sequences_are_assumed_only_where_no_real_time_one_decodes() -> None:
    realtime = RealtimePolicy(policy(0.035))
    bulk, urgent, other = awaiting(0, (1, 2, 3)), awaiting(1, (1,), realtime=True), awaiting(2, (), realtime=True)

    assert realtime.choose_expecting([urgent, other, bulk], 3) == {urgent}
    assert realtime.choose_expecting([other, bulk], 2) == set()
    assert realtime.choose_expecting([bulk], 1) == {bulk}


def test_a_launch_of_runs_never_counts_as_less_than_a_decode_step() -> None:
    fifo = policy(0.035)
    fifo.run_cost.observe_run(0.001)
    fifo.run_cost.observe_decode(0.002)
    fifo.run_cost.observe_run(0.001)

    assert not fifo.worth_a_launch(runs_of(2), 3)


def test_runs_that_were_slow_once_are_tried_again() -> None:
    fifo = policy(0.035)
    fifo.run_cost.observe_decode(0.001)
    fifo.run_cost.observe_run(1.0)  # it was compiled, say

    refused = 0
    while not fifo.worth_a_launch(runs_of(16), 1):
        refused += 1
        assert refused < 1000
    assert refused > 100  # a slow card is not asked again at once
