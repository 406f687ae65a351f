"""Words, drawings and specks of held-out scenes, which are no objects; the training generator has code of its own."""

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bench.nano.scenes.held_out.drawing import random_colour
from bench.nano.scenes.sprites import Sprites

_SIDE = 256
_SYLLABLES = ("ba", "co", "da", "el", "fi", "go", "hu", "in", "lo", "mi", "nu", "or", "pe", "su", "ti", "yo", "zi")


def draw_clutter(rng: np.random.Generator) -> Sprites:
    """Draw a word, a number, a note, or a drawing of lines: straight RGBA, uint8 [256, 256, 4]."""
    draw = (_word, _word, _note, _polyline, _comb, _loop)[rng.integers(6)]
    alpha = Image.new("L", (_SIDE, _SIDE))
    draw(rng, ImageDraw.Draw(alpha))
    colour = np.broadcast_to(np.array(_ink(rng), np.uint8), (_SIDE, _SIDE, 3))
    return np.dstack([colour, np.asarray(alpha)])


def sprinkle(rng: np.random.Generator, image: Image.Image) -> None:
    """Strew specks and strokes over an image, too small to be taken for an object."""
    draw, short = ImageDraw.Draw(image), min(image.size)
    inks = [_ink(rng) for _ in range(4)]
    for _ in range(int(rng.integers(0, 60))):
        x, y = rng.random(2) * image.size
        length, turn = rng.uniform(0.005, 0.03) * short, rng.uniform(0, 2 * math.pi)
        end = x + length * math.cos(turn), y + length * math.sin(turn)
        draw.line([(x, y), end], fill=inks[rng.integers(4)], width=max(1, round(0.004 * short)))


def _ink(rng: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = (round(255 * float(channel)) for channel in random_colour(rng))
    return red, green, blue


def _written(rng: np.random.Generator) -> str:
    if rng.random() < 0.25:
        return str(rng.integers(10 ** int(rng.integers(1, 6))))
    word = "".join(rng.choice(_SYLLABLES, int(rng.integers(1, 5))))
    return str([word, word.upper(), word.capitalize()][rng.integers(3)])


def _word(rng: np.random.Generator, draw: ImageDraw.ImageDraw) -> None:
    text = _written(rng)
    size = min(150, 1.6 * (_SIDE - 20) / max(1, len(text)))
    draw.text((_SIDE / 2, _SIDE / 2), text, 255, ImageFont.load_default(size), anchor="mm")


def _note(rng: np.random.Generator, draw: ImageDraw.ImageDraw) -> None:
    """Cut words out of a plate: what is behind shows through them."""
    high = rng.uniform(50, 100)
    draw.rounded_rectangle((8, _SIDE / 2 - high, _SIDE - 8, _SIDE / 2 + high), rng.uniform(0, 30), fill=255)
    for row in (-0.5, 0.5):
        where = _SIDE / 2, _SIDE / 2 + row * high
        text = _written(rng)
        size = min(0.8 * high, 1.4 * (_SIDE - 40) / max(1, len(text)))
        draw.text(where, text, 0, ImageFont.load_default(size), anchor="mm")


def _polyline(rng: np.random.Generator, draw: ImageDraw.ImageDraw) -> None:
    points = [(float(x), float(y)) for x, y in rng.uniform(15, _SIDE - 15, (int(rng.integers(3, 6)), 2))]
    draw.line(points, fill=255, width=int(rng.integers(6, 16)), joint="curve")


def _comb(rng: np.random.Generator, draw: ImageDraw.ImageDraw) -> None:
    teeth, wide = int(rng.integers(4, 9)), int(rng.integers(6, 12))
    draw.line([(20, 60), (_SIDE - 20, 60)], fill=255, width=wide)
    for x in np.linspace(24, _SIDE - 24, teeth):
        draw.line([(x, 60), (x, rng.uniform(100, _SIDE - 20))], fill=255, width=wide)


def _loop(rng: np.random.Generator, draw: ImageDraw.ImageDraw) -> None:
    """Draw a curve that crosses itself."""
    t = np.linspace(0, 2 * math.pi, 90)
    a, b = rng.permutation([1, 2, 3])[:2]
    x, y = (_SIDE / 2 + 0.42 * _SIDE * np.sin(n * t + rng.uniform(0, 2)) for n in (a, b))
    draw.line([*zip(x.tolist(), y.tolist(), strict=True)], fill=255, width=int(rng.integers(5, 14)), joint="curve")
