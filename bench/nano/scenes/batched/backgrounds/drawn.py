"""Backgrounds made of many small or large drawn things: lines, polygons, dots, strokes."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.scenes.batched.painting import (
    chance,
    colours,
    fractal,
    grid,
    look_up,
    number,
    octave,
    palette,
    smooth_noise,
    soft_blur,
    turned,
)


def _ground(batch: int, size: int, device: torch.device) -> Tensor:
    """Draw something quiet to draw on: one colour, or two that flow into each other."""
    t = fractal(batch, 1, size, device, octaves=3) * chance(batch, 0.6, device) * number(batch, 0, 0.8, device)
    return torch.lerp(colours(batch, device), colours(batch, device), t)


def polygons(batch: int, size: int, device: torch.device) -> Tensor:
    """Heaps of convex polygons of all sizes, flat, shaded or outlined; so many that none stands alone."""
    x, y = grid(size, device)
    out = _ground(batch, size, device)
    tints = palette(batch, 6, device)
    scale = octave(batch, -4.5, -1.2, device)
    outlined, clear = chance(batch, 0.3, device), number(batch, 0.5, 1, device)
    for _ in range(36):
        dx, dy = x - number(batch, -0.1, 1.1, device), y - number(batch, -0.1, 1.1, device)
        turn = number(batch, 0, 2 * math.pi, device)
        radius = scale * octave(batch, -1, 1, device)
        distance = torch.full((batch, 1, size, size), -10.0, device=device)
        for side in range(5):
            angle = turn + 2 * math.pi * (side + number(batch, -0.45, 0.45, device)) / number(batch, 3, 5.5, device)
            distance = torch.maximum(
                distance, dx * angle.cos() + dy * angle.sin() - radius * number(batch, 0.4, 1, device)
            )
        rim = number(batch, 0.002, 0.008, device)
        depth = torch.where(outlined, distance.abs() - rim, distance)
        mask = (-depth * size).clamp(-0.5, 0.5) + 0.5
        tint = tints.gather(2, torch.randint(6, (batch, 1, 1), device=device).expand(-1, 3, 1))[..., None]
        shade = 1 + number(batch, -0.6, 0.6, device) * distance / radius
        out = torch.lerp(out, tint * shade, mask * clear)
    return out


def segments(batch: int, size: int, device: torch.device) -> Tensor:
    """Straight strokes: in all directions, in parallel, or across each other; of all widths and lengths."""
    x, y = grid(size, device)
    out = _ground(batch, size, device)
    tints = palette(batch, 5, device)
    main = number(batch, 0, math.pi, device)
    spread = torch.where(chance(batch, 0.5, device), math.pi, number(batch, 0, 0.3, device))
    crossed = chance(batch, 0.4, device) * (math.pi / 2)
    longest, thick = octave(batch, -3, 1, device), octave(batch, -9, -5.5, device)
    for _ in range(48):
        angle = main + spread * number(batch, -0.5, 0.5, device) + crossed * chance(batch, 0.5, device)
        dx, dy = x - number(batch, -0.1, 1.1, device), y - number(batch, -0.1, 1.1, device)
        along, across = dx * angle.cos() + dy * angle.sin(), dy * angle.cos() - dx * angle.sin()
        width = thick * octave(batch, 0, 2, device)
        length = longest * number(batch, 0.2, 1, device)
        mask = ((width - across.abs()) * size + 0.5).clamp(0, 1) * ((length - along.abs()) * size + 0.5).clamp(0, 1)
        tint = tints.gather(2, torch.randint(5, (batch, 1, 1), device=device).expand(-1, 3, 1))[..., None]
        out = torch.lerp(out, tint, mask)
    return out


def fans(batch: int, size: int, device: torch.device) -> Tensor:
    """Rays from a point in the image or beside it, evenly or unevenly wide."""
    x, y = grid(size, device)
    angle = torch.atan2(y - number(batch, -0.5, 1.5, device), x - number(batch, -0.5, 1.5, device))
    uneven = number(batch, 0, 1.5, device) * (number(batch, 1, 6, device).round() * angle).sin()
    rays = number(batch, 4, 50, device).round() * angle + uneven
    t = (rays.sin() * octave(batch, 0, 5, device)).sigmoid()
    return torch.lerp(_ground(batch, size, device), colours(batch, device), t)


def polka(batch: int, size: int, device: torch.device) -> Tensor:
    """Lattices of small dots, lozenges or crosses, straight, skewed or staggered; sizes may follow a shade."""
    u, v = turned(batch, size, device, straight=0.5)
    cells = octave(batch, 3.6, 6.2, device)
    u, v = u * cells, v * cells * number(batch, 0.7, 1.4, device)
    u = u + torch.where(chance(batch, 0.5, device), v.floor() * 0.5, v * number(batch, -0.5, 0.5, device))
    du, dv = (u.frac() + 1).frac() - 0.5, (v.frac() + 1).frac() - 0.5
    du, dv = du.abs(), dv.abs()
    shape = torch.randint(3, (batch, 1, 1, 1), device=device)
    distance = torch.where(shape == 0, torch.hypot(du, dv), torch.where(shape == 1, du + dv, torch.minimum(du, dv)))
    shade = smooth_noise(batch, 1, 4, size, device) * chance(batch, 0.4, device)
    radius = number(batch, 0.08, 0.36, device) * (1 - 0.8 * shade)
    mask = ((radius - distance) * size / cells + 0.5).clamp(0, 1) * (torch.maximum(du, dv) < 0.42)
    return torch.lerp(_ground(batch, size, device), colours(batch, device), mask)


def text(batch: int, size: int, device: torch.device) -> Tensor:
    """Rows of small strokes in words, as print or writing looks that nobody can read."""
    lines, letters = int(torch.randint(10, 34, ())), int(torch.randint(16, 60, ()))
    ink = number(batch, 0.35, 0.7, device)[..., None, None]
    strokes = torch.rand(batch, 1, lines, 5, letters, 4, device=device) < ink
    strokes[:, :, :, :, :, 3] = False
    word = torch.rand(batch, 1, lines, 1, letters, 1, device=device) < 0.83
    filled = torch.rand(batch, 1, lines, 1, 1, 1, device=device) < number(batch, 0.5, 1, device)[..., None, None]
    page = functional.pad((strokes & word & filled).flatten(4).float(), (0, 0, 2, 2)).flatten(2, 3)
    ink = functional.interpolate(page, size=(size, size), mode="nearest")
    ink = soft_blur(ink, int(torch.randint(2, ())))
    return torch.lerp(_ground(batch, size, device), colours(batch, device), ink * number(batch, 0.3, 1, device))


def dashes(batch: int, size: int, device: torch.device) -> Tensor:
    """Short strokes in rows, each row moved and some strokes left out, of several colours."""
    u, v = turned(batch, size, device, straight=0.4)
    rows = octave(batch, 4.3, 6, device)
    columns = rows * number(batch, 0.15, 0.5, device)  # strokes are long: small squares are objects
    line = (v * rows).floor()
    seed = (line * 12.9898 + number(batch, 0, 100, device)).sin() * 43758.5453
    along = u * columns + seed.frac()
    stroke = ((along.floor() * 78.233 + line * 37.719).sin() * 43758.5453).frac().abs()
    wide, tall = number(batch, 0.5, 0.9, device), number(batch, 0.1, 0.5, device)
    inside = ((along - along.floor()) < wide) & ((v * rows - line) < tall) & (stroke > number(batch, 0, 0.5, device))
    drawn = look_up((stroke * 64).floor(), palette(batch, 4, device))
    return torch.where(soft_blur(inside.float(), 1) > 0.5, drawn, _ground(batch, size, device))


def ellipses(batch: int, size: int, device: torch.device) -> Tensor:
    """Long ellipses with soft or hard edges, half transparent, heaped."""
    x, y = grid(size, device)
    out = _ground(batch, size, device)
    main, spread = number(batch, 0, math.pi, device), number(batch, 0, math.pi, device) * chance(batch, 0.6, device)
    scale, soft = octave(batch, -4.5, -1, device), octave(batch, 0.5, 6, device)
    for _ in range(30):
        angle = main + spread * number(batch, -0.5, 0.5, device)
        dx, dy = x - number(batch, -0.1, 1.1, device), y - number(batch, -0.1, 1.1, device)
        along, across = dx * angle.cos() + dy * angle.sin(), dy * angle.cos() - dx * angle.sin()
        long = scale * octave(batch, -0.7, 0.7, device)
        distance = torch.hypot(along / long, across / (long * number(batch, 0.12, 0.5, device)))
        mask = ((1 - distance) * soft).clamp(0, 1) * number(batch, 0.3, 1, device)
        out = torch.lerp(out, colours(batch, device), mask)
    return out


def lattice(batch: int, size: int, device: torch.device) -> Tensor:
    """Graph paper, wire netting and trellises: two or three families of parallel lines."""
    x, y = grid(size, device)
    out = _ground(batch, size, device)
    turn, cells = number(batch, 0, math.pi, device) * ~chance(batch, 0.4, device), octave(batch, 2, 5.5, device)
    width, tint = number(batch, 0.03, 0.2, device), colours(batch, device)
    bend = (smooth_noise(batch, 1, 5, size, device) - 0.5) * number(batch, 0, 0.15, device) * chance(batch, 0.4, device)
    apart = torch.where(chance(batch, 0.6, device), math.pi / 2, math.pi / 3)
    for family in range(3):
        angle = turn + family * apart
        place = ((x + bend) * angle.cos() + (y - bend) * angle.sin()) * cells
        mask = ((width / 2 - (place - place.round()).abs()) * size / cells + 0.5).clamp(0, 1)
        out = torch.lerp(out, tint, mask * (1.0 if family < 2 else chance(batch, 0.5, device)))
    return out


def chevrons(batch: int, size: int, device: torch.device) -> Tensor:
    """Zigzag stripes, hard or soft, of two to five colours."""
    u, v = turned(batch, size, device, straight=0.4)
    teeth = u * octave(batch, 1.5, 5, device)
    zigzag = (teeth - teeth.round()).abs() * number(batch, 0.1, 1, device)
    level = (v + zigzag * 0.5) * octave(batch, 1, 4.5, device)
    shares = number(batch, 2, 6, device).floor()
    return look_up((level - level.floor()) * shares, palette(batch, 5, device))


def mosaic(batch: int, size: int, device: torch.device) -> Tensor:
    """Patchwork: rectangles in rows and columns, and smaller ones in some of them."""
    out = torch.zeros(batch, 3, size, size, device=device)
    for level in range(3):
        high, wide = (int(torch.randint(3, 10, ())) * 2**level for _ in range(2))
        cells = torch.rand(batch, 4, high, wide, device=device)
        base = colours(batch, device)
        fresh = base + (cells[:, :3] - base) * number(batch, 0.05, 0.9, device)
        fresh = functional.interpolate(fresh, size=(size, size), mode="nearest")
        kept = functional.interpolate(cells[:, 3:], size=(size, size), mode="nearest")
        out = torch.where(kept < (1.0 if level == 0 else 0.4), fresh, out)
    return out


def planes(batch: int, size: int, device: torch.device) -> Tensor:
    """Rooms out of focus: large shaded surfaces with straight edges, blurred more or less, with light from a side."""
    out = _ground(batch, size, device)
    for _ in range(7):
        u, v = turned(batch, size, device, straight=0.5)
        first, second = number(batch, -1, 1, device), number(batch, -1, 1, device)
        sharp = octave(batch, 3, 8.5, device)
        mask = ((u - first) * sharp).sigmoid() * ((v - second) * sharp).sigmoid()
        surface = colours(batch, device) * (1 + number(batch, -0.8, 0.8, device) * (u - 0.5))
        texture = (smooth_noise(batch, 1, 48, size, device) - 0.5) * number(batch, 0, 0.3, device)
        out = torch.lerp(out, surface + texture, mask * number(batch, 0.5, 1, device))
    return out


KINDS: tuple[Callable[[int, int, torch.device], Tensor], ...] = (
    polygons,
    segments,
    fans,
    polka,
    text,
    dashes,
    ellipses,
    lattice,
    chevrons,
    mosaic,
    planes,
)
