"""Backgrounds that repeat: woven cloth, printed tiles, halftones."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.scenes.batched.painting import (
    chance,
    colours,
    fractal,
    look_up,
    number,
    octave,
    palette,
    smooth_noise,
    turned,
)


def woven(batch: int, size: int, device: torch.device) -> Tensor:
    """Cloth of single threads: a random draft says which lies on top, random sequences say their colours."""
    u, v = turned(batch, size, device, straight=0.7)
    threads = octave(batch, 5, 7.2, device)
    u, v = u * threads, v * threads
    repeat = number(batch, 2, 9, device).floor()
    i, j = u.floor(), v.floor()
    draft = torch.rand(batch, 64, device=device) < 0.5
    plain = (i + j) % 2 == 0
    at = ((i % repeat) * 8 + j % repeat).long().clamp(0, 63).flatten(1)
    over = torch.where(chance(batch, 0.4, device), plain, draft.gather(1, at).view(batch, 1, size, size))
    count = number(batch, 3, 24, device).floor()
    tints = palette(batch, 24, device)
    bands = torch.randint(24, (batch, 24), device=device).sort(1).values
    warp, weft = (look_up(bands.gather(1, (k % count).long().flatten(1)).view_as(k), tints) for k in (i, j))
    bulge = torch.where(over, (u - i - 0.5).abs(), (v - j - 0.5).abs())
    return torch.where(over, warp, weft) * (1 - number(batch, 0.1, 0.9, device) * bulge.square() * 2)


def tiles(batch: int, size: int, device: torch.device) -> Tensor:
    """A small random motif repeated, in half of the images mirrored at its edges."""
    u, v = turned(batch, size, device, straight=0.6)
    repeats = octave(batch, 1.6, 4.6, device)
    u, v = u * repeats, v * repeats
    mirrored = chance(batch, 0.5, device)
    s, t = (torch.where(mirrored, (k - 2 * (k / 2).round()).abs(), k - k.floor()) for k in (u, v))
    fine = torch.where(
        chance(batch, 0.5, device), smooth_noise(batch, 3, 5, 48, device), fractal(batch, 3, 48, device, octaves=3)
    )
    blocks = functional.interpolate(torch.rand(batch, 3, 6, 6, device=device), size=(48, 48), mode="nearest")
    motif = torch.where(chance(batch, 0.3, device), blocks, fine)
    flat = ((motif - 0.5) * octave(batch, 0, 5, device)).sigmoid()
    motif = torch.lerp(colours(batch, device), colours(batch, device), flat[:, :1]) * (0.7 + 0.5 * flat[:, 1:2])
    where = torch.stack((s, t), -1)[:, 0] * 2 - 1
    return functional.grid_sample(motif, where, padding_mode="border", align_corners=False)


def halftone(batch: int, size: int, device: torch.device) -> Tensor:
    """Screens of fine dots or lines, each ink in a direction of its own, as wide as a smooth image is dark."""
    out = torch.ones(batch, 3, size, size, device=device) * number(batch, 0.7, 1, device)
    lines = chance(batch, 0.3, device)
    fineness = octave(batch, 4.5, 7, device)
    for _ in range(2):
        u, v = turned(batch, size, device)
        u, v = u * fineness, v * fineness
        distance = torch.where(lines, (u - u.round()).abs(), torch.hypot(u - u.round(), v - v.round()))
        dark = 0.65 * fractal(batch, 1, size, device, octaves=3)
        mask = ((dark - distance) * size / fineness + 0.5).clamp(0, 1)
        out = torch.lerp(out, out * colours(batch, device), mask)
    return out


def ribs(batch: int, size: int, device: torch.device) -> Tensor:
    """Corduroy, blinds, corrugated iron: shaded bars, wide and narrow ones in a random sequence."""
    u, v = turned(batch, size, device, straight=0.5)
    bars = octave(batch, 2.5, 6, device)
    bent = 0.02 * (fractal(batch, 1, size, device, octaves=2) - 0.5) * chance(batch, 0.5, device)
    place = (u + bent + 0.01 * (3 * v).sin()) * bars
    place = place + number(batch, 0, 0.8, device) * (place * number(batch, 0.2, 0.9, device)).sin()
    rise = place - place.floor()
    shade = torch.where(chance(batch, 0.5, device), rise, 1 - (2 * rise - 1).square())
    tint = look_up(place.floor(), palette(batch, 7, device))
    base = torch.lerp(colours(batch, device), tint, number(batch, 0, 1, device) * chance(batch, 0.5, device))
    return base * (1 + number(batch, 0.1, 0.8, device) * (shade - 0.6))


KINDS: tuple[Callable[[int, int, torch.device], Tensor], ...] = (woven, tiles, halftone, ribs)
