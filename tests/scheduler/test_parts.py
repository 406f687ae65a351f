import math

import pytest

from photonlite.scheduler.parts import WEIGHTS, PartSpeeds, PartTable, parts_pay, table_at

SPEEDS = PartSpeeds(0.54, 0.67)
TABLE = PartTable({32: SPEEDS})

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
    assert parts_pay(0.012, decode_s, rows, later, TABLE) == pays


def test_parts_wait_for_measurements() -> None:
    assert not parts_pay(math.inf, 1.0, 32, 0, TABLE)


def test_parts_pay_as_the_table_says_for_the_rows_that_decode() -> None:
    table = PartTable({8: PartSpeeds(0.5, 0.45), 32: PartSpeeds(0.6, 0.5)})

    assert parts_pay(0.012, 1.0, 32, 0, table)
    assert not parts_pay(0.012, 1.0, 8, 0, table)


def test_waiting_requests_count_less_where_steps_take_longer_by_their_rows() -> None:
    assert parts_pay(0.012, 1.0, 20, 20, PartTable({32: SPEEDS}, weights=1))
    assert not parts_pay(0.012, 1.0, 20, 20, PartTable({32: SPEEDS}, weights=200))


def test_speeds_beside_rows_are_on_a_line_between_those_that_were_measured() -> None:
    table = PartTable({8: PartSpeeds(0.5, 0.6), 32: PartSpeeds(0.6, 0.8), 64: PartSpeeds(0.4, 0.8)})

    assert table.at(32) == (0.6, 0.8)
    assert table.at(20) == pytest.approx((0.55, 0.7))
    assert table.at(48) == pytest.approx((0.5, 0.8))
    assert (table.at(1), table.at(200)) == ((0.5, 0.6), (0.4, 0.8))


def test_speeds_of_a_division_are_those_that_were_measured_and_on_a_line_between_and_beyond() -> None:
    assert table_at(64 / 132).at(32) == pytest.approx(SPEEDS)
    assert table_at(40 / 132).at(32) == pytest.approx((0.66, 0.48))
    assert table_at(72 / 132).at(32) == pytest.approx((0.50, 0.73))
    assert table_at(64 / 132).at(8) == pytest.approx((0.53, 0.65))
    assert 0 < table_at(0.01).at(32).decode < table_at(0.99).at(32).decode <= 1
    assert table_at(0.3, {4: {0.5: SPEEDS}}, 7.0) == PartTable({4: SPEEDS}, 7.0)
    assert table_at(0.5).weights == WEIGHTS
