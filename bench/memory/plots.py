"""Charts of lines as PNG, drawn with Pillow at twice the density of a plain screen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from PIL import Image, ImageDraw

from photonlite.observe.timeline import FADED, GRID, INK, PAPER
from photonlite.results.drawing.style import Color, load_font

# Okabe and Ito's colours, which colour-blind readers can tell apart.
PALETTE: tuple[Color, ...] = (
    (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233), (90, 90, 90),
)  # fmt: skip

_WIDTH, _HEIGHT, _GAP, _MARGIN = 620, 400, 130, 40
_LEFT = 90
_TITLE, _NAME, _TEXT = (load_font(size, None) for size in (34, 26, 22))


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    color: Color
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    marked: bool = False  # with a dot at each point


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    x: str
    y: str
    lines: Sequence[Line]
    logarithmic: bool = False  # the x axis, by decades


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw panels side by side, with one legend for all of them."""
    names = {line.name: line for panel in panels for line in panel.lines}
    width = 2 * _MARGIN + len(panels) * (_WIDTH + _LEFT) + (len(panels) - 1) * (_GAP - _LEFT)
    places = _legend_places(list(names), width - 2 * _MARGIN)
    top = _MARGIN + 60 + 40 * (places[-1][1] + 1)
    image = Image.new("RGB", (width, top + 70 + _HEIGHT + 110), PAPER)
    pen = ImageDraw.Draw(image)
    pen.text((_MARGIN, _MARGIN), title, INK, _TITLE, anchor="lt")
    for line, (column, row) in zip(names.values(), places, strict=True):
        x, y = _MARGIN + column, _MARGIN + 76 + 40 * row
        _stroke(pen, [(x, y), (x + 44, y)], line)
        pen.text((x + 56, y), line.name, INK, _TEXT, anchor="lm")
    for index, panel in enumerate(panels):
        _draw_panel(pen, panel, _MARGIN + _LEFT + index * (_WIDTH + _GAP), top + 70)
    image.save(path, "PNG", dpi=(144, 144), optimize=True)


def _draw_panel(pen: ImageDraw.ImageDraw, panel: Panel, left: int, top: int) -> None:
    points = [point for line in panel.lines for point in line.points]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = (min(xs), max(xs)) if panel.logarithmic else (min(0.0, *xs), max(xs))
    tall = max(ys) * 1.06 or 1.0

    def column(x: float) -> float:
        if panel.logarithmic:
            return left + _WIDTH * math.log(x / low) / math.log(high / low)
        return left + _WIDTH * (x - low) / (high - low)

    def row(y: float) -> float:
        return top + _HEIGHT * (1 - y / tall)

    pen.text((left, top - 44), panel.title, INK, _NAME, anchor="lt")
    for value in _round_values(0.0, tall):
        pen.line([(left, row(value)), (left + _WIDTH, row(value))], GRID, 2)
        pen.text((left - 12, row(value)), _shown(value), FADED, _TEXT, anchor="rm")
    for value in _decades(low, high) if panel.logarithmic else _round_values(low, high):
        pen.line([(column(value), top), (column(value), top + _HEIGHT)], GRID, 2)
        pen.text((column(value), top + _HEIGHT + 12), _shown(value), FADED, _TEXT, anchor="mt")
    pen.text((left + _WIDTH / 2, top + _HEIGHT + 52), panel.x, INK, _TEXT, anchor="mt")
    pen.text((left + _WIDTH, top - 38), panel.y, FADED, _TEXT, anchor="rt")
    for line in panel.lines:
        places = [(column(x), row(y)) for x, y in line.points]
        _stroke(pen, places, line)
        for x, y in places if line.marked else ():
            pen.ellipse((x - 6, y - 6, x + 6, y + 6), line.color)
    pen.line([(left, top + _HEIGHT), (left + _WIDTH, top + _HEIGHT)], INK, 2)


def _stroke(pen: ImageDraw.ImageDraw, places: Sequence[tuple[float, float]], line: Line) -> None:
    if not line.dashed:
        pen.line(list(places), line.color, 4, joint="curve")
        return
    drawn = 0.0
    for (x0, y0), (x1, y1) in pairwise(places):
        length = math.hypot(x1 - x0, y1 - y0)
        steps = max(1, int(length / 2))
        for step in range(steps):
            if drawn % 20 < 12:
                a, b = step / steps, (step + 1) / steps
                ends = [(x0 + a * (x1 - x0), y0 + a * (y1 - y0)), (x0 + b * (x1 - x0), y0 + b * (y1 - y0))]
                pen.line(ends, line.color, 4)
            drawn += length / steps


def _round_values(low: float, high: float) -> list[float]:
    """Return some five round values between two."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough)
    first = math.ceil(low / step)
    return [step * index for index in range(first, math.floor(high / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [value for value in values if low <= value <= high]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def _legend_places(names: Sequence[str], room: int) -> list[tuple[int, int]]:
    """Return columns and lines of a legend's entries."""
    places, column, line = [], 0, 0
    for name in names:
        width = 56 + math.ceil(_TEXT.getlength(name)) + 40
        if column and column + width > room:
            column, line = 0, line + 1
        places.append((column, line))
        column += width
    return places
