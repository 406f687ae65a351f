import pytest

from photonlite.errors import TuningError
from photonlite.tuning.interference import Pair, Point, Table, table_of


def test_pairs_of_one_division_give_a_point_and_its_spread() -> None:
    table = table_of([Pair(64, 0.5, 0.7), Pair(64, 0.54, 0.8), Pair(32, 0.7, 0.4)])

    assert [point.sms for point in table.points] == [32, 64]
    assert table.points[1].share == pytest.approx(0.48)
    assert table.points[1].speed == pytest.approx(0.75)
    assert (table.points[1].low, table.points[1].high) == (0.7, 0.8)


def test_points_that_another_one_beats_are_left_out() -> None:
    table = table_of([Pair(64, 0.5, 0.7), Pair(80, 0.4, 0.65), Pair(96, 0.3, 0.8), Pair(8, 1.02, 0.1)])

    assert [point.sms for point in table.points] == [64, 96]


@pytest.mark.parametrize(
    "points",
    [
        (Point(0.6, 0.8, 0.8, 0.8, 64), Point(0.2, 0.4, 0.4, 0.4, 32)),
        (Point(1.2, 0.8, 0.8, 0.8, 64),),
        (Point(0.5, 0.0, 0.0, 0.0, 64),),
        (Point(0.5, 0.5, 0.6, 0.7, 64),),
    ],
)
def test_impossible_tables_are_refused(points: tuple[Point, ...]) -> None:
    with pytest.raises(TuningError, match="interference table"):
        Table(points)
