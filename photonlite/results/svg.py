"""SVG path data: parsing, flattening to polygons, placing into an image.

The grammar is that of SVG 2, section 9.3 (https://www.w3.org/TR/SVG2/paths.html): commands M L H V C S Q T A Z in
absolute (capital) and relative form, repeated argument groups, compact numbers and arc flags. The coordinates of a
segment's path are relative to its box: (0, 0) is the box's top-left corner and (1, 1) its bottom-right corner.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from photonlite.errors import InputError
from photonlite.results.rings import XY, Ring, clip_ring, join_rings

# A curve may stray this far from its polygon, in units of the box: under a third of a pixel in a box of 1000 pixels.
TOLERANCE = 2.5e-4

_ARITY = {"M": 2, "L": 2, "H": 1, "V": 1, "C": 6, "S": 4, "Q": 4, "T": 2, "A": 7, "Z": 0}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FLAG = re.compile(r"[01]")
_SEPARATOR = re.compile(r"[\s,]*", re.ASCII)
# Curves whose control points lie far outside the image would otherwise need millions of points.
_MAX_PIECES = 256
# Larger numbers are no coordinates of an image, and their squares would overflow.
_MAX_NUMBER = 1e6


class Command(NamedTuple):
    """A drawing command; a capital letter is absolute, a small one relative."""

    letter: str
    arguments: tuple[float, ...]


def parse_path(path: str) -> list[Command]:
    """Parse path data such as "M 0 0 L 1 0.5 .2-.1 Z" into commands, one per argument group; raises an InputError.

    A repeated group keeps its letter, but a group that follows M (m) is an L (l).
    """
    if not isinstance(path, str) or _skip(path, 0) == len(path):
        raise InputError("The path is empty. Give SVG path data, for example 'M 0 0 L 1 0 L 1 1 Z'.")
    commands = list(_commands(path))
    if commands[0].letter not in "Mm":
        raise _bad(path, 0, "a path starts with M or m")
    return commands


def path_to_rings(path: str, bbox: Mapping[str, float], tolerance: float = TOLERANCE) -> list[Ring]:
    """Flatten a box-relative path to closed outlines in image coordinates [0, 1], clipped to the image.

    Filled where the winding number is not zero, as in SVG; holes run in the opposite direction. `tolerance` is the
    greatest distance between a curve and its polygon, in units of the box. Raises an InputError.
    """
    left, top, right, bottom = _sides(bbox)
    width, height = right - left, bottom - top
    pen = _Pen(tolerance)
    for command in parse_path(path):
        pen.draw(command)
    placed = (clip_ring([(left + x * width, top + y * height) for x, y in subpath]) for subpath in pen.rings)
    return [ring for ring in placed if len(ring) >= 3]


def path_to_polygon(path: str, bbox: Mapping[str, float]) -> list[list[float]]:
    """Flatten a box-relative path to one polygon `[[x, y], ...]` in [0, 1], closed implicitly; see `path_to_rings`.

    Bridges of no width join subpaths, so that it fills what the path fills; empty where nothing is inside the image.
    """
    return [[x, y] for x, y in join_rings(path_to_rings(path, bbox))]


def _commands(path: str) -> Iterator[Command]:
    position = _skip(path, 0)
    while position < len(path):
        letter = path[position]
        arity = _ARITY.get(letter.upper())
        if arity is None:
            raise _bad(path, position, "a command letter (M L H V C S Q T A Z) belongs here")
        position = _skip(path, position + 1)
        first = True
        while first or (arity and position < len(path) and _NUMBER.match(path, position)):
            arguments, position = _arguments(path, position, letter, arity)
            yield Command(letter if first else {"M": "L", "m": "l"}.get(letter, letter), arguments)
            first = False


def _arguments(path: str, position: int, letter: str, arity: int) -> tuple[tuple[float, ...], int]:
    values = []
    for index in range(arity):
        # The two flags of an arc may stand without separators: "a1 1 0 01.5.5".
        flag = letter in "Aa" and index in (3, 4)
        match = (_FLAG if flag else _NUMBER).match(path, position)
        if match is None:
            raise _bad(path, position, f"{letter} takes {arity} numbers, and number {index + 1} belongs here")
        value = float(match.group())
        if not abs(value) <= _MAX_NUMBER:
            raise _bad(path, position, f"the largest number of a path is {_MAX_NUMBER:g}")
        values.append(value)
        position = _skip(path, match.end())
    return tuple(values), position


def _skip(path: str, position: int) -> int:
    match = _SEPARATOR.match(path, position)
    return match.end() if match else position


def _bad(path: str, position: int, reason: str) -> InputError:
    place = f"'{path[position : position + 20]}'" if position < len(path) else "the end"
    return InputError(f"This is not an SVG path: at {place} (character {position}), {reason}.")


def _sides(bbox: Mapping[str, float]) -> tuple[float, float, float, float]:
    try:
        left, top, right, bottom = (float(bbox[side]) for side in ("x_min", "y_min", "x_max", "y_max"))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"The box {bbox!r} must have the numbers x_min, y_min, x_max and y_max.") from error
    if not all(map(math.isfinite, (left, top, right, bottom))):
        raise InputError(f"The box {bbox!r} has a side that is not a finite number.")
    return left, top, right, bottom


class _Pen:
    """State of drawing: current point, start of the subpath, and the last curve's control point."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.rings: list[Ring] = []
        self.at: XY = (0.0, 0.0)
        self.start: XY = (0.0, 0.0)
        self.control: XY | None = None
        self.previous = ""
        self.drawing = False

    def draw(self, command: Command) -> None:
        kind, numbers = command.letter.upper(), command.arguments
        x, y = self.at if command.letter.islower() else (0.0, 0.0)
        pairs = numbers[-2:] if kind == "A" else numbers
        if kind == "H":
            points = [(x + numbers[0], self.at[1])]
        elif kind == "V":
            points = [(self.at[0], y + numbers[0])]
        else:
            points = [(x + right, y + down) for right, down in zip(pairs[0::2], pairs[1::2], strict=True)]
        if kind in "MZ":
            self.at = self.start = points[0] if points else self.start
            self.drawing = False
        elif kind in "LHV":
            self._extend(points)
        elif kind == "A":
            self._extend(arc_points(self.at, (*numbers[:5], *points[0]), self.tolerance))
        else:
            if kind in "ST":
                points = [self._reflected("CS" if kind == "S" else "QT"), *points]
            self.control = points[-2]
            self._extend(bezier_points([self.at, *points], self.tolerance))
        self.previous = kind

    def _reflected(self, family: str) -> XY:
        # S reflects the control point of a preceding C or S, T that of Q or T; after others it is the current point.
        if self.control is None or self.previous not in family:
            return self.at
        return 2 * self.at[0] - self.control[0], 2 * self.at[1] - self.control[1]

    def _extend(self, points: list[XY]) -> None:
        if not self.drawing:
            self.rings.append([self.at])
            self.drawing = True
        self.rings[-1].extend(points)
        self.at = self.rings[-1][-1]


def bezier_points(controls: Sequence[XY], tolerance: float) -> list[XY]:
    """Return the points after the start of a Bézier curve through start, 1 or 2 control points, and end.

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
    """Return the points after the start of an elliptical arc, whose arguments are those of the command A.

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
