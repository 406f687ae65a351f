"""Bézier curves and elliptical arcs as polygons within a tolerance.

Both functions return the points after the start, up to and including the end. The tolerance is the greatest distance
between curve and polygon, in the points' unit.
"""

import math
from collections.abc import Sequence

import numpy as np

from photonlite.results.rings import XY

# Curves whose control points lie far outside the image would otherwise need millions of points.
_MAX_PIECES = 256


def bezier_points(controls: Sequence[XY], tolerance: float) -> list[XY]:
    """Return points along a Bézier curve through start, 1 or 2 control points, and end.

    The number of pieces is Wang's bound: a curve of degree d whose second differences of control points are at most
    m strays at most d (d - 1) m / (8 n²) from a polygon of n pieces.
    """
    points = np.asarray(controls, dtype=np.float64)  # [d + 1, 2]
    degree = len(points) - 1
    bend = float(np.hypot(*np.diff(points, n=2, axis=0).T).max())
    pieces = math.ceil(math.sqrt(degree * (degree - 1) * bend / (8 * tolerance)))
    t = np.linspace(0.0, 1.0, min(max(pieces, 1), _MAX_PIECES) + 1)[1:, None]
    basis = [math.comb(degree, k) * t**k * (1 - t) ** (degree - k) for k in range(degree + 1)]
    curve = np.hstack(basis) @ points
    return [*((float(x), float(y)) for x, y in curve[:-1]), controls[-1]]


def arc_points(start: XY, arguments: Sequence[float], tolerance: float) -> list[XY]:
    """Return points along an elliptical arc: rx, ry, rotation in degrees, large-arc flag, sweep flag, x, y of the end.

    Follows SVG 2, appendix B.2.4 (endpoint to centre form) and B.2.5 (radii that are zero or too small).
    """
    rx, ry, degrees, large, sweep, *rest = arguments
    end = (rest[0], rest[1])
    rx, ry = abs(rx), abs(ry)
    if math.dist(start, end) < 1e-9 or rx < 1e-9 or ry < 1e-9:
        return [end]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # Half the chord, in the frame in which the ellipse's axes are x and y.
    half_x, half_y = (start[0] - end[0]) / 2, (start[1] - end[1]) / 2
    x, y = cos * half_x + sin * half_y, cos * half_y - sin * half_x
    excess = (x / rx) ** 2 + (y / ry) ** 2
    if excess > 1:
        rx, ry = rx * math.sqrt(excess), ry * math.sqrt(excess)
    distance = math.sqrt(max(0.0, 1 / min(excess, 1.0) - 1)) * (-1 if large == sweep else 1)
    centre_x, centre_y = distance * rx * y / ry, -distance * ry * x / rx
    first = math.atan2((y - centre_y) / ry, (x - centre_x) / rx)
    turn = math.atan2((-y - centre_y) / ry, (-x - centre_x) / rx) - first
    turn = turn % math.tau if sweep else -(-turn % math.tau)
    # A chord over the angle a lies r (1 - cos(a / 2)) inside a circle of radius r.
    step = 2 * math.acos(max(1 - tolerance / max(rx, ry), 0.0))
    pieces = min(max(math.ceil(abs(turn) / max(step, 1e-9)), 1), _MAX_PIECES)
    middle_x = cos * centre_x - sin * centre_y + (start[0] + end[0]) / 2
    middle_y = sin * centre_x + cos * centre_y + (start[1] + end[1]) / 2
    points = []
    for index in range(1, pieces):
        angle = first + turn * index / pieces
        along, across = rx * math.cos(angle), ry * math.sin(angle)
        points.append((middle_x + cos * along - sin * across, middle_y + sin * along + cos * across))
    return [*points, end]
