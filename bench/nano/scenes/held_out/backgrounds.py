"""Backgrounds of the held-out scenes, drawn with numpy and Pillow; no code is shared with the training generator."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from PIL import Image

from bench.nano.scenes.held_out.drawing import Plane, fractal, mesh, palette, ramp, random_colour, smooth
from bench.nano.scenes.held_out.unseen import bricks, clouds, maze, rings, scribbles, terrain, voronoi

Pixels = npt.NDArray[np.uint8]
Painter = Callable[[np.random.Generator, int, int], Plane]

# Backgrounds are drawn with at most this many pixels on the longer side and enlarged: it bounds the time of a scene.
_DRAWN_SIDE = 720


def paint_background(kind: str, rng: np.random.Generator, width: int, height: int) -> Pixels:
    scale = min(1.0, _DRAWN_SIDE / max(width, height))
    drawn = BACKGROUNDS[kind](rng, max(1, round(height * scale)), max(1, round(width * scale)))
    pixels: Pixels = np.clip(drawn * 255 + 0.5, 0, 255).astype(np.uint8)
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))


def solid(rng: np.random.Generator, height: int, width: int) -> Plane:
    return np.broadcast_to(random_colour(rng), (height, width, 3)).copy()


def gradient(rng: np.random.Generator, height: int, width: int) -> Plane:
    x, y = mesh(height, width, rng.uniform(0, 2 * math.pi))
    if rng.random() < 0.3:
        x = np.hypot(x - rng.uniform(-0.5, 0.5) * width, y - rng.uniform(-0.5, 0.5) * height)
    values = (x - x.min()) / max(float(np.ptp(x)), 1.0)
    return ramp(values, palette(rng, int(rng.integers(2, 4)), 0.5))


def noise(rng: np.random.Generator, height: int, width: int) -> Plane:
    grain = rng.uniform(1, 5)
    strength = rng.uniform(0.04, 0.3)
    planes = [smooth(rng, height, width, height / grain, width / grain) for _ in range(1 if rng.random() < 0.5 else 3)]
    return random_colour(rng) + strength * (2 * np.stack([planes[0], planes[-1], planes[len(planes) // 2]], axis=2) - 1)


def stripes(rng: np.random.Generator, height: int, width: int) -> Plane:
    x, _ = mesh(height, width, rng.choice([0.0, math.pi / 2, rng.uniform(0, math.pi)]))
    count = int(rng.integers(2, 5))
    period = rng.uniform(0.06, 0.4) * min(height, width)
    edges = np.sort(rng.uniform(0, 1, count - 1)) * 0.6 + 0.2
    phase = (x / period + rng.random()) % 1
    return np.asarray(palette(rng, count)[np.searchsorted(edges, phase)])


def checks(rng: np.random.Generator, height: int, width: int) -> Plane:
    x, y = mesh(height, width, rng.choice([0.0, rng.uniform(-0.8, 0.8)]))
    side = rng.uniform(0.05, 0.2) * min(height, width)
    colours = palette(rng, 2)
    across, down = np.floor(x / side) % 2, np.floor(y / side) % 2
    # Gingham crosses half-transparent bands; a chess board takes the exclusive or.
    mix = (across + down) / 2 if rng.random() < 0.5 else np.abs(across - down)
    return np.asarray(colours[0] + mix[..., None] * (colours[1] - colours[0]), np.float32)


def blobs(rng: np.random.Generator, height: int, width: int) -> Plane:
    cells = rng.uniform(2, 7)
    colours = palette(rng, 40, 0.45)[rng.integers(0, 40, (round(cells) + 1, round(cells * 1.3) + 1))]
    small = Image.fromarray((colours * 255).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(small, np.float32) / np.float32(255)


_WOODS = np.array(
    [(0.72, 0.52, 0.33), (0.55, 0.36, 0.20), (0.85, 0.70, 0.50), (0.38, 0.24, 0.15), (0.62, 0.58, 0.52)], np.float32
)


def wood(rng: np.random.Generator, height: int, width: int) -> Plane:
    if upright := rng.random() < 0.3:
        height, width = width, height
    base = _WOODS[rng.integers(len(_WOODS))] * rng.uniform(0.85, 1.1)
    planks = int(rng.integers(1, 8))
    fibre = fractal(rng, height, width, rng.uniform(30, 90), 3, stretch=rng.uniform(12, 30))
    flow = fractal(rng, height, width, rng.uniform(2, 5), 3, stretch=5)
    plank = np.minimum(np.arange(height) * planks // height, planks - 1)
    tint = rng.uniform(-0.09, 0.09, planks).astype(np.float32)[plank][:, None]
    lines = 0.5 + 0.5 * np.sin((flow + rng.random(planks).astype(np.float32)[plank][:, None]) * rng.uniform(20, 60))
    light = 1 + tint + 0.16 * (fibre - 0.5) + 0.12 * (lines - 0.5)
    seams = np.flatnonzero(np.diff(plank))
    light[seams] *= 0.55
    return np.asarray(base * (light.T if upright else light)[..., None], np.float32)


def marble(rng: np.random.Generator, height: int, width: int) -> Plane:
    x, _ = mesh(height, width, rng.uniform(0, math.pi))
    turbulence = fractal(rng, height, width, rng.uniform(2, 5), 5)
    waves = np.abs(np.sin(x / max(height, width) * rng.uniform(3, 12) + turbulence * rng.uniform(5, 10)))
    veins = waves ** rng.uniform(0.2, 0.6)
    ground = [(0.93, 0.92, 0.90), (0.16, 0.17, 0.19), (0.25, 0.38, 0.32), (0.85, 0.75, 0.68)][rng.integers(4)]
    stone = np.array(ground, np.float32)
    vein = np.clip(stone + rng.choice([-1, 1]) * rng.uniform(0.2, 0.45) + rng.uniform(-0.05, 0.05, 3), 0, 1)
    return np.asarray(vein + veins[..., None] * (stone - vein), np.float32)


def cloth(rng: np.random.Generator, height: int, width: int) -> Plane:
    x, y = mesh(height, width, rng.uniform(-0.15, 0.15))
    thread = rng.uniform(3, 7)
    weave = np.sin(x * 2 * math.pi / thread) * np.sin(y * 2 * math.pi / thread)
    folds = fractal(rng, height, width, rng.uniform(1.5, 4), 2)
    light = 0.9 + 0.07 * weave + 0.3 * (folds - 0.5)
    colour = np.broadcast_to(random_colour(rng), (height, width, 3)).copy()
    if rng.random() < 0.5:  # tartan: bands of a second colour both ways
        period = rng.uniform(0.15, 0.4) * min(height, width)
        bands = sum(((axis / period) % 1 < rng.uniform(0.15, 0.5)).astype(np.float32) for axis in (x, y))
        colour += 0.4 * np.asarray(bands, np.float32)[..., None] * (random_colour(rng) - colour)
    return np.asarray(colour * light[..., None], np.float32)


TRAINED_BACKGROUNDS: dict[str, Painter] = {
    paint.__name__: paint for paint in (solid, gradient, noise, stripes, checks, blobs, wood, marble, cloth)
}
"""Kinds that the training generator draws as well, in its own way."""
HELD_OUT_BACKGROUNDS: dict[str, Painter] = {
    paint.__name__: paint for paint in (voronoi, rings, bricks, clouds, terrain, scribbles, maze)
}
"""Kinds that are never trained on."""
BACKGROUNDS = TRAINED_BACKGROUNDS | HELD_OUT_BACKGROUNDS
