"""Backgrounds of natural looks: grains, fibres, spectra, relief, and networks of random functions."""

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
    phase,
    smooth_noise,
    soft_blur,
    stretch,
    turned,
)


def network(batch: int, size: int, device: torch.device) -> Tensor:
    """Random compositional pattern networks (Stanley, 2007): coordinates and noise through a few random layers."""
    half = (size + 1) // 2
    x, y = grid(half, device)
    noise = smooth_noise(batch, 2, 7, half, device) - 0.5
    oval = torch.hypot((x - number(batch, 0, 1, device)) * octave(batch, 0, 2, device), y - number(batch, 0, 1, device))
    place = torch.stack((x, y)).expand(batch, -1, -1, -1) - 0.5
    place, noise = place * octave(batch, -1, 2.5, device), noise * number(batch, 0, 3, device)
    values = torch.cat((place, noise, oval), 1).flatten(2)
    for width in (10, 10, 10, 3):
        weight = torch.randn(batch, width, values.shape[1], device=device) * 1.6 / math.sqrt(values.shape[1])
        values = torch.bmm(weight, values) + torch.randn(batch, width, 1, device=device)
        if width == 3:
            break
        kind = torch.randint(4, (batch, width, 1), device=device)
        frequency = torch.exp2(2.5 * torch.rand(batch, width, 1, device=device))
        bent = torch.where(kind == 0, (values * frequency).sin(), values.tanh())
        values = torch.where(kind == 2, (values * 25).tanh(), torch.where(kind == 3, values.abs() - 0.7, bent))
    image = torch.lerp(values.sigmoid(), (3 * values).sin() * 0.5 + 0.5, torch.rand(batch, 1, 1, device=device))
    image = functional.interpolate(
        image.view(batch, 3, half, half), size=(size, size), mode="bilinear", align_corners=False
    )
    return torch.lerp(colours(batch, device), image, number(batch, 0.3, 1, device))


def spectrum(batch: int, size: int, device: torch.device) -> Tensor:
    """Noise whose spectrum falls with a random power of frequency, finer in one direction than in the other."""
    down, across = torch.fft.fftfreq(size, device=device)[:, None], torch.fft.rfftfreq(size, device=device)
    uneven = octave(batch, -1.5, 1.5, device)
    frequency = torch.hypot(down * uneven, across / uneven).clamp(min=1 / size)
    spread = frequency ** -number(batch, 0.5, 2.5, device)
    turn = torch.rand(batch, 3, size, size // 2 + 1, device=device) * (2 * math.pi)
    waves = torch.fft.irfft2(torch.polar(spread.expand_as(turn), turn), s=(size, size))
    waves = waves / waves.std((2, 3), keepdim=True)
    grey = chance(batch, 0.5, device)
    waves = torch.where(grey, waves[:, :1], torch.lerp(waves[:, :1], waves, number(batch, 0, 1, device)))
    return colours(batch, device) + waves * number(batch, 0.03, 0.25, device)


def gravel(batch: int, size: int, device: torch.device) -> Tensor:
    """Grains of several sizes, each with light and shade."""
    out = colours(batch, device).expand(batch, 3, size, size)
    for cells in (14, 40, 110):
        cells = int(cells * (0.6 + float(torch.rand(()))))
        heights = smooth_noise(batch, 1, cells, size, device)
        grain = ((heights - number(batch, 0.35, 0.65, device)) * octave(batch, 2, 6, device)).sigmoid()
        shade = (heights - torch.roll(heights, (2, 2), (2, 3))) * number(batch, 0, 0.7, device)
        tint = torch.lerp(out, colours(batch, device), number(batch, 0, 0.7, device))
        out = torch.lerp(out, tint, grain) + shade
    return out


def grain(batch: int, size: int, device: torch.device) -> Tensor:
    """Paper, plaster and sensor noise: fine grain over faint stains, in grey or in colour."""
    out = torch.lerp(
        colours(batch, device), colours(batch, device), fractal(batch, 1, size, device) * number(batch, 0, 0.4, device)
    )
    for passes in range(3):
        noise = soft_blur(torch.randn(batch, 3, size, size, device=device), passes) * 2.5**passes
        noise = torch.where(chance(batch, 0.6, device), noise[:, :1], noise)
        out = out + noise * number(batch, 0, 0.09, device) * chance(batch, 0.6, device)
    return out


def grass(batch: int, size: int, device: torch.device) -> Tensor:
    """Blades, fur, hair, brushed metal: noise drawn out along a direction that wanders, layer over layer."""
    out = colours(batch, device).expand(batch, 3, size, size)
    bend = (fractal(batch, 1, size, device, octaves=3) - 0.5) * number(batch, 0, 0.6, device)
    for _ in range(3):
        u, v = turned(batch, size, device, straight=0.2)
        fine, long = octave(batch, 4.5, 7.5, device), octave(batch, 1, 4, device)
        noise = torch.rand(batch, 1, 128, 128, device=device)
        where = torch.stack(((u + bend) * fine / 64, (v + 0.3 * bend) * long / 64), -1)[:, 0]
        folded = 1 - (where.abs() % 4 - 2).abs()
        fibre = functional.grid_sample(noise, folded, padding_mode="reflection", align_corners=False)
        mask = ((fibre - number(batch, 0.3, 0.7, device)) * octave(batch, 1, 4, device)).sigmoid()
        tint = torch.lerp(out, colours(batch, device), number(batch, 0.1, 0.7, device))
        out = torch.lerp(out, tint * (0.6 + 0.8 * fibre), mask)
    return out


def speckles(batch: int, size: int, device: torch.device) -> Tensor:
    """Night skies, snow, sprinkles: specks of a few pixels, few of them bright, on a quiet ground."""
    ground = torch.lerp(
        colours(batch, device), colours(batch, device), fractal(batch, 1, size, device) * number(batch, 0, 1, device)
    )
    out = ground * torch.where(chance(batch, 0.6, device), number(batch, 0, 0.4, device), 1)
    tint = torch.lerp(torch.ones(batch, 3, 1, 1, device=device), colours(batch, device), number(batch, 0, 1, device))
    for scale in (1, 2, 3):
        cells = -(-size // scale)
        lit = torch.rand(batch, 1, cells, cells, device=device) < octave(batch, -10, -5, device) * scale
        specks = lit * torch.rand(batch, 1, cells, cells, device=device).square()
        specks = functional.interpolate(specks, scale_factor=scale, mode="nearest")[..., :size, :size]
        out = torch.lerp(out, tint, (soft_blur(specks, scale - 1) * 2.5).clamp(max=1))
    return out


def plasma(batch: int, size: int, device: torch.device) -> Tensor:
    """Sums of waves through a ring of colours, smooth or in steps."""
    total = sum(
        ((2 * math.pi * octave(batch, -1, 2.5, device) * phase(batch, size, device, 0.4)).sin() for _ in range(4)),
        torch.zeros(batch, 1, size, size, device=device),
    )
    level = total * number(batch, 0.1, 0.6, device) + number(batch, 0, 1, device)
    steps = number(batch, 3, 12, device).floor()
    level = torch.where(chance(batch, 0.4, device), (level * steps).floor() / steps, level)
    turn = torch.rand(batch, 3, 1, 1, device=device) * number(batch, 0.1, 1, device)
    return colours(batch, device) + 0.45 * (2 * math.pi * (level + turn)).cos()


def camouflage(batch: int, size: int, device: torch.device) -> Tensor:
    """Smooth noise or ramps in a few flat colours."""
    field = torch.where(
        chance(batch, 0.5, device), fractal(batch, 1, size, device, octaves=4), phase(batch, size, device, 0.5).frac()
    )
    amount = number(batch, 0, 0.15, device) * chance(batch, 0.3, device)
    speckle = torch.rand(batch, 1, size, size, device=device) * amount
    steps = number(batch, 3, 9, device).floor()
    return look_up(((field + speckle) * steps).clamp(0, 8), palette(batch, 9, device))


def relief(batch: int, size: int, device: torch.device) -> Tensor:
    """Light on ripples, dunes and quilts: heights are sums of a few waves."""
    height = torch.zeros(batch, 1, size, size, device=device)
    for _ in range(3):
        frequency = octave(batch, 1, 5.5, device)
        wave = (2 * math.pi * frequency * phase(batch, size, device, 0.25)).sin()
        wave = torch.where(chance(batch, 0.4, device), 1 - 2 * wave.abs(), wave)
        height = height + wave / frequency * torch.rand(batch, 1, 1, 1, device=device)
    across = height - torch.roll(height, 1, 3)
    down = height - torch.roll(height, 1, 2)
    side = number(batch, 0, 2 * math.pi, device)
    slope = (across * side.cos() + down * side.sin())[..., 1:, 1:]
    slope = functional.pad(slope, (1, 0, 1, 0), mode="replicate")
    slope = slope / slope.std((2, 3), keepdim=True).clamp(min=1e-6)
    return colours(batch, device) * (1 + number(batch, 0.05, 0.4, device) * slope) + 0.1 * (slope > 2.2)


def warped(batch: int, size: int, device: torch.device) -> Tensor:
    """Stripes in places that noise has moved, twice: agate, silk, oil on water."""
    first = fractal(batch, 2, size, device, octaves=3) - 0.5
    u, v = turned(batch, size, device)
    push = number(batch, 0.1, 0.8, device)
    second = (6 * (u + push * first[:, :1])).sin() * (6 * (v + push * first[:, 1:])).cos()
    level = 2 * math.pi * octave(batch, 0.5, 4, device) * (u + 0.3 * push * second + push * first[:, :1])
    t = (level.sin() * octave(batch, 0, 3, device)).sigmoid()
    tone = torch.lerp(colours(batch, device), colours(batch, device), t)
    return torch.lerp(tone, colours(batch, device), 0.5 * (0.37 * level).cos().square())


def creases(batch: int, size: int, device: torch.device) -> Tensor:
    """Folded and crumpled paper: the light changes along straight folds, some of them worn."""
    light = torch.zeros(batch, 1, size, size, device=device)
    worn = torch.zeros_like(light)
    even = chance(batch, 0.3, device)
    for _ in range(14):
        u, v = turned(batch, size, device, straight=0.3)
        fold = u - number(batch, -0.6, 1.2, device) + 0.04 * (v * number(batch, 2, 9, device)).sin() * ~even
        fade = torch.exp(-((fold * octave(batch, 1, 5, device)) ** 2))
        light = light + (fold * 300).tanh() * number(batch, -1, 1, device) * fade
        worn = torch.maximum(worn, (1.5 - fold.abs() * size).clamp(0, 1) * torch.rand(batch, 1, 1, 1, device=device))
    paper = colours(batch, device) * (1 + number(batch, 0.03, 0.25, device) * light)
    return torch.lerp(paper, colours(batch, device), worn * number(batch, 0, 0.4, device))


def scenery(batch: int, size: int, device: torch.device) -> Tensor:
    """Blurred photographs: blobs of light and colour, some with hard edges, darker corners."""
    coarse = stretch(smooth_noise(batch, 3, 5, size, device) + 0.5 * smooth_noise(batch, 3, 11, size, device))
    tone = torch.lerp(colours(batch, device), coarse, number(batch, 0.2, 0.9, device))
    for _ in range(3):
        cut = fractal(batch, 1, size, device, octaves=3) - number(batch, 0.35, 0.75, device)
        edge = (cut * octave(batch, 2, 7, device)).sigmoid()
        other = torch.lerp(colours(batch, device), smooth_noise(batch, 3, 9, size, device), 0.4)
        tone = torch.lerp(tone, other, edge * number(batch, 0.3, 1, device))
    x, y = grid(size, device)
    corner = ((x - 0.5) ** 2 + (y - 0.5) ** 2) * number(batch, 0, 1, device)
    return tone * (1 - corner) + torch.randn(batch, 1, size, size, device=device) * number(batch, 0, 0.05, device)


KINDS: tuple[Callable[[int, int, torch.device], Tensor], ...] = (
    network,
    network,  # twice: no two networks look alike
    spectrum,
    gravel,
    grain,
    grass,
    speckles,
    plasma,
    camouflage,
    relief,
    warped,
    creases,
    scenery,
)
