import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.results.rings import clip_ring, fill_mask, group_rings, join_rings, signed_area


def square(low, high, clockwise=True):
    ring = [(low, low), (high, low), (high, high), (low, high)]
    return ring if clockwise else ring[::-1]


def winding(rings, x, y):
    """The turns of the rings around a point, by adding up angles; None for a point on an edge."""
    total = 0.0
    for ring in rings:
        for (x0, y0), (x1, y1) in zip(ring, [*ring[1:], ring[0]], strict=True):
            angle = math.remainder(math.atan2(y1 - y, x1 - x) - math.atan2(y0 - y, x0 - x), math.tau)
            if math.pi - abs(angle) < 1e-9:
                return None
            total += angle
    return round(total / math.tau)


def test_fill_takes_the_pixels_whose_centres_are_inside():
    mask = fill_mask([[(1.0, 2.0), (4.0, 2.0), (4.0, 5.0), (1.0, 5.0)]], 6, 7)
    expected = np.zeros((7, 6), dtype=bool)
    expected[2:5, 1:4] = True
    assert np.array_equal(mask, expected)


def test_neighbours_share_no_pixel_and_leave_none_out():
    left, right = [(0, 0), (3.5, 0), (2.5, 8), (0, 8)], [(3.5, 0), (8, 0), (8, 8), (2.5, 8)]
    a, b = fill_mask([left], 8, 8), fill_mask([right], 8, 8)
    assert not (a & b).any()
    assert (a | b).all()


# Off the pixel centres, round which no angle could be told.
vertices = st.tuples(st.integers(-4, 16).map(lambda v: v + 0.21), st.integers(-4, 16).map(lambda v: v + 0.37))


@given(st.lists(st.lists(vertices, min_size=3, max_size=6), min_size=1, max_size=3))
def test_fill_is_the_nonzero_winding_number(rings):
    mask = fill_mask(rings, 12, 10)
    for row, column in np.ndindex(10, 12):
        turns = winding(rings, column + 0.5, row + 0.5)
        assert turns is None or mask[row, column] == (turns != 0)


@pytest.mark.parametrize("rings", [[], [[]], [[(1.0, 1.0)]], [[(50.0, 50.0), (60.0, 50.0), (60.0, 60.0)]]])
def test_fill_of_nothing_is_empty(rings):
    assert not fill_mask([ring for ring in rings if ring], 8, 8).any()


def test_clipping_a_concave_ring_keeps_its_area_inside():
    # A comb whose back lies outside the image.
    comb = [(-0.5, 0.1), (0.5, 0.1), (0.5, 0.3), (-0.3, 0.3), (-0.3, 0.6), (0.5, 0.6), (0.5, 0.8), (-0.5, 0.8)]
    clipped = clip_ring(comb)
    assert all(0 <= value <= 1 for point in clipped for value in point)
    assert signed_area(clipped) == pytest.approx(0.2)


def test_joined_rings_fill_the_same_pixels():
    rings = [square(1, 15), square(4, 9, clockwise=False), [(20, 3), (28, 3), (24, 12)]]
    assert np.array_equal(fill_mask([join_rings(rings)], 32, 16), fill_mask(rings, 32, 16))


def test_rings_are_joined_at_their_nearest_points():
    left, right = [(0, 0), (3, 0), (3, 10), (0, 10)], [(20, 9), (20, 0), (7, 2), (7, 9)]
    far = [(0, 12), (3, 30)]
    assert join_rings([left, right, far]) == [
        *[(0, 0), (3, 0), (3, 10), (7, 9), (20, 9), (20, 0), (7, 2), (7, 9), (3, 10)],
        *[(0, 10), (0, 12), (3, 30), (0, 12), (0, 10)],
    ]
    assert join_rings([]) == []


def test_groups_join_holes_to_their_rings_and_keep_islands_separate():
    outer, hole, island, apart = square(0, 30), square(5, 25, False), square(10, 20), square(40, 50)
    rings = [island, hole, apart, outer]
    groups = group_rings(rings)
    assert sorted(abs(signed_area(group)) for group in groups) == [100, 100, 900 - 400]
    union = np.any([fill_mask([group], 64, 64) for group in groups], axis=0)
    assert np.array_equal(union, fill_mask(rings, 64, 64))


def test_a_ring_in_a_hole_of_the_same_direction_is_filled_again():
    groups = group_rings([square(0, 30), square(5, 25, False), square(10, 20, False)])
    assert sorted(abs(signed_area(group)) for group in groups) == [100, 900 - 400]


def test_a_nested_ring_of_the_same_direction_is_no_hole():
    groups = group_rings([square(0, 30), square(5, 25)])
    assert sorted(signed_area(group) for group in groups) == [400, 900]
