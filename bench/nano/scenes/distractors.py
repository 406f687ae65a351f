"""Distractors: words, signs and line drawings. They are composed like objects and cover them, but are never answers."""

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

COUNT = 96
FONTS = Path("/usr/share/fonts/truetype/dejavu")
_SIDE = 512  # of the canvas, in pixels
_BORDER = 1
_WORDS = (
    "SALE", "OPEN", "Exit", "stop", "No.", "Yes!", "24h", "100%", "7.50", "NEW", "Total", "Name", "Menu", "Ticket",
    "Hello", "PUSH", "pull", "Room", "12", "A4", "2026", "www", "Hotel", "Kiosk", "fresh", "Today", "Monday", "please",
    "wait", "Price", "3,99", "OK?", "left", "right", "over", "under", "Page", "B-17", "x2", "km/h", "Fragile", "enter",
    "THIS", "SIDE", "Notes", "Draft", "Chapter", "one", "two", "three", "apple", "cat", "house",
)  # fmt: skip
_INKS = ((20, 20, 24), (20, 20, 24), (245, 245, 240), (190, 30, 35), (25, 60, 150), (30, 105, 60), (110, 60, 20))

Colour = tuple[int, int, int]
Point = tuple[float, float]
Sprites = npt.NDArray[np.uint8]


class _Page:
    """A canvas of one ink: what is drawn becomes opaque."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.ink = rng, rng.choice(_INKS)
        self.colour = Image.new("RGB", (_SIDE, _SIDE), self.ink)
        self.alpha = Image.new("L", (_SIDE, _SIDE))
        self.draw = ImageDraw.Draw(self.alpha)
        self.thick = rng.randint(14, 34)

    def line(self, *points: Point) -> None:
        self.draw.line(points, fill=255, width=self.thick, joint="curve")

    def at(self, angle: float, radius: float) -> Point:
        """Return the point at an angle (radians) and a distance from the centre, as a share of half the side."""
        half = _SIDE / 2
        return half + 0.9 * half * radius * math.cos(angle), half + 0.9 * half * radius * math.sin(angle)


def draw_distractors(size: int = 128) -> Sprites:
    """Draw all distractors, the same on every machine with the same fonts: straight RGBA, uint8 [96, size, size, 4]."""
    rng = random.Random(0)
    drawings = [_text if place < COUNT // 2 else _DRAWINGS[place % len(_DRAWINGS)] for place in range(COUNT)]
    return np.stack([_drawn(drawing, rng, size) for drawing in drawings])


def _drawn(drawing: Callable[[_Page], None], rng: random.Random, size: int) -> Sprites:
    page = _Page(rng)
    drawing(page)
    bounds = page.alpha.getbbox()
    if bounds is None:
        raise ValueError("nothing was drawn")
    scale = (size - 2 * _BORDER) / max(bounds[2] - bounds[0], bounds[3] - bounds[1])
    width, height = (max(1, round((bounds[i + 2] - bounds[i]) * scale)) for i in range(2))
    sprite = Image.new("RGBA", (size, size), (*page.ink, 0))
    tile = page.colour.resize((width, height), Image.Resampling.BOX, bounds)
    tile.putalpha(page.alpha.resize((width, height), Image.Resampling.BOX, bounds))
    sprite.paste(tile, ((size - width) // 2, (size - height) // 2))
    return np.asarray(sprite)


def _font(rng: random.Random, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    fonts = sorted(path for path in FONTS.glob("*.ttf") if "Math" not in path.name)
    return ImageFont.truetype(str(rng.choice(fonts)), size) if fonts else ImageFont.load_default(size)


def _text(page: _Page) -> None:
    """Write one to three lines of words, a third of them on a sign."""
    rng = page.rng
    lines = [" ".join(rng.choices(_WORDS, k=rng.choice((1, 1, 2)))) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    text, font = "\n".join(lines), _font(rng, 160)
    left, top, right, bottom = page.draw.multiline_textbbox((0, 0), text, font)
    scale = min(1.0, (_SIDE - 80) / max(right - left, bottom - top))
    font = font.font_variant(size=round(160 * scale)) if isinstance(font, ImageFont.FreeTypeFont) else font
    where: dict[str, object] = {"anchor": "mm", "align": rng.choice(("left", "center"))}
    middle = (_SIDE / 2, _SIDE / 2)
    if rng.random() > 1 / 3:
        page.draw.multiline_text(middle, text, 255, font, **where)  # type: ignore[arg-type]
        return
    x0, y0, x1, y1 = page.draw.multiline_textbbox(middle, text, font, **where)  # type: ignore[arg-type]
    sign = (x0 - 24, y0 - 24, x1 + 24, y1 + 24)
    page.draw.rounded_rectangle(sign, rng.choice((0, 12, 40)), fill=255)
    written = ImageDraw.Draw(page.colour)
    paper = (250, 248, 240) if sum(page.ink) < 500 else rng.choice(_INKS[3:])
    if rng.random() < 0.5:
        paper, page.ink = page.ink, paper
    page.colour.paste(paper, (0, 0, _SIDE, _SIDE))
    written.multiline_text(middle, text, page.ink, font, **where)  # type: ignore[arg-type]


def _arrow(page: _Page) -> None:
    turn, bend = page.rng.uniform(0, 2 * math.pi), page.rng.uniform(-0.6, 0.6)
    tip = page.at(turn, 1)
    page.line(page.at(turn + math.pi + bend, 1), page.at(turn + 1, 0.15 * abs(bend)), tip)
    for side in (-0.35, 0.35):
        page.line(tip, page.at(turn + side, 0.6))


def _rings(page: _Page) -> None:
    page.thick = page.rng.randint(8, 16)
    for radius in page.rng.sample((0.35, 0.55, 0.75, 0.95), page.rng.randint(2, 3)):
        corners = (*page.at(1.25 * math.pi, radius * 1.4), *page.at(0.25 * math.pi, radius * 1.4))
        page.draw.ellipse(corners, outline=255, width=page.thick)


def _lattice(page: _Page) -> None:
    rows, columns = page.rng.randint(2, 5), page.rng.randint(2, 5)
    page.thick = page.rng.randint(6, 16)
    low, span = 30, _SIDE - 60
    tall = span * page.rng.uniform(0.4, 1)
    for row in range(rows + 1):
        page.line((low, low + tall * row / rows), (low + span, low + tall * row / rows))
    for column in range(columns + 1):
        page.line((low + span * column / columns, low), (low + span * column / columns, low + tall))


def _scribble(page: _Page) -> None:
    page.thick = page.rng.randint(6, 18)
    points = [
        page.at(page.rng.uniform(0, 2 * math.pi), page.rng.uniform(0.2, 1)) for _ in range(page.rng.randint(5, 9))
    ]
    page.line(*points)


def _wave(page: _Page) -> None:
    height, turns = page.rng.uniform(0.05, 0.25) * _SIDE, page.rng.uniform(2, 6)
    page.line(*((30 + t * 4.5, _SIDE / 2 + height * math.sin(t * turns / 16)) for t in range(100)))


def _spiral(page: _Page) -> None:
    page.thick = page.rng.randint(10, 22)
    turns = page.rng.uniform(2, 4)
    page.line(*(page.at(2 * math.pi * turns * t / 120, t / 120) for t in range(121)))


def _cross(page: _Page) -> None:
    turn, arms = page.rng.uniform(0, math.pi), page.rng.choice((4, 4, 6, 3))
    for arm in range(arms):
        page.line(page.at(0, 0), page.at(turn + 2 * math.pi * arm / arms, 1))


def _tick(page: _Page) -> None:
    page.line((60, 270), (190, 420), (450, page.rng.randint(60, 140)))


def _bars(page: _Page) -> None:
    """Draw a bar code or a bar chart."""
    x, chart = 40.0, page.rng.random() < 0.4
    while x < _SIDE - 60:
        wide = page.rng.uniform(30, 60) if chart else page.rng.uniform(5, 24)
        top = page.rng.uniform(80, 400) if chart else 130
        page.draw.rectangle((x, top, x + wide, 420), fill=255)
        x += wide + page.rng.uniform(8, 24)


def _bracket(page: _Page) -> None:
    high, deep = page.rng.uniform(150, 230), page.rng.uniform(40, 140)
    x, y = _SIDE / 2, _SIDE / 2
    if page.rng.random() < 0.5:
        page.line((x + deep, y - high), (x, y - high), (x, y + high), (x + deep, y + high))
    else:
        page.draw.arc((x - deep, y - high, x + deep, y + high), 100, 260, fill=255, width=page.thick)


def _frame(page: _Page) -> None:
    """Draw a dashed or a drawn-out frame, or a speech bubble."""
    left, top, right, bottom = 40.0, page.rng.uniform(60, 160), 470.0, page.rng.uniform(320, 400)
    page.thick = page.rng.randint(8, 18)
    if page.rng.random() < 0.5:
        page.draw.rounded_rectangle((left, top, right, bottom), 50, outline=255, width=page.thick)
        page.line((150, bottom), (120, bottom + 80), (230, bottom))
        return
    for x in range(int(left), int(right), 56):
        page.line((x, top), (x + 30, top))
        page.line((x, bottom), (x + 30, bottom))
    for y in range(int(top), int(bottom), 56):
        page.line((left, y), (left, min(y + 30, bottom)))
        page.line((right, y), (right, min(y + 30, bottom)))


def _lines(page: _Page) -> None:
    """Draw what looks like a paragraph from afar."""
    page.thick = page.rng.randint(10, 22)
    for row in range(page.rng.randint(3, 6)):
        page.line((40, 60 + 75 * row), (page.rng.uniform(250, 470), 60 + 75 * row))


def _stand(page: _Page) -> None:
    """Draw legs that spread from a head: a tripod, an easel, a trestle."""
    page.thick = page.rng.randint(8, 20)
    legs, x, y = page.rng.randint(2, 4), _SIDE / 2, page.rng.uniform(90, 200)
    wide = page.rng.uniform(70, 220)
    for leg in range(legs):
        spread = 2 * leg / (legs - 1) - 1
        page.line((x, y), (x + wide * (spread + page.rng.uniform(-0.15, 0.15)), page.rng.uniform(430, 480)))
    if page.rng.random() < 0.7:
        half, high = page.rng.uniform(20, 90), page.rng.uniform(20, 60)
        page.draw.rectangle((x - half, y - high, x + half, y + high / 2), fill=255)
    if page.rng.random() < 0.4:
        level = page.rng.uniform(280, 380)
        page.line((x - wide / 2, level), (x + wide / 2, level))


_DRAWINGS = (
    _arrow, _rings, _lattice, _scribble, _wave, _spiral, _cross, _tick, _bars, _bracket, _frame, _lines, _stand,
)  # fmt: skip
