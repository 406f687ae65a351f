import itertools

import pytest

from photonlite.observe.lanes import Axis


@pytest.mark.parametrize(
    ("extent", "labels"),
    [
        (40e-6, ["0 us", "5 us", "10 us", "15 us", "20 us", "25 us", "30 us", "35 us", "40 us"]),
        (3.1e-3, ["0.0 ms", "0.5 ms", "1.0 ms", "1.5 ms", "2.0 ms", "2.5 ms", "3.0 ms"]),
        (14e-3, ["0 ms", "2 ms", "4 ms", "6 ms", "8 ms", "10 ms", "12 ms", "14 ms"]),
        (6.0, ["0 s", "1 s", "2 s", "3 s", "4 s", "5 s", "6 s"]),
    ],
)
def test_ticks_stand_at_round_times_in_one_unit(extent, labels):
    axis = Axis(1000.0, 1000.0 + extent, 186, 1378)
    assert [label for _, label in axis.ticks()] == labels


@pytest.mark.parametrize("exponent", range(-6, 4))
@pytest.mark.parametrize("digit", [1, 1.7, 2, 3.3, 5, 9.9])
def test_ticks_are_evenly_spaced_inside_the_axis_and_labels_differ(exponent, digit):
    axis = Axis(0.0, digit * 10.0**exponent, 0, 1000)
    ticks = axis.ticks()
    offsets = [offset for offset, _ in ticks]
    steps = [later - earlier for earlier, later in itertools.pairwise(offsets)]
    assert offsets[0] == 0
    assert offsets[-1] <= 1000.001
    assert min(steps) > 149
    assert max(steps) - min(steps) < 1e-6
    assert len({label for _, label in ticks}) == len(ticks)
