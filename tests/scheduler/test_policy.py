import math

import pytest

from photonlite.batch import CropGroup, EncodeJob, ScheduledBatch, Step
from photonlite.scheduler.limits import Allowance, Limits
from photonlite.scheduler.rates import Rates, Slope
from tests.engine.fakes import FakeImage


def encoded(crops: int, seconds: float) -> Step:
    image = FakeImage("a").crops
    assert image is not None
    step = Step(0, ScheduledBatch("encode", groups=(CropGroup(EncodeJob(0, "a", image), 0, crops),)), 0)
    step.device_s = seconds
    return step


def test_one_crop_is_let_through_as_long_as_nothing_is_known() -> None:
    assert Rates().crops.within(0.004) == 1
    assert Rates().positions.within(0.004) == 1


def test_a_budget_becomes_crops_at_the_measured_rate_and_never_none() -> None:
    rates = Rates()
    rates.observe(encoded(4, 0.004))

    assert rates.crops.within(0.0045) == 4
    assert rates.crops.within(0.0001) == 1


def test_rates_follow_the_device() -> None:
    rates = Rates()
    rates.observe(encoded(1, 0.001))
    for _ in range(30):
        rates.observe(encoded(1, 0.003))

    assert rates.crops.within(0.009) == 3


def test_what_a_launch_costs_before_its_first_unit_is_not_charged_to_units() -> None:
    slope = Slope()
    for size in (750, 10, 10, 750, 10, 30, 10, 10, 10):
        slope.observe(size, 0.010 + 4e-6 * size)

    assert slope.per_unit == pytest.approx(4e-6)
    assert slope.within(0.004) == 1000


def test_noise_never_makes_units_free_or_dearer_than_their_share() -> None:
    slope = Slope()
    slope.observe(100, 0.010)
    slope.observe(200, 0.005)  # less time for more: no line to follow

    assert slope.per_unit is not None
    assert 0.005 / 200 <= slope.per_unit <= 0.010 / 100


def test_what_a_launch_costs_holds_what_comes_before_its_first_unit() -> None:
    slope = Slope()
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
def test_a_pause_grows_with_those_that_wait_for_each_that_is_decoded(
    waiting: int, decoding: int, pause_s: float
) -> None:
    limits = Limits(64, 128, 4096, 16, launch_budget_s=0.004, max_pause_s=0.03)

    assert limits.pause_s(waiting, decoding) == pytest.approx(pause_s)


def test_the_budget_of_a_launch_holds_where_the_longest_pause_is_shorter() -> None:
    assert Limits(64, 128, 4096, 16, launch_budget_s=0.004, max_pause_s=0.0).pause_s(60, 1) == 0.004


def test_what_a_launch_may_hold_is_halved_at_once_and_grows_slowly() -> None:
    allowance = Allowance(16)
    allowance.shrink(12)
    assert allowance.now == 6
    allowance.shrink(1)
    assert allowance.now == 1
    for _ in range(2 * 32 - 1):
        allowance.count_success()
    assert allowance.now == 2
    for _ in range(1000):
        allowance.count_success()
    assert allowance.now == 16
