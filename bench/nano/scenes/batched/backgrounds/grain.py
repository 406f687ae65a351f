"""Backgrounds of natural looks: grains, fibres, spectra, relief, and networks of random functions."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.scenes.batched.painting import Canvas, look_up, soft_blur, stretch


def network(c: Canvas) -> Tensor:
    """Random compositional pattern networks (Stanley, 2007): coordinates and noise through a few random layers."""
    half = (c.size + 1) // 2
    x, y = c.grid(half)
    noise = c.smooth_noise(2, 7, half) - 0.5
    oval = torch.hypot((x - c.number(0, 1)) * c.octave(0, 2), y - c.number(0, 1))
    place = torch.stack((x, y)).expand(c.batch, -1, -1, -1) - 0.5
    place, noise = place * c.octave(-1, 2.5), noise * c.number(0, 3)
    values = torch.cat((place, noise, oval), 1).flatten(2)
    for width in (10, 10, 10, 3):
        weight = torch.randn(c.batch, width, values.shape[1], device=c.device) * 1.6 / math.sqrt(values.shape[1])
        values = torch.bmm(weight, values) + torch.randn(c.batch, width, 1, device=c.device)
        if width == 3:
            break
        kind = c.randint(4, width, 1)
        frequency = torch.exp2(2.5 * c.rand(width, 1))
        bent = torch.where(kind == 0, (values * frequency).sin(), values.tanh())
        values = torch.where(kind == 2, (values * 25).tanh(), torch.where(kind == 3, values.abs() - 0.7, bent))
    image = torch.lerp(values.sigmoid(), (3 * values).sin() * 0.5 + 0.5, c.rand(1, 1))
    image = functional.interpolate(
        image.view(c.batch, 3, half, half), size=(c.size, c.size), mode="bilinear", align_corners=False
    )
    return torch.lerp(c.colours(), image, c.number(0.3, 1))


def spectrum(c: Canvas) -> Tensor:
    """Noise whose spectrum falls with a random power of frequency, finer in one direction than in the other."""
    down, across = torch.fft.fftfreq(c.size, device=c.device)[:, None], torch.fft.rfftfreq(c.size, device=c.device)
    uneven = c.octave(-1.5, 1.5)
    frequency = torch.hypot(down * uneven, across / uneven).clamp(min=1 / c.size)
    spread = frequency ** -c.number(0.5, 2.5)
    turn = c.rand(3, c.size, c.size // 2 + 1) * (2 * math.pi)
    waves = torch.fft.irfft2(torch.polar(spread.expand_as(turn), turn), s=(c.size, c.size))
    waves = waves / waves.std((2, 3), keepdim=True)
    grey = c.chance(0.5)
    waves = torch.where(grey, waves[:, :1], torch.lerp(waves[:, :1], waves, c.number(0, 1)))
    return c.colours() + waves * c.number(0.03, 0.25)


def gravel(c: Canvas) -> Tensor:
    """Grains of several sizes, each with light and shade."""
    out = c.colours().expand(c.batch, 3, c.size, c.size)
    for cells in (14, 40, 110):
        cells = int(cells * (0.6 + float(torch.rand(()))))
        heights = c.smooth_noise(1, cells)
        grain = ((heights - c.number(0.35, 0.65)) * c.octave(2, 6)).sigmoid()
        shade = (heights - torch.roll(heights, (2, 2), (2, 3))) * c.number(0, 0.7)
        tint = torch.lerp(out, c.colours(), c.number(0, 0.7))
        out = torch.lerp(out, tint, grain) + shade
    return out


def grain(c: Canvas) -> Tensor:
    """Paper, plaster and sensor noise: fine grain over faint stains, in grey or in colour."""
    out = torch.lerp(c.colours(), c.colours(), c.fractal(1) * c.number(0, 0.4))
    for passes in range(3):
        noise = soft_blur(torch.randn(c.batch, 3, c.size, c.size, device=c.device), passes) * 2.5**passes
        noise = torch.where(c.chance(0.6), noise[:, :1], noise)
        out = out + noise * c.number(0, 0.09) * c.chance(0.6)
    return out


def grass(c: Canvas) -> Tensor:
    """Blades, fur, hair, brushed metal: noise drawn out along a direction that wanders, layer over layer."""
    out = c.colours().expand(c.batch, 3, c.size, c.size)
    bend = (c.fractal(1, 3) - 0.5) * c.number(0, 0.6)
    for _ in range(3):
        u, v = c.turned(straight=0.2)
        fine, long = c.octave(4.5, 7.5), c.octave(1, 4)
        noise = c.rand(1, 128, 128)
        where = torch.stack(((u + bend) * fine / 64, (v + 0.3 * bend) * long / 64), -1)[:, 0]
        folded = 1 - (where.abs() % 4 - 2).abs()
        fibre = functional.grid_sample(noise, folded, padding_mode="reflection", align_corners=False)
        mask = ((fibre - c.number(0.3, 0.7)) * c.octave(1, 4)).sigmoid()
        tint = torch.lerp(out, c.colours(), c.number(0.1, 0.7))
        out = torch.lerp(out, tint * (0.6 + 0.8 * fibre), mask)
    return out


def speckles(c: Canvas) -> Tensor:
    """Night skies, snow, sprinkles: specks of a few pixels, few of them bright, on a quiet ground."""
    ground = torch.lerp(c.colours(), c.colours(), c.fractal(1) * c.number(0, 1))
    out = ground * torch.where(c.chance(0.6), c.number(0, 0.4), 1)
    tint = torch.lerp(torch.ones(c.batch, 3, 1, 1, device=c.device), c.colours(), c.number(0, 1))
    for scale in (1, 2, 3):
        cells = -(-c.size // scale)
        lit = c.rand(1, cells, cells) < c.octave(-10, -5) * scale
        specks = lit * c.rand(1, cells, cells).square()
        specks = functional.interpolate(specks, scale_factor=scale, mode="nearest")[..., : c.size, : c.size]
        out = torch.lerp(out, tint, (soft_blur(specks, scale - 1) * 2.5).clamp(max=1))
    return out


def plasma(c: Canvas) -> Tensor:
    """Sums of waves through a ring of colours, smooth or in steps."""
    total = sum(((2 * math.pi * c.octave(-1, 2.5) * c.phase(0.4)).sin() for _ in range(4)), c.zeros(1))
    level = total * c.number(0.1, 0.6) + c.number(0, 1)
    steps = c.number(3, 12).floor()
    level = torch.where(c.chance(0.4), (level * steps).floor() / steps, level)
    turn = c.rand(3, 1, 1) * c.number(0.1, 1)
    return c.colours() + 0.45 * (2 * math.pi * (level + turn)).cos()


def camouflage(c: Canvas) -> Tensor:
    """Smooth noise or ramps in a few flat colours."""
    field = torch.where(c.chance(0.5), c.fractal(1, 4), c.phase(0.5).frac())
    amount = c.number(0, 0.15) * c.chance(0.3)
    speckle = c.rand(1, c.size, c.size) * amount
    steps = c.number(3, 9).floor()
    return look_up(((field + speckle) * steps).clamp(0, 8), c.palette(9))


def relief(c: Canvas) -> Tensor:
    """Light on ripples, dunes and quilts: heights are sums of a few waves."""
    height = c.zeros(1)
    for _ in range(3):
        frequency = c.octave(1, 5.5)
        wave = (2 * math.pi * frequency * c.phase(0.25)).sin()
        wave = torch.where(c.chance(0.4), 1 - 2 * wave.abs(), wave)
        height = height + wave / frequency * c.rand(1, 1, 1)
    across = height - torch.roll(height, 1, 3)
    down = height - torch.roll(height, 1, 2)
    side = c.number(0, 2 * math.pi)
    slope = (across * side.cos() + down * side.sin())[..., 1:, 1:]
    slope = functional.pad(slope, (1, 0, 1, 0), mode="replicate")
    slope = slope / slope.std((2, 3), keepdim=True).clamp(min=1e-6)
    return c.colours() * (1 + c.number(0.05, 0.4) * slope) + 0.1 * (slope > 2.2)


def warped(c: Canvas) -> Tensor:
    """Stripes in places that noise has moved, twice: agate, silk, oil on water."""
    first = c.fractal(2, 3) - 0.5
    u, v = c.turned()
    push = c.number(0.1, 0.8)
    second = (6 * (u + push * first[:, :1])).sin() * (6 * (v + push * first[:, 1:])).cos()
    level = 2 * math.pi * c.octave(0.5, 4) * (u + 0.3 * push * second + push * first[:, :1])
    t = (level.sin() * c.octave(0, 3)).sigmoid()
    tone = torch.lerp(c.colours(), c.colours(), t)
    return torch.lerp(tone, c.colours(), 0.5 * (0.37 * level).cos().square())


def creases(c: Canvas) -> Tensor:
    """Folded and crumpled paper: the light changes along straight folds, some of them worn."""
    light = c.zeros(1)
    worn = torch.zeros_like(light)
    even = c.chance(0.3)
    for _ in range(14):
        u, v = c.turned(straight=0.3)
        fold = u - c.number(-0.6, 1.2) + 0.04 * (v * c.number(2, 9)).sin() * ~even
        fade = torch.exp(-((fold * c.octave(1, 5)) ** 2))
        light = light + (fold * 300).tanh() * c.number(-1, 1) * fade
        worn = torch.maximum(worn, (1.5 - fold.abs() * c.size).clamp(0, 1) * c.rand(1, 1, 1))
    paper = c.colours() * (1 + c.number(0.03, 0.25) * light)
    return torch.lerp(paper, c.colours(), worn * c.number(0, 0.4))


def scenery(c: Canvas) -> Tensor:
    """Blurred photographs: blobs of light and colour, some with hard edges, darker corners."""
    coarse = stretch(c.smooth_noise(3, 5) + 0.5 * c.smooth_noise(3, 11))
    tone = torch.lerp(c.colours(), coarse, c.number(0.2, 0.9))
    for _ in range(3):
        cut = c.fractal(1, 3) - c.number(0.35, 0.75)
        edge = (cut * c.octave(2, 7)).sigmoid()
        other = torch.lerp(c.colours(), c.smooth_noise(3, 9), 0.4)
        tone = torch.lerp(tone, other, edge * c.number(0.3, 1))
    x, y = c.grid()
    corner = ((x - 0.5) ** 2 + (y - 0.5) ** 2) * c.number(0, 1)
    return tone * (1 - corner) + torch.randn(c.batch, 1, c.size, c.size, device=c.device) * c.number(0, 0.05)


KINDS = (
    network,
    network,
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
