"""Backgrounds of training scenes, made on the device.

One function a kind: ``(batch, size, device) -> [B, 3, S, S]``, about in [0, 1]. None draws a closed circle, square,
star, heart or triangle that stands alone and is as large as an object; none draws what held-out scenes keep for
themselves.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.scenes.batched.backgrounds import drawn as backgrounds_drawn
from bench.nano.scenes.batched.backgrounds import grain as backgrounds_grain
from bench.nano.scenes.batched.backgrounds import woven as backgrounds_woven
from bench.nano.scenes.batched.painting import colours, fractal, grid, phase, smooth_noise, turned, uniform


def solid(batch: int, size: int, device: torch.device) -> Tensor:
    """One colour."""
    return colours(batch, device).expand(batch, 3, size, size)


def gradient(batch: int, size: int, device: torch.device) -> Tensor:
    """Two colours, linear or radial."""
    x, y = grid(size, device)
    centre = torch.rand(batch, 2, 1, 1, device=device)
    radial = ((x - centre[:, :1]) ** 2 + (y - centre[:, 1:]) ** 2).sqrt()
    linear = phase(batch, size, device)
    t = torch.where(torch.rand(batch, 1, 1, 1, device=device) < 0.5, radial, linear).clamp(0, 1)
    return torch.lerp(colours(batch, device), colours(batch, device), t)


def noise(batch: int, size: int, device: torch.device) -> Tensor:
    """Fractal noise between two colours, some of it with pixel grain."""
    t = fractal(batch, 1, size, device)
    grain = torch.rand(batch, 3, size, size, device=device) - 0.5
    amount = uniform((batch, 1, 1, 1), 0, 0.5, device)
    return torch.lerp(colours(batch, device), colours(batch, device), t) + grain * amount


def stripes(batch: int, size: int, device: torch.device) -> Tensor:
    """Stripes with soft or hard edges, straight or bent."""
    frequency = torch.exp2(uniform((batch, 1, 1, 1), 1, 6, device))
    wave = (2 * math.pi * frequency * phase(batch, size, device, warp=0.15)).sin()
    hardness = torch.exp2(uniform((batch, 1, 1, 1), 0, 4, device))
    return torch.lerp(colours(batch, device), colours(batch, device), (wave * hardness).sigmoid())


def checks(batch: int, size: int, device: torch.device) -> Tensor:
    """A checkered or plaid pattern, turned by any angle."""
    u, v = turned(batch, size, device, straight=0.4)
    fu, fv = (torch.exp2(uniform((batch, 1, 1, 1), 1, 5, device)) for _ in range(2))
    fv = torch.where(torch.rand(batch, 1, 1, 1, device=device) < 0.7, fu, fv)
    su, sv = (2 * math.pi * fu * u).sin() * 20, (2 * math.pi * fv * v).sin() * 20
    check = (su * sv).sigmoid()
    plaid = (su.sigmoid() + sv.sigmoid()) / 2
    t = torch.where(torch.rand(batch, 1, 1, 1, device=device) < 0.6, check, plaid)
    return torch.lerp(colours(batch, device), colours(batch, device), t)


def blobs(batch: int, size: int, device: torch.device) -> Tensor:
    """Blurred blobs of many colours."""
    coarse = smooth_noise(batch, 3, 4, size, device)
    fine = smooth_noise(batch, 3, 12, size, device)
    return torch.lerp(coarse, fine, torch.rand(batch, 1, 1, 1, device=device))


def table(batch: int, size: int, device: torch.device) -> Tensor:
    """Wood: rings along a direction, bent by noise, with grain, in boards or whole."""
    x, y = grid(size, device)
    swap = torch.rand(batch, 1, 1, 1, device=device) < 0.5
    along, across = torch.where(swap, y, x), torch.where(swap, x, y)
    bend = smooth_noise(batch, 1, 6, size, device)
    rings = uniform((batch, 1, 1, 1), 4, 40, device) * (across + 0.15 * bend + 0.05 * along)
    ring = (2 * math.pi * rings).sin() * 0.5 + 0.5
    streaks = functional.interpolate(
        torch.rand(batch, 1, 96, 4, device=device), size=(size, size), mode="bilinear", align_corners=False
    )
    streaks = torch.where(swap, streaks.transpose(2, 3), streaks)
    boards = uniform((batch, 1, 1, 1), 2, 8, device).round()
    board = torch.frac((across * boards).floor() * 0.618 + 0.3)
    seam = (torch.frac(across * boards) < 0.02).float() * (torch.rand(batch, 1, 1, 1, device=device) < 0.5)
    brown = torch.stack([torch.full((1, 1, 1), value, device=device) for value in (0.62, 0.42, 0.25)], dim=1)
    base = torch.where(torch.rand(batch, 1, 1, 1, device=device) < 0.7, brown, colours(batch, device))
    base = base * uniform((batch, 1, 1, 1), 0.5, 1.4, device)
    tone = 0.8 + 0.2 * ring + 0.2 * (streaks - 0.5) + 0.15 * (board - 0.5)
    return base * tone * (1 - 0.5 * seam)


def facets(batch: int, size: int, device: torch.device) -> Tensor:
    """Overlapping half-planes: sheets of paper, shadows of edges, corners of rooms."""
    out = solid(batch, size, device).clone()
    for _ in range(5):
        offset = uniform((batch, 1, 1, 1), 0, 1.2, device)
        edge = ((phase(batch, size, device) - offset) * 200).sigmoid()
        strength = torch.rand(batch, 1, 1, 1, device=device)
        out = torch.lerp(out, colours(batch, device), edge * strength)
    return out


def marble(batch: int, size: int, device: torch.device) -> Tensor:
    """Thin bent veins on a cloudy ground."""
    vein = (1 - (2 * fractal(batch, 1, size, device) - 1).abs()) ** uniform((batch, 1, 1, 1), 2, 20, device)
    ground = torch.lerp(colours(batch, device), colours(batch, device), 0.4 * smooth_noise(batch, 1, 6, size, device))
    return torch.lerp(ground, colours(batch, device), vein * torch.rand(batch, 1, 1, 1, device=device))


def cloth(batch: int, size: int, device: torch.device) -> Tensor:
    """A fine weave with soft folds."""
    thread = [
        (2 * math.pi * uniform((batch, 1, 1, 1), 30, 150, device) * phase(batch, size, device, 0.02)).sin()
        for _ in range(2)
    ]
    folds = smooth_noise(batch, 1, 5, size, device) - 0.5
    depth, fold = uniform((batch, 1, 1, 1), 0.02, 0.2, device), uniform((batch, 1, 1, 1), 0, 0.6, device)
    return colours(batch, device) * (1 + depth * (thread[0] + thread[1]) + fold * folds)


def waves(batch: int, size: int, device: torch.device) -> Tensor:
    """Interfering waves in each channel, moiré-like."""
    out = torch.zeros(batch, 3, size, size, device=device)
    for _ in range(3):
        frequency = torch.exp2(uniform((batch, 1, 1, 1), 0, 4.5, device))
        wave = (
            2 * math.pi * (frequency * phase(batch, size, device, 0.3) + torch.rand(batch, 1, 1, 1, device=device))
        ).sin()
        out = out + wave * (colours(batch, device) - 0.3)
    return 0.5 + 0.35 * out


KINDS: tuple[Callable[[int, int, torch.device], Tensor], ...] = (
    solid,
    gradient,
    noise,
    stripes,
    checks,
    blobs,
    table,
    marble,
    cloth,
    facets,
    waves,
    *backgrounds_drawn.KINDS,
    *backgrounds_grain.KINDS,
    *backgrounds_woven.KINDS,
)
