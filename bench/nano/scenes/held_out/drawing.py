"""Colours, ramps and noise from which the backgrounds of held-out scenes and demo images are drawn."""

import colorsys
import math

import numpy as np
import numpy.typing as npt
from PIL import Image

Plane = npt.NDArray[np.float32]


def random_colour(rng: np.random.Generator) -> Plane:
    """Draw an RGB colour in [0, 1]: mostly muted, sometimes vivid, sometimes near black or white."""
    saturation, value = [
        (rng.uniform(0.0, 0.15), rng.uniform(0.05, 1.0)),  # neutral
        (rng.uniform(0.1, 0.45), rng.uniform(0.7, 1.0)),  # pastel
        (rng.uniform(0.2, 0.7), rng.uniform(0.15, 0.6)),  # dark
        (rng.uniform(0.5, 1.0), rng.uniform(0.5, 1.0)),  # vivid
    ][rng.choice(4, p=[0.25, 0.35, 0.2, 0.2])]
    return np.array(colorsys.hsv_to_rgb(rng.random(), saturation, value), np.float32)


def palette(rng: np.random.Generator, count: int, spread: float = 0.35) -> Plane:
    """Return colours that go together, [count, 3]: one base with its neighbours `spread` away, or unrelated ones."""
    if rng.random() < 0.3:
        return np.stack([random_colour(rng) for _ in range(count)])
    base = random_colour(rng)
    return np.clip(base + rng.uniform(-spread, spread, (count, 3)), 0, 1).astype(np.float32)


def mesh(height: int, width: int, angle: float = 0.0) -> tuple[Plane, Plane]:
    """Return x and y of every pixel, [height, width] each, turned by `angle` radians around the middle."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    x, y = x - width / 2, y - height / 2
    cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    return x * cos + y * sin, y * cos - x * sin


def smooth(rng: np.random.Generator, height: int, width: int, rows: float, columns: float) -> Plane:
    """Return random values in [0, 1] on a coarse grid, smoothly enlarged to [height, width]."""
    grid = rng.random((max(2, round(rows)), max(2, round(columns))), dtype=np.float32)
    return np.asarray(Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC))


def fractal(
    rng: np.random.Generator, height: int, width: int, cells: float, octaves: int, stretch: float = 1.0
) -> Plane:
    """Return a sum of smooth noise of doubling frequency and halving weight, stretched to [0, 1], [height, width]."""
    total = np.zeros((height, width), np.float32)
    longer = max(height, width)
    for octave in range(octaves):
        bumps = cells * 2**octave
        rows, columns = bumps * height / longer, bumps * width / longer / stretch
        total += smooth(rng, height, width, min(rows, height), min(columns, width)) / 2**octave
    low, high = total.min(), total.max()
    return np.asarray((total - low) / max(high - low, 1e-6), np.float32)


def ramp(values: Plane, colours: Plane) -> Plane:
    """Look up a colour ramp [n, 3] at values in [0, 1]: [..., 3]."""
    steps = np.linspace(0, 255, len(colours))
    table = np.stack([np.interp(np.arange(256), steps, colours[:, channel]) for channel in range(3)], axis=1)
    picked: Plane = table.astype(np.float32)[np.clip(values * 255, 0, 255).astype(np.uint8)]
    return picked
