"""Backgrounds of training scenes, made on the device.

One function a kind: ``(batch, size, device) -> [B, 3, S, S]`` in [0, 1].
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def grid(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Give x and y of every pixel in [0, 1], each ``[S, S]``."""
    axis = (torch.arange(size, device=device) + 0.5) / size
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return x, y


def uniform(shape: tuple[int, ...], low: float, high: float, device: torch.device) -> Tensor:
    """Draw from U[low, high)."""
    return torch.rand(shape, device=device) * (high - low) + low


def colours(batch: int, device: torch.device) -> Tensor:
    """Draw colours ``[B, 3, 1, 1]``: half of them muted, as rooms and tables are."""
    vivid = torch.rand(batch, 3, 1, 1, device=device)
    grey = torch.rand(batch, 1, 1, 1, device=device)
    mix = torch.rand(batch, 1, 1, 1, device=device) * (torch.rand(batch, 1, 1, 1, device=device) < 0.6)
    return vivid * (1 - mix) + grey * mix


def smooth_noise(batch: int, channels: int, cells: int, size: int, device: torch.device) -> Tensor:
    """Value noise: random cells, bicubically enlarged, roughly in [0, 1]."""
    low = torch.rand(batch, channels, cells, cells, device=device)
    return functional.interpolate(low, size=(size, size), mode="bicubic", align_corners=False).clamp(0, 1)


def fractal(batch: int, channels: int, size: int, device: torch.device, octaves: int = 5) -> Tensor:
    """Sum of value noises of doubling frequency with random weights, stretched to [0, 1]."""
    total = torch.zeros(batch, channels, size, size, device=device)
    cells = 3
    for _ in range(octaves):
        total += smooth_noise(batch, channels, cells, size, device) * torch.rand(batch, 1, 1, 1, device=device)
        cells *= 2
    low, high = total.amin((1, 2, 3), keepdim=True), total.amax((1, 2, 3), keepdim=True)
    return (total - low) / (high - low + 1e-3)


def _phase(batch: int, size: int, device: torch.device, warp: float = 0.0) -> Tensor:
    """A ramp across the picture in a random direction, ``[B, 1, S, S]``, bent by noise."""
    x, y = grid(size, device)
    angle = uniform((batch, 1, 1, 1), 0, math.pi, device)
    ramp = x * angle.cos() + y * angle.sin()
    return ramp + warp * smooth_noise(batch, 1, 5, size, device) * torch.rand(batch, 1, 1, 1, device=device)


def solid(batch: int, size: int, device: torch.device) -> Tensor:
    """One colour."""
    return colours(batch, device).expand(batch, 3, size, size)


def gradient(batch: int, size: int, device: torch.device) -> Tensor:
    """Two colours, linear or radial."""
    x, y = grid(size, device)
    centre = torch.rand(batch, 2, 1, 1, device=device)
    radial = ((x - centre[:, :1]) ** 2 + (y - centre[:, 1:]) ** 2).sqrt()
    linear = _phase(batch, size, device)
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
    wave = (2 * math.pi * frequency * _phase(batch, size, device, warp=0.15)).sin()
    hardness = torch.exp2(uniform((batch, 1, 1, 1), 0, 4, device))
    return torch.lerp(colours(batch, device), colours(batch, device), (wave * hardness).sigmoid())


def checks(batch: int, size: int, device: torch.device) -> Tensor:
    """A checkered or plaid pattern, turned by any angle."""
    x, y = grid(size, device)
    angle = uniform((batch, 1, 1, 1), 0, math.pi, device) * (torch.rand(batch, 1, 1, 1, device=device) < 0.6)
    u, v = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
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
        edge = ((_phase(batch, size, device) - offset) * 200).sigmoid()
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
        (2 * math.pi * uniform((batch, 1, 1, 1), 30, 150, device) * _phase(batch, size, device, 0.02)).sin()
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
            2 * math.pi * (frequency * _phase(batch, size, device, 0.3) + torch.rand(batch, 1, 1, 1, device=device))
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
)


def _shuffle(batch: int, device: torch.device) -> Tensor:
    return torch.rand(batch, device=device).argsort()


def backgrounds(batch: int, size: int, device: torch.device) -> Tensor:
    """Draw backgrounds of all kinds in random order; a third are two kinds blended through a soft mask."""
    counts = [batch // len(KINDS) + (i < batch % len(KINDS)) for i in range(len(KINDS))]
    plain = torch.cat([kind(n, size, device).expand(n, 3, size, size) for kind, n in zip(KINDS, counts, strict=True)])
    plain = plain[_shuffle(batch, device)]
    third = batch // 3
    sharp = uniform((third, 1, 1, 1), 4, 60, device)
    mask = ((smooth_noise(third, 1, 4, size, device) - 0.5) * sharp).sigmoid()
    blend = torch.lerp(plain[:third], plain[third : 2 * third], mask)
    plain = torch.cat((blend, plain[third:]))[_shuffle(batch, device)]
    contrast = uniform((batch, 1, 1, 1), 0.3, 1.0, device)
    mean = plain.mean((2, 3), keepdim=True)
    return (mean + (plain - mean) * contrast).clamp(0, 1)
