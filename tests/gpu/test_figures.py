import math

import pytest

from bench.gpu.figures import Figure, figures_table
from bench.gpu.samples import Sample

TIMES = Sample.of([0.009, 0.010, 0.011])


@pytest.mark.parametrize(
    ("figure", "reached"),
    [
        (Figure("time", TIMES, 0.010), True),
        (Figure("time", TIMES, 0.0099), False),
        (Figure("latency", TIMES, 0.010, 0.012), True),
        (Figure("latency", TIMES, 0.010, 0.0105), False),
        (Figure("rate", Sample.of([70.0]), 68.0, rate=True), True),
        (Figure("rate", Sample.of([67.0]), 68.0, rate=True), False),
        (Figure("no aim", TIMES), None),
        (Figure("nothing measured", None, 0.010), None),
    ],
)
def test_times_must_stay_below_their_aims_and_rates_above(figure, reached):
    assert figure.reached is reached


def test_a_share_tells_how_near_the_bound_is_from_either_side():
    assert Figure("time", TIMES, bound=0.008).share == pytest.approx(0.8)
    assert Figure("rate", Sample.of([60.0]), bound=80.0, rate=True).share == pytest.approx(0.75)
    assert math.isnan(Figure("time", TIMES).share)
    assert math.isnan(Figure("time", None, bound=1.0).share)


def test_rows_give_milliseconds_or_events_per_second_and_dashes_for_gaps():
    text = figures_table(
        [
            Figure("latency", TIMES, 0.012, 0.013, bound=0.005, reference=0.1, latency=True),
            Figure("rate", Sample.of([60.0]), 68.0, bound=80.0, rate=True),
            Figure("gone", None, 0.001),
        ]
    )
    _, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert rows[0] == [
        "latency", "10.00 / 10.98", "9.00 to 11.00 (3)", "12.00 / 13.00", "reached", "5.00", "50%", "100.00"
    ]  # fmt: skip
    assert rows[1] == ["rate", "60.0/s", "60.0/s to 60.0/s (1)", "68.0/s", "MISSED", "80.0/s", "75%", "-"]
    assert rows[2] == ["gone", "-", "-", "1.00", "", "-", "-", "-"]
