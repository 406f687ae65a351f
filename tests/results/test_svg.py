import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.errors import InputError
from photonlite.results.rings import fill_mask, signed_area
from photonlite.results.svg import arc_points, bezier_points, parse_path, path_to_polygon, path_to_rings

UNIT = {"x_min": 0.0, "y_min": 0.0, "x_max": 1.0, "y_max": 1.0}
CIRCLE = "M 1 .5 A .5 .5 0 1 1 0 .5 A .5 .5 0 1 1 1 .5 Z"
HOLE = "M .75 .5 A .25 .25 0 1 0 .25 .5 A .25 .25 0 1 0 .75 .5 Z"


def area(path, bbox=UNIT):
    return sum(signed_area(ring) for ring in path_to_rings(path, bbox))


def commands(path):
    return [(command.letter, *command.arguments) for command in parse_path(path)]


def test_reads_compact_numbers_and_repeated_groups():
    assert commands("M0-.5.25,1e-1 1 1H.5-1z") == [
        ("M", 0, -0.5),
        ("L", 0.25, 0.1),
        ("L", 1, 1),
        ("H", 0.5),
        ("H", -1),
        ("z",),
    ]
    assert commands("m 0 0 1 1")[1] == ("l", 1, 1)


def test_reads_arc_flags_without_separators():
    assert commands("M0 0a1 .5 30 01.5.25")[1] == ("a", 1, 0.5, 30, 0, 1, 0.5, 0.25)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "   ",
        " , ",
        "L 0 0",
        "M",
        "M 0",
        "M 0 0 L 1",
        "M 0 0 1",
        "M 0 0 X 1 1",
        "M 0 0 L a b",
        "M 0 0 Z 1",
        "M 0 0 A 1 1 0 2 0 1 1",
        "M 0 0 A 1 1 0 1",
        "M 0 0 C 1 1 1 1",
        "M 0 0 H Z",
        "M nan 0",
        "M 0 0 L 1e999 0",
        "M 0 0 L \u0661 0",
        None,
        7,
    ],
)
def test_bad_paths_are_typed_errors(path):
    with pytest.raises(ValueError, match="path") as caught:
        path_to_polygon(path, UNIT)
    assert isinstance(caught.value, InputError)


def test_error_quotes_the_place():
    with pytest.raises(InputError, match=r"at 'X 1 1' \(character 6\)"):
        parse_path("M 0 0 X 1 1")


@pytest.mark.parametrize("bbox", [{}, {"x_min": 0}, {**UNIT, "x_max": math.nan}, {**UNIT, "y_max": "wide"}, None])
def test_bad_boxes_are_typed_errors(bbox):
    with pytest.raises(InputError, match="box"):
        path_to_polygon("M 0 0 L 1 0 L 1 1 Z", bbox)


@given(st.text("MmLlHhVvCcSsQqTtAaZz0123456789.-+e, ", max_size=40))
def test_any_text_is_a_path_or_a_typed_error(text):
    try:
        rings = path_to_rings(text, UNIT)
    except InputError:
        return
    assert all(0 <= value <= 1 for ring in rings for point in ring for value in point)


def test_places_the_path_in_the_box():
    bbox = {"x_min": 0.2, "y_min": 0.4, "x_max": 0.6, "y_max": 0.5}
    polygon = path_to_polygon("M 0 0 L 1 0 L 1 1 L 0.5 0.5 Z", bbox)
    assert polygon == [pytest.approx(p) for p in ([0.2, 0.4], [0.6, 0.4], [0.6, 0.5], [0.4, 0.45])]


@pytest.mark.parametrize(
    ("relative", "absolute"),
    [
        ("m.1.1l.5.2l-.2.4z", "M.1.1L.6.3L.4.7Z"),
        ("m.1.1h.5v.4h-.5z", "M.1.1H.6V.5H.1Z"),
        ("m.1.1c.2-.1.4.3.5.2s.1.5-.3.6z", "M.1.1C.3 0 .5.4.6.3S.7.8.3.9Z"),
        ("m.1.1q.4.1.4.4t-.3.3z", "M.1.1Q.5.2.5.5T.2.8Z"),
        ("m.1.1a.4.3 20 0 1.5.6z", "M.1.1A.4.3 20 0 1.6.7Z"),
        ("m.1.1l.2 0l0 .2zl.2.4l-.2 0z", "M.1.1L.3.1L.3.3ZM.1.1L.3.5L.1.5Z"),
        ("m.1.1l.2 0l0 .2zm.4.4l.2 0l0 .2z", "M.1.1L.3.1L.3.3ZM.5.5L.7.5L.7.7Z"),
    ],
)
def test_relative_commands_mean_the_same_as_absolute_ones(relative, absolute):
    ours, expected = path_to_rings(relative, UNIT), path_to_rings(absolute, UNIT)
    assert [len(ring) for ring in ours] == [len(ring) for ring in expected]
    assert [p for ring in ours for p in ring] == [pytest.approx(p) for ring in expected for p in ring]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (CIRCLE, math.pi / 4),
        ("M 1 .5 A .5 .25 0 1 1 0 .5 A .5 .25 0 1 1 1 .5", math.pi / 8),
        # The smaller part that a chord of a quarter turn cuts off.
        ("M .5 0 A .5 .5 0 0 1 1 .5 Z", 0.25 * (math.pi / 4 - 0.5)),
        # Too small a radius grows until the arc reaches: half a circle over the chord.
        ("M 0 .5 A .1 .1 0 0 1 1 .5 Z", math.pi / 8),
        # A radius of nothing is a straight line.
        ("M 0 0 A 0 1 0 0 1 1 0 L 1 1 Z", 0.5),
        # A parabola over its chord covers two thirds of its control triangle.
        ("M 0 1 Q .5 0 1 1 Z", 1 / 3),
        # The same parabola raised to a cubic.
        ("M 0 1 C .33333333 .33333333 .66666667 .33333333 1 1 Z", 1 / 3),
        # S and T after another kind of curve start with their control point at the pen.
        ("M 0 1 S .66666667 .33333333 1 1 Z", 0.5 * 0.4),
        ("M 0 1 T 1 1 L 1 0 Z", -0.5),
    ],
)
def test_curves_enclose_their_analytic_area(path, expected):
    assert area(path) == pytest.approx(expected, abs=1e-3)


def test_smooth_curves_reflect_the_control_point():
    assert path_to_rings("M0 .5Q.25 0 .5 .5T1 .5V1H0Z", UNIT) == path_to_rings(
        "M0 .5Q.25 0 .5 .5Q.75 1 1 .5V1H0Z", UNIT
    )
    smooth = path_to_rings("M0 .5C0 .2.4 .2.5 .5S1 .8 1 .5V1H0Z", UNIT)[0]
    assert smooth == [pytest.approx(p) for p in path_to_rings("M0 .5C0 .2.4 .2.5 .5C.6 .8 1 .8 1 .5V1H0Z", UNIT)[0]]


def test_smooth_curves_after_another_command_start_straight():
    start = "M0 1Q.25 0 .5 1L.6 1"
    assert path_to_rings(f"{start}T1 .5V1Z", UNIT) == path_to_rings(f"{start}Q.6 1 1 .5V1Z", UNIT)
    assert path_to_rings(f"{start}S.8 .1 1 .5V1Z", UNIT) == path_to_rings(f"{start}C.6 1 .8 .1 1 .5V1Z", UNIT)


def test_tolerance_bounds_the_distance_from_the_curve():
    for tolerance in (1e-2, 1e-3, 1e-4):
        ring = path_to_rings(CIRCLE, UNIT, tolerance)[0]
        middles = [((a[0] + b[0]) / 2, (a[1] + b[1]) / 2) for a, b in pairwise(ring)]
        assert max(0.5 - math.dist(p, (0.5, 0.5)) for p in middles) <= tolerance


def test_rings_are_clipped_to_the_image():
    bbox = {"x_min": 0.5, "y_min": 0.5, "x_max": 1.5, "y_max": 1.5}
    assert area(CIRCLE, bbox) == pytest.approx(math.pi / 16, abs=1e-3)
    assert path_to_polygon("M 2 2 L 3 2 L 3 3 Z", UNIT) == []


def test_polygon_of_a_path_with_a_hole_fills_what_the_path_fills():
    ring = [(x * 200, y * 200) for x, y in path_to_polygon(CIRCLE + HOLE, UNIT)]
    mask = fill_mask([ring], 200, 200)
    assert mask.sum() / 200**2 == pytest.approx(math.pi / 4 - math.pi / 16, abs=2e-3)
    assert not mask[100, 100]


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
def test_an_arc_to_its_own_start_is_one_point(start, end):
    assert arc_points(start, (1.0, 1.0, 0.0, 1, 1, *end), 1e-3) == [end]


def test_endless_curves_have_a_bounded_number_of_points():
    assert len(bezier_points([(0, 0), (1e6, -1e6), (-1e6, 1e6), (1, 1)], 1e-4)) <= 256
    assert len(arc_points((0.0, 0.0), (1e6, 1e6, 0, 1, 1, 1.0, 1.0), 1e-4)) <= 256
