"""Backgrounds made of many small or large drawn things: lines, polygons, dots, strokes."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.scenes.batched.painting import Canvas, look_up, soft_blur


def _ground(c: Canvas) -> Tensor:
    t = c.fractal(1, 3) * c.chance(0.6) * c.number(0, 0.8)
    return torch.lerp(c.colours(), c.colours(), t)


def polygons(c: Canvas) -> Tensor:
    """Heaps of convex polygons of all sizes, flat, shaded or outlined; so many that none stands alone."""
    x, y = c.grid()
    out = _ground(c)
    tints = c.palette(6)
    scale = c.octave(-4.5, -1.2)
    outlined, clear = c.chance(0.3), c.number(0.5, 1)
    for _ in range(36):
        dx, dy = x - c.number(-0.1, 1.1), y - c.number(-0.1, 1.1)
        turn = c.number(0, 2 * math.pi)
        radius = scale * c.octave(-1, 1)
        distance = torch.full((c.batch, 1, c.size, c.size), -10.0, device=c.device)
        for side in range(5):
            angle = turn + 2 * math.pi * (side + c.number(-0.45, 0.45)) / c.number(3, 5.5)
            distance = torch.maximum(distance, dx * angle.cos() + dy * angle.sin() - radius * c.number(0.4, 1))
        rim = c.number(0.002, 0.008)
        depth = torch.where(outlined, distance.abs() - rim, distance)
        mask = (-depth * c.size).clamp(-0.5, 0.5) + 0.5
        tint = tints.gather(2, c.randint(6, 1, 1).expand(-1, 3, 1))[..., None]
        shade = 1 + c.number(-0.6, 0.6) * distance / radius
        out = torch.lerp(out, tint * shade, mask * clear)
    return out


def segments(c: Canvas) -> Tensor:
    """Straight strokes: in all directions, in parallel, or across each other; of all widths and lengths."""
    x, y = c.grid()
    out = _ground(c)
    tints = c.palette(5)
    main = c.number(0, math.pi)
    spread = torch.where(c.chance(0.5), math.pi, c.number(0, 0.3))
    crossed = c.chance(0.4) * (math.pi / 2)
    longest, thick = c.octave(-3, 1), c.octave(-9, -5.5)
    for _ in range(48):
        angle = main + spread * c.number(-0.5, 0.5) + crossed * c.chance(0.5)
        dx, dy = x - c.number(-0.1, 1.1), y - c.number(-0.1, 1.1)
        along, across = dx * angle.cos() + dy * angle.sin(), dy * angle.cos() - dx * angle.sin()
        width = thick * c.octave(0, 2)
        length = longest * c.number(0.2, 1)
        mask = ((width - across.abs()) * c.size + 0.5).clamp(0, 1) * ((length - along.abs()) * c.size + 0.5).clamp(0, 1)
        tint = tints.gather(2, c.randint(5, 1, 1).expand(-1, 3, 1))[..., None]
        out = torch.lerp(out, tint, mask)
    return out


def fans(c: Canvas) -> Tensor:
    """Rays from a point in the image or beside it, evenly or unevenly wide."""
    x, y = c.grid()
    angle = torch.atan2(y - c.number(-0.5, 1.5), x - c.number(-0.5, 1.5))
    uneven = c.number(0, 1.5) * (c.number(1, 6).round() * angle).sin()
    rays = c.number(4, 50).round() * angle + uneven
    t = (rays.sin() * c.octave(0, 5)).sigmoid()
    return torch.lerp(_ground(c), c.colours(), t)


def polka(c: Canvas) -> Tensor:
    """Lattices of small dots, lozenges or crosses, straight, skewed or staggered; sizes may follow a shade."""
    u, v = c.turned(straight=0.5)
    cells = c.octave(3.6, 6.2)
    u, v = u * cells, v * cells * c.number(0.7, 1.4)
    u = u + torch.where(c.chance(0.5), v.floor() * 0.5, v * c.number(-0.5, 0.5))
    du, dv = (u.frac() + 1).frac() - 0.5, (v.frac() + 1).frac() - 0.5
    du, dv = du.abs(), dv.abs()
    shape = c.randint(3, 1, 1, 1)
    distance = torch.where(shape == 0, torch.hypot(du, dv), torch.where(shape == 1, du + dv, torch.minimum(du, dv)))
    shade = c.smooth_noise(1, 4) * c.chance(0.4)
    radius = c.number(0.08, 0.36) * (1 - 0.8 * shade)
    mask = ((radius - distance) * c.size / cells + 0.5).clamp(0, 1) * (torch.maximum(du, dv) < 0.42)
    return torch.lerp(_ground(c), c.colours(), mask)


def text(c: Canvas) -> Tensor:
    """Rows of small strokes in words, like illegible print or writing."""
    lines, letters = int(torch.randint(10, 34, ())), int(torch.randint(16, 60, ()))
    ink = c.number(0.35, 0.7)[..., None, None]
    strokes = c.rand(1, lines, 5, letters, 4) < ink
    strokes[:, :, :, :, :, 3] = False
    word = c.rand(1, lines, 1, letters, 1) < 0.83
    filled = c.rand(1, lines, 1, 1, 1) < c.number(0.5, 1)[..., None, None]
    page = functional.pad((strokes & word & filled).flatten(4).float(), (0, 0, 2, 2)).flatten(2, 3)
    ink = functional.interpolate(page, size=(c.size, c.size), mode="nearest")
    ink = soft_blur(ink, int(torch.randint(2, ())))
    return torch.lerp(_ground(c), c.colours(), ink * c.number(0.3, 1))


def dashes(c: Canvas) -> Tensor:
    """Short strokes in rows, each row moved and some strokes left out, of several colours."""
    u, v = c.turned(straight=0.4)
    rows = c.octave(4.3, 6)
    columns = rows * c.number(0.15, 0.5)  # strokes are long: small squares are objects
    line = (v * rows).floor()
    seed = (line * 12.9898 + c.number(0, 100)).sin() * 43758.5453
    along = u * columns + seed.frac()
    stroke = ((along.floor() * 78.233 + line * 37.719).sin() * 43758.5453).frac().abs()
    wide, tall = c.number(0.5, 0.9), c.number(0.1, 0.5)
    inside = ((along - along.floor()) < wide) & ((v * rows - line) < tall) & (stroke > c.number(0, 0.5))
    drawn = look_up((stroke * 64).floor(), c.palette(4))
    return torch.where(soft_blur(inside.float(), 1) > 0.5, drawn, _ground(c))


def ellipses(c: Canvas) -> Tensor:
    """Long ellipses with soft or hard edges, half transparent, heaped."""
    x, y = c.grid()
    out = _ground(c)
    main, spread = c.number(0, math.pi), c.number(0, math.pi) * c.chance(0.6)
    scale, soft = c.octave(-4.5, -1), c.octave(0.5, 6)
    for _ in range(30):
        angle = main + spread * c.number(-0.5, 0.5)
        dx, dy = x - c.number(-0.1, 1.1), y - c.number(-0.1, 1.1)
        along, across = dx * angle.cos() + dy * angle.sin(), dy * angle.cos() - dx * angle.sin()
        long = scale * c.octave(-0.7, 0.7)
        distance = torch.hypot(along / long, across / (long * c.number(0.12, 0.5)))
        mask = ((1 - distance) * soft).clamp(0, 1) * c.number(0.3, 1)
        out = torch.lerp(out, c.colours(), mask)
    return out


def lattice(c: Canvas) -> Tensor:
    """Graph paper, wire netting and trellises: two or three families of parallel lines."""
    x, y = c.grid()
    out = _ground(c)
    turn, cells = c.number(0, math.pi) * ~c.chance(0.4), c.octave(2, 5.5)
    width, tint = c.number(0.03, 0.2), c.colours()
    bend = (c.smooth_noise(1, 5) - 0.5) * c.number(0, 0.15) * c.chance(0.4)
    apart = torch.where(c.chance(0.6), math.pi / 2, math.pi / 3)
    for family in range(3):
        angle = turn + family * apart
        place = ((x + bend) * angle.cos() + (y - bend) * angle.sin()) * cells
        mask = ((width / 2 - (place - place.round()).abs()) * c.size / cells + 0.5).clamp(0, 1)
        out = torch.lerp(out, tint, mask * (1.0 if family < 2 else c.chance(0.5)))
    return out


def chevrons(c: Canvas) -> Tensor:
    """Zigzag stripes, hard or soft, of two to five colours."""
    u, v = c.turned(straight=0.4)
    teeth = u * c.octave(1.5, 5)
    zigzag = (teeth - teeth.round()).abs() * c.number(0.1, 1)
    level = (v + zigzag * 0.5) * c.octave(1, 4.5)
    shares = c.number(2, 6).floor()
    return look_up((level - level.floor()) * shares, c.palette(5))


def mosaic(c: Canvas) -> Tensor:
    """Patchwork: rectangles in rows and columns, and smaller ones in some of them."""
    out = c.zeros(3)
    for level in range(3):
        high, wide = (int(torch.randint(3, 10, ())) * 2**level for _ in range(2))
        cells = c.rand(4, high, wide)
        base = c.colours()
        fresh = base + (cells[:, :3] - base) * c.number(0.05, 0.9)
        fresh = functional.interpolate(fresh, size=(c.size, c.size), mode="nearest")
        kept = functional.interpolate(cells[:, 3:], size=(c.size, c.size), mode="nearest")
        out = torch.where(kept < (1.0 if level == 0 else 0.4), fresh, out)
    return out


def planes(c: Canvas) -> Tensor:
    """Rooms out of focus: large shaded surfaces with straight edges, blurred more or less, with light from a side."""
    out = _ground(c)
    for _ in range(7):
        u, v = c.turned(straight=0.5)
        first, second = c.number(-1, 1), c.number(-1, 1)
        sharp = c.octave(3, 8.5)
        mask = ((u - first) * sharp).sigmoid() * ((v - second) * sharp).sigmoid()
        surface = c.colours() * (1 + c.number(-0.8, 0.8) * (u - 0.5))
        texture = (c.smooth_noise(1, 48) - 0.5) * c.number(0, 0.3)
        out = torch.lerp(out, surface + texture, mask * c.number(0.5, 1))
    return out


KINDS = (polygons, segments, fans, polka, text, dashes, ellipses, lattice, chevrons, mosaic, planes)
