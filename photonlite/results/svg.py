"""SVG path data: parsing, flattening to polygons, placing into an image.

The grammar is that of SVG 2, section 9.3 (https://www.w3.org/TR/SVG2/paths.html): commands M L H V C S Q T A Z in
absolute (capital) and relative form, repeated argument groups, compact numbers and arc flags. The coordinates of a
segment's path are relative to its box: (0, 0) is the box's top-left corner and (1, 1) its bottom-right corner.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from photonlite.errors import InputError
from photonlite.results.curves import arc_points, bezier_points
from photonlite.results.rings import XY, Ring, clip_ring, join_rings

# A curve may stray this far from its polygon, in units of the box: under a third of a pixel in a box of 1000 pixels.
TOLERANCE = 2.5e-4

_ARITY = {"M": 2, "L": 2, "H": 1, "V": 1, "C": 6, "S": 4, "Q": 4, "T": 2, "A": 7, "Z": 0}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_FLAG = re.compile(r"[01]")
_SEPARATOR = re.compile(r"[\s,]*", re.ASCII)
# Larger numbers are no coordinates of an image, and their squares would overflow.
_MAX_NUMBER = 1e6


class Command(NamedTuple):
    """A drawing command; a capital letter is absolute, a small one relative."""

    letter: str
    arguments: tuple[float, ...]


def parse_path(path: str) -> list[Command]:
    """Parse path data such as "M 0 0 L 1 0.5 .2-.1 Z" into commands, one per argument group.

    A repeated group keeps its letter, but a group that follows M (m) is an L (l).

    Raises:
        InputError: The text is empty or not path data; the message quotes the position.
    """
    if not isinstance(path, str) or _skip(path, 0) == len(path):
        raise InputError("The path is empty. Give SVG path data, for example 'M 0 0 L 1 0 L 1 1 Z'.")
    commands = list(_commands(path))
    if commands[0].letter not in "Mm":
        raise _bad(path, 0, "a path starts with M or m")
    return commands


def path_to_rings(path: str, bbox: Mapping[str, float], tolerance: float = TOLERANCE) -> list[Ring]:
    """Flatten a box-relative path to the closed outlines it draws, in image coordinates.

    Args:
        path: SVG path data, relative to the box.
        bbox: `x_min`, `y_min`, `x_max`, `y_max` in image coordinates [0, 1].
        tolerance: Greatest distance between a curve and its polygon, in units of the box.

    Returns:
        One ring per subpath, clipped to the image: a list of (x, y) in [0, 1], the last vertex joined to the first.
        Subpaths with fewer than three vertices there are left out. The filled area is where the rings' winding
        number is not zero, as SVG has it; holes are rings of the opposite direction.

    Raises:
        InputError: The path is not path data, or the box lacks a side or has one that is not finite.
    """
    left, top, right, bottom = _sides(bbox)
    width, height = right - left, bottom - top
    pen = _Pen(tolerance)
    for command in parse_path(path):
        pen.draw(command)
    rings = []
    for subpath in pen.rings:
        placed = clip_ring([(left + x * width, top + y * height) for x, y in subpath])
        if len(placed) >= 3:
            rings.append(placed)
    return rings


def path_to_polygon(path: str, bbox: Mapping[str, float], tolerance: float = TOLERANCE) -> list[list[float]]:
    """Flatten a box-relative path to one polygon in image coordinates.

    A path of several subpaths (holes, separate pieces) becomes one polygon too: bridges of no width join the
    pieces, so that filling the polygon fills what the path fills.

    Args:
        path: SVG path data, relative to the box.
        bbox: `x_min`, `y_min`, `x_max`, `y_max` in image coordinates [0, 1].
        tolerance: Greatest distance between a curve and its polygon, in units of the box.

    Returns:
        `[[x, y], ...]` in [0, 1], closed implicitly; empty where nothing of the path is inside the image.

    Raises:
        InputError: The path is not path data, or the box lacks a side or has one that is not finite.
    """
    return [[x, y] for x, y in join_rings(path_to_rings(path, bbox, tolerance))]


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
        kind = command.letter.upper()
        numbers = self._absolute(command)
        points = list(zip(numbers[0::2], numbers[1::2], strict=True)) if kind in "MLCSQT" else []
        if kind in "MZ":
            self.at = self.start = points[0] if points else self.start
            self.drawing = False
        elif kind == "H":
            self._extend([(numbers[0], self.at[1])])
        elif kind == "V":
            self._extend([(self.at[0], numbers[0])])
        elif kind == "L":
            self._extend(points)
        elif kind == "A":
            self._extend(arc_points(self.at, numbers, self.tolerance))
        else:
            self._curve(kind, points)
        self.previous = kind

    def _curve(self, kind: str, points: list[XY]) -> None:
        if kind in "ST":
            points = [self._reflected("CS" if kind == "S" else "QT"), *points]
        self.control = points[-2]
        self._extend(bezier_points([self.at, *points], self.tolerance))

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

    def _absolute(self, command: Command) -> list[float]:
        numbers, (x, y) = list(command.arguments), self.at
        match command.letter:
            case "h":
                return [numbers[0] + x]
            case "v":
                return [numbers[0] + y]
            case "a":
                return [*numbers[:5], numbers[5] + x, numbers[6] + y]
            case letter if letter.islower():
                return [number + (y if index % 2 else x) for index, number in enumerate(numbers)]
        return numbers
