import math

import pytest

from photonlite.scheduler.parts import PartSpeeds, parts_pay, speeds_of

SPEEDS = PartSpeeds(0.54, 0.67)

# In parts an encoding of 12 ms takes 22 ms: what decodes must be worth 10 ms.


@pytest.mark.parametrize(
    ("decode_s", "rows", "later", "pays"),
    [
        (1.0, 32, 0, True),
        (1.0, 32, 8, True),
        (0.011, 32, 0, True),
        (0.009, 32, 0, False),  # the steps of short answers leave most of their part idle
        (1.0, 20, 44, False),  # steps with few rows, while many wait for their images
        (1.0, 44, 20, True),
        (0.0, 1, 0, False),
    ],
)
def test_parts_pay_while_enough_decodes(decode_s: float, rows: int, later: int, pays: bool) -> None:
    assert parts_pay(0.012, decode_s, rows, later, SPEEDS) == pays


def test_parts_wait_for_measurements() -> None:
    assert not parts_pay(math.inf, 1.0, 32, 0, SPEEDS)


def test_parts_pay_as_their_speeds_say() -> None:
    assert parts_pay(0.012, 1.0, 32, 0, PartSpeeds(0.6, 0.5))
    assert not parts_pay(0.012, 1.0, 32, 0, PartSpeeds(0.5, 0.45))


def test_speeds_are_those_that_were_measured_and_on_a_line_between_and_beyond() -> None:
    assert speeds_of(64 / 132) == pytest.approx(SPEEDS)
    assert speeds_of(40 / 132) == pytest.approx((0.66, 0.48))
    assert speeds_of(72 / 132) == pytest.approx((0.50, 0.73))
    assert 0 < speeds_of(0.01).decode < speeds_of(0.99).decode <= 1
