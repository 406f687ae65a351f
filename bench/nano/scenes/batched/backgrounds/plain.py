"""Backgrounds of one idea each: gradients, stripes, wood, cloth, tiles."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.scenes.batched.painting import Canvas, look_up


def solid(c: Canvas) -> Tensor:
    return c.colours().expand(c.batch, 3, c.size, c.size)


def gradient(c: Canvas) -> Tensor:
    """Two colours, linear or radial."""
    x, y = c.grid()
    centre = c.rand(2, 1, 1)
    radial = ((x - centre[:, :1]) ** 2 + (y - centre[:, 1:]) ** 2).sqrt()
    linear = c.phase()
    t = torch.where(c.rand(1, 1, 1) < 0.5, radial, linear).clamp(0, 1)
    return torch.lerp(c.colours(), c.colours(), t)


def noise(c: Canvas) -> Tensor:
    """Fractal noise between two colours, some of it with pixel grain."""
    t = c.fractal(1)
    grain = c.rand(3, c.size, c.size) - 0.5
    amount = c.number(0, 0.5)
    return torch.lerp(c.colours(), c.colours(), t) + grain * amount


def stripes(c: Canvas) -> Tensor:
    """Stripes with soft or hard edges, straight or bent."""
    frequency = torch.exp2(c.number(1, 6))
    wave = (2 * math.pi * frequency * c.phase(warp=0.15)).sin()
    hardness = torch.exp2(c.number(0, 4))
    return torch.lerp(c.colours(), c.colours(), (wave * hardness).sigmoid())


def checks(c: Canvas) -> Tensor:
    """A checkered or plaid pattern, turned by any angle."""
    u, v = c.turned(straight=0.4)
    fu, fv = (torch.exp2(c.number(1, 5)) for _ in range(2))
    fv = torch.where(c.rand(1, 1, 1) < 0.7, fu, fv)
    su, sv = (2 * math.pi * fu * u).sin() * 20, (2 * math.pi * fv * v).sin() * 20
    check = (su * sv).sigmoid()
    plaid = (su.sigmoid() + sv.sigmoid()) / 2
    t = torch.where(c.rand(1, 1, 1) < 0.6, check, plaid)
    return torch.lerp(c.colours(), c.colours(), t)


def blobs(c: Canvas) -> Tensor:
    coarse = c.smooth_noise(3, 4)
    fine = c.smooth_noise(3, 12)
    return torch.lerp(coarse, fine, c.rand(1, 1, 1))


def table(c: Canvas) -> Tensor:
    """Wood: rings along a direction, bent by noise, with grain, in boards or whole."""
    x, y = c.grid()
    swap = c.rand(1, 1, 1) < 0.5
    along, across = torch.where(swap, y, x), torch.where(swap, x, y)
    bend = c.smooth_noise(1, 6)
    rings = c.number(4, 40) * (across + 0.15 * bend + 0.05 * along)
    ring = (2 * math.pi * rings).sin() * 0.5 + 0.5
    streaks = functional.interpolate(c.rand(1, 96, 4), size=(c.size, c.size), mode="bilinear", align_corners=False)
    streaks = torch.where(swap, streaks.transpose(2, 3), streaks)
    boards = c.number(2, 8).round()
    board = torch.frac((across * boards).floor() * 0.618 + 0.3)
    seam = (torch.frac(across * boards) < 0.02).float() * (c.rand(1, 1, 1) < 0.5)
    brown = torch.stack([torch.full((1, 1, 1), value, device=c.device) for value in (0.62, 0.42, 0.25)], dim=1)
    base = torch.where(c.rand(1, 1, 1) < 0.7, brown, c.colours())
    base = base * c.number(0.5, 1.4)
    tone = 0.8 + 0.2 * ring + 0.2 * (streaks - 0.5) + 0.15 * (board - 0.5)
    return base * tone * (1 - 0.5 * seam)


def facets(c: Canvas) -> Tensor:
    """Overlapping half-planes: sheets of paper, shadows of edges, corners of rooms."""
    out = solid(c).clone()
    for _ in range(5):
        offset = c.number(0, 1.2)
        edge = ((c.phase() - offset) * 200).sigmoid()
        strength = c.rand(1, 1, 1)
        out = torch.lerp(out, c.colours(), edge * strength)
    return out


def marble(c: Canvas) -> Tensor:
    """Thin bent veins on a cloudy ground."""
    vein = (1 - (2 * c.fractal(1) - 1).abs()) ** c.number(2, 20)
    ground = torch.lerp(c.colours(), c.colours(), 0.4 * c.smooth_noise(1, 6))
    return torch.lerp(ground, c.colours(), vein * c.rand(1, 1, 1))


def cloth(c: Canvas) -> Tensor:
    """A fine weave with soft folds."""
    thread = [(2 * math.pi * c.number(30, 150) * c.phase(0.02)).sin() for _ in range(2)]
    folds = c.smooth_noise(1, 5) - 0.5
    depth, fold = c.number(0.02, 0.2), c.number(0, 0.6)
    return c.colours() * (1 + depth * (thread[0] + thread[1]) + fold * folds)


def waves(c: Canvas) -> Tensor:
    out = c.zeros(3)
    for _ in range(3):
        frequency = torch.exp2(c.number(0, 4.5))
        wave = (2 * math.pi * (frequency * c.phase(0.3) + c.rand(1, 1, 1))).sin()
        out = out + wave * (c.colours() - 0.3)
    return 0.5 + 0.35 * out


def woven(c: Canvas) -> Tensor:
    """Cloth of single threads: a random draft says which lies on top, random sequences say their colours."""
    u, v = c.turned(straight=0.7)
    threads = c.octave(5, 7.2)
    u, v = u * threads, v * threads
    repeat = c.number(2, 9).floor()
    i, j = u.floor(), v.floor()
    draft = c.rand(64) < 0.5
    plain = (i + j) % 2 == 0
    at = ((i % repeat) * 8 + j % repeat).long().clamp(0, 63).flatten(1)
    over = torch.where(c.chance(0.4), plain, draft.gather(1, at).view(c.batch, 1, c.size, c.size))
    count = c.number(3, 24).floor()
    tints = c.palette(24)
    bands = c.randint(24, 24).sort(1).values
    warp, weft = (look_up(bands.gather(1, (k % count).long().flatten(1)).view_as(k), tints) for k in (i, j))
    bulge = torch.where(over, (u - i - 0.5).abs(), (v - j - 0.5).abs())
    return torch.where(over, warp, weft) * (1 - c.number(0.1, 0.9) * bulge.square() * 2)


def tiles(c: Canvas) -> Tensor:
    """A small random motif repeated, in half of the images mirrored at its edges."""
    u, v = c.turned(straight=0.6)
    repeats = c.octave(1.6, 4.6)
    u, v = u * repeats, v * repeats
    mirrored = c.chance(0.5)
    s, t = (torch.where(mirrored, (k - 2 * (k / 2).round()).abs(), k - k.floor()) for k in (u, v))
    fine = torch.where(c.chance(0.5), c.smooth_noise(3, 5, 48), c.fractal(3, 3, 48))
    blocks = functional.interpolate(c.rand(3, 6, 6), size=(48, 48), mode="nearest")
    motif = torch.where(c.chance(0.3), blocks, fine)
    flat = ((motif - 0.5) * c.octave(0, 5)).sigmoid()
    motif = torch.lerp(c.colours(), c.colours(), flat[:, :1]) * (0.7 + 0.5 * flat[:, 1:2])
    where = torch.stack((s, t), -1)[:, 0] * 2 - 1
    return functional.grid_sample(motif, where, padding_mode="border", align_corners=False)


def halftone(c: Canvas) -> Tensor:
    """Screens of fine dots or lines, each ink in a direction of its own, as wide as a smooth image is dark."""
    out = torch.ones(c.batch, 3, c.size, c.size, device=c.device) * c.number(0.7, 1)
    lines = c.chance(0.3)
    fineness = c.octave(4.5, 7)
    for _ in range(2):
        u, v = c.turned()
        u, v = u * fineness, v * fineness
        distance = torch.where(lines, (u - u.round()).abs(), torch.hypot(u - u.round(), v - v.round()))
        dark = 0.65 * c.fractal(1, 3)
        mask = ((dark - distance) * c.size / fineness + 0.5).clamp(0, 1)
        out = torch.lerp(out, out * c.colours(), mask)
    return out


def ribs(c: Canvas) -> Tensor:
    """Corduroy, blinds, corrugated iron: shaded bars, wide and narrow ones in a random sequence."""
    u, v = c.turned(straight=0.5)
    bars = c.octave(2.5, 6)
    bent = 0.02 * (c.fractal(1, 2) - 0.5) * c.chance(0.5)
    place = (u + bent + 0.01 * (3 * v).sin()) * bars
    place = place + c.number(0, 0.8) * (place * c.number(0.2, 0.9)).sin()
    rise = place - place.floor()
    shade = torch.where(c.chance(0.5), rise, 1 - (2 * rise - 1).square())
    tint = look_up(place.floor(), c.palette(7))
    base = torch.lerp(c.colours(), tint, c.number(0, 1) * c.chance(0.5))
    return base * (1 + c.number(0.1, 0.8) * (shade - 0.6))


KINDS = (solid, gradient, noise, stripes, checks, blobs, table, marble, cloth, facets, waves)
WOVEN = (woven, tiles, halftone, ribs)
