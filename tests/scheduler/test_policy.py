import pytest

from photonlite.batch import CropGroup, EncodeJob, Plan, Step
from photonlite.scheduler.policy import Rates
from tests.engine.fakes import FakePicture


def encoded(crops: int, seconds: float) -> Step:
    picture = FakePicture("a").crops
    assert picture is not None
    step = Step(0, Plan("encode", groups=(CropGroup(EncodeJob(0, "a", picture), 0, crops),)), 0)
    step.device_s = seconds
    return step


def test_one_crop_is_let_through_as_long_as_nothing_is_known() -> None:
    assert Rates().crops_within(0.004) == 1
    assert Rates().positions_within(0.004) == 1


def test_a_budget_becomes_crops_at_the_measured_rate_and_never_none() -> None:
    rates = Rates()
    rates.observe(encoded(4, 0.004))

    assert rates.crops_within(0.0045) == 4
    assert rates.crops_within(0.0001) == 1


def test_rates_follow_the_device() -> None:
    rates = Rates()
    rates.observe(encoded(1, 0.001))
    for _ in range(30):
        rates.observe(encoded(1, 0.003))

    assert rates.per_crop == pytest.approx(0.003, rel=0.01)
