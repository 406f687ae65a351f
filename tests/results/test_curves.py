import math

import pytest

from photonlite.results.curves import arc_points, bezier_points


@pytest.mark.parametrize("controls", [[(0, 0), (0.5, 1), (1, 0)], [(0, 0), (0, 1), (1, 1), (1, 0)]])
def test_bezier_ends_where_it_should_and_stays_within_its_controls(controls):
    points = bezier_points(controls, 1e-3)
    assert points[-1] == controls[-1]
    assert points[0] != controls[0]
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in points)


def test_a_straight_curve_is_one_piece():
    assert bezier_points([(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)], 1e-3) == [(1.0, 1.0)]


def test_an_arc_stays_on_its_turned_ellipse():
    points = arc_points((0.0, 0.0), (0.5, 0.25, 30.0, 0, 1, 0.4, 0.2), 1e-3)
    assert points[-1] == (0.4, 0.2)
    # Both ends and two points between determine the centre: all distances in the ellipse's frame must agree.
    cos, sin = math.cos(math.radians(30)), math.sin(math.radians(30))
    flat = [((cos * x + sin * y) / 0.5, (cos * y - sin * x) / 0.25) for x, y in [(0.0, 0.0), *points]]
    (ax, ay), (bx, by), (cx, cy) = flat[0], flat[len(flat) // 2], flat[-1]
    d = 2 * (ax * (by - cy) + bx * (cy - ay) + cx * (ay - by))
    ux = ((ax**2 + ay**2) * (by - cy) + (bx**2 + by**2) * (cy - ay) + (cx**2 + cy**2) * (ay - by)) / d
    uy = ((ax**2 + ay**2) * (cx - bx) + (bx**2 + by**2) * (ax - cx) + (cx**2 + cy**2) * (bx - ax)) / d
    assert [math.dist(point, (ux, uy)) for point in flat] == pytest.approx([1.0] * len(flat))


@pytest.mark.parametrize(("start", "end"), [((0.5, 0.5), (0.5, 0.5)), ((0.0, 0.0), (1e-200, 0.0))])
def test_an_arc_to_where_it_is_goes_nowhere(start, end):
    assert arc_points(start, (1.0, 1.0, 0.0, 1, 1, *end), 1e-3) == [end]


def test_endless_curves_have_a_bounded_number_of_points():
    assert len(bezier_points([(0, 0), (1e6, -1e6), (-1e6, 1e6), (1, 1)], 1e-4)) <= 256
    assert len(arc_points((0.0, 0.0), (1e6, 1e6, 0, 1, 1, 1.0, 1.0), 1e-4)) <= 256
