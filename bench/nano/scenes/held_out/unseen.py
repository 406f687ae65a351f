"""Kinds of background that no training scene has; one function a kind: (rng, height, width) -> RGB in [0, 1].

None draws a closed circle, square, star or heart that stands alone, since those are objects.
"""

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from bench.nano.scenes.held_out.drawing import Plane, fractal, mesh, palette, ramp, random_colour


def voronoi(rng: np.random.Generator, height: int, width: int) -> Plane:
    count = int(rng.integers(12, 50))
    y, x = np.mgrid[:height:2, :width:2].astype(np.float32)
    seeds = rng.random((count, 2), dtype=np.float32) * (height, width)
    nearest = np.full(y.shape, np.inf, np.float32)
    second = nearest.copy()
    owner = np.zeros(y.shape, np.int16)
    for index, (seed_y, seed_x) in enumerate(seeds.astype(np.float32)):
        distance = np.square(y - seed_y) + np.square(x - seed_x)
        closer = distance < nearest
        second = np.where(closer, nearest, np.minimum(second, distance))
        owner[closer] = index
        nearest = np.minimum(nearest, distance)
    cells = palette(rng, count, 0.3)[owner]
    if rng.random() < 0.6:
        gap = np.sqrt(second) - np.sqrt(nearest)
        cells[gap < rng.uniform(2, 6)] = random_colour(rng)
    enlarged = Image.fromarray((cells * 255).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(enlarged, np.float32) / np.float32(255)


def rings(rng: np.random.Generator, height: int, width: int) -> Plane:
    # The centre lies outside of the image, for a whole target would be a dartboard or a circle.
    x, y = mesh(height, width, rng.uniform(0, 2 * math.pi))
    radius = np.hypot(x - np.hypot(width, height) * rng.uniform(0.55, 0.9), y)
    radius += rng.uniform(0, 25) * fractal(rng, height, width, 3, 2)
    period = rng.uniform(0.08, 0.3) * min(height, width)
    colours = palette(rng, int(rng.integers(2, 5)))
    return np.asarray(colours[(radius / period).astype(np.int32) % len(colours)])


def bricks(rng: np.random.Generator, height: int, width: int) -> Plane:
    y, x = np.mgrid[:height, :width].astype(np.float32)
    tall = rng.uniform(0.05, 0.12) * min(height, width)
    wide, joint = tall * rng.uniform(2.2, 3.2), max(1.5, tall * rng.uniform(0.06, 0.14))
    row = (y / tall).astype(np.int32)
    along = x + (row % 2) * wide / 2
    column = (along / wide).astype(np.int32)
    fired = [(0.62, 0.28, 0.20), (0.75, 0.68, 0.60), (0.42, 0.42, 0.45), (0.55, 0.42, 0.30)][rng.integers(4)]
    tints = 1 + rng.uniform(-0.18, 0.18, (row.max() + 1, column.max() + 1)).astype(np.float32)
    wall = np.array(fired, np.float32) * tints[row, column][..., None]
    wall[(y % tall < joint) | (along % wide < joint)] = np.array((0.72, 0.70, 0.66)) * rng.uniform(0.5, 1.15)
    grain = fractal(rng, height, width, 60, 3)
    return np.asarray(wall * (0.85 + 0.3 * grain[..., None]), np.float32)


def clouds(rng: np.random.Generator, height: int, width: int) -> Plane:
    cover = np.clip((fractal(rng, height, width, rng.uniform(2, 5), 6) - rng.uniform(0.3, 0.55)) * 2.5, 0, 1)
    top, bottom = np.array((0.20, 0.42, 0.78)), np.array((0.62, 0.80, 0.95))
    if rng.random() < 0.3:
        top, bottom = np.array((0.25, 0.18, 0.40)), np.array((0.98, 0.62, 0.42))
    sky = top + np.linspace(0, 1, height)[:, None, None] * (bottom - top)
    return np.asarray(sky + cover[..., None] * (0.96 - sky), np.float32)


def terrain(rng: np.random.Generator, height: int, width: int) -> Plane:
    ground = fractal(rng, height, width, rng.uniform(2, 5), 6)
    ramps = (
        [(0.1, 0.25, 0.5), (0.2, 0.45, 0.65), (0.85, 0.8, 0.6), (0.35, 0.55, 0.25), (0.25, 0.4, 0.2), (0.5, 0.45, 0.4)],
        [(0.55, 0.35, 0.2), (0.8, 0.6, 0.4), (0.9, 0.78, 0.58), (0.65, 0.45, 0.3)],
        [(0.15, 0.22, 0.12), (0.3, 0.42, 0.2), (0.45, 0.5, 0.28), (0.55, 0.55, 0.5)],
    )
    slope_y, slope_x = np.gradient(ground)
    light = np.asarray(1 + (slope_x + slope_y) * rng.uniform(6, 16)).clip(0.5, 1.4)
    colours = np.array(ramps[rng.integers(len(ramps))], np.float32)
    return np.asarray(ramp(ground, colours) * light[..., None], np.float32)


def scribbles(rng: np.random.Generator, height: int, width: int) -> Plane:
    colours = palette(rng, 6, 0.5)
    page = Image.new("RGB", (width, height), _rgb(colours[0]))
    draw = ImageDraw.Draw(page)
    short = min(height, width)
    for _ in range(int(rng.integers(6, 26))):
        turns = np.cumsum(rng.normal(0, 0.35, 60)) + rng.uniform(0, 2 * math.pi)
        steps = rng.uniform(0.01, 0.05) * short
        start = rng.random(2) * (width, height)
        path = start + np.cumsum(np.stack([np.cos(turns), np.sin(turns)], axis=1) * steps, axis=0)
        thick = max(1, round(rng.uniform(0.003, 0.025) * short))
        draw.line([*map(tuple, path)], fill=_rgb(colours[rng.integers(1, 6)]), width=thick, joint="curve")
    return np.asarray(page.filter(ImageFilter.GaussianBlur(0.6)), np.float32) / np.float32(255)


def maze(rng: np.random.Generator, height: int, width: int) -> Plane:
    side = max(8, int(rng.uniform(0.05, 0.12) * min(height, width)))
    rows, columns = height // side + 1, width // side + 1
    ground, wall = random_colour(rng), random_colour(rng)
    page = Image.new("RGB", (width, height), _rgb(ground))
    draw = ImageDraw.Draw(page)
    thick = max(2, round(side * rng.uniform(0.08, 0.3)))
    opened = _spanning_tree(rng, rows, columns)
    for row in range(rows):
        for column in range(columns):
            x, y = column * side, row * side
            if (row, column, "right") not in opened:
                draw.line([(x + side, y), (x + side, y + side)], fill=_rgb(wall), width=thick)
            if (row, column, "down") not in opened:
                draw.line([(x, y + side), (x + side, y + side)], fill=_rgb(wall), width=thick)
    return np.asarray(page, np.float32) / np.float32(255)


def _spanning_tree(rng: np.random.Generator, rows: int, columns: int) -> set[tuple[int, int, str]]:
    """Walk the grid depth first and give the passages: (row, column, side that is open)."""
    opened: set[tuple[int, int, str]] = set()
    visited = {(0, 0)}
    path = [(0, 0)]
    draws = iter(rng.random(4 * rows * columns))
    while path:
        row, column = path[-1]
        around = [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        free = [(r, c) for r, c in around if 0 <= r < rows and 0 <= c < columns and (r, c) not in visited]
        if not free:
            path.pop()
            continue
        step = free[int(next(draws) * len(free))]
        opened.add((min(row, step[0]), min(column, step[1]), "down" if step[1] == column else "right"))
        visited.add(step)
        path.append(step)
    return opened


def _rgb(colour: Plane) -> tuple[int, int, int]:
    red, green, blue = (round(float(channel) * 255) for channel in colour)
    return red, green, blue
