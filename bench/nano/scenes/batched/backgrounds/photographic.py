"""Backgrounds with the statistics of photographs: things before things, textures, shading, hard shadows, focus."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.scenes.batched.painting import Canvas, soft_blur

_LEAVES = 40


def natural(c: Canvas, channels: int, low: float, high: float) -> Tensor:
    """Noise whose amplitude falls as a power of frequency from U[low, high), of deviation 1: 1 is that of images."""
    down, across = torch.fft.fftfreq(c.size, device=c.device)[:, None], torch.fft.rfftfreq(c.size, device=c.device)
    amplitude = torch.hypot(down, across).clamp(min=1 / c.size) ** -c.number(low, high)
    turn = c.rand(channels, c.size, c.size // 2 + 1) * (2 * math.pi)
    waves = torch.fft.irfft2(torch.polar(amplitude.expand_as(turn), turn), s=(c.size, c.size))
    return waves / (waves.std((2, 3), keepdim=True) + 1e-6)


def _blurred(c: Canvas, image: Tensor, most: int) -> Tensor:
    """Blur by up to so many times as coarse a grid, the same for all of a batch."""
    coarse = max(2, round(c.size / most ** float(torch.rand(()))))
    small = functional.interpolate(image, size=(coarse, coarse), mode="area")
    return functional.interpolate(small, size=(c.size, c.size), mode="bicubic", align_corners=False)


def lit(c: Canvas, height: Tensor) -> Tensor:
    """Shade a relief by light from a side, about 1 on the flat."""
    angle = c.number(0, 2 * math.pi)
    slope = (height - height.roll(1, 3)) * angle.cos() + (height - height.roll(1, 2)) * angle.sin()
    return 1 + c.number(0.2, 1) * (slope * c.size * c.number(0.03, 0.2)).tanh()


def graded(c: Canvas, image: Tensor) -> Tensor:
    """Take away more or less colour, as most surfaces have little, and tinge what is left with the light's."""
    grey = image.mean(1, keepdim=True) * (1 + c.number(0, 0.3) * (c.colours() - 0.5))
    return torch.lerp(grey, image, c.number(0, 1))


def leaves(c: Canvas) -> Tensor:
    """Dead leaves: shapes of all sizes before one another, each with shade and texture (Lee, Mumford & Huang, 2001)."""
    x, y = c.grid()
    bend = 0.15 * natural(c, 2, 1.2, 2.0) * c.number(0, 1)
    grain = natural(c, 1, 0.6, 1.4)
    out = c.colours() * (1 + 0.15 * grain)
    main = c.palette(5)
    soft = c.octave(4, 8.5)
    for place in range(_LEAVES):
        # Sizes fall off as a power; the large ones lie at the back.
        size = 0.5 * (1 + place * 0.6) ** -0.5 * c.octave(-0.7, 0.7)
        angle, aspect = c.number(0, math.pi), c.octave(-1.3, 1.3)
        dx, dy = x + 0.3 * bend[:, :1] - c.number(-0.1, 1.1), y + 0.3 * bend[:, 1:] - c.number(-0.1, 1.1)
        u, v = (dx * angle.cos() + dy * angle.sin()) / aspect, (dy * angle.cos() - dx * angle.sin()) * aspect
        power = c.octave(0, 2.5)
        depth = (size - ((u.abs() + 1e-4) ** power + (v.abs() + 1e-4) ** power) ** (1 / power)) * soft * 4
        tint = main.gather(2, c.randint(5, 1, 1).expand(-1, 3, 1))[..., None] * c.number(0.6, 1.3)
        shade = 1 + c.number(-0.7, 0.7) * (u + v) / size + c.number(0, 0.3) * grain
        shadow = ((depth + soft * size * 0.4).sigmoid() * c.number(0, 0.5)).clamp(max=1)
        out = torch.lerp(out * (1 - shadow), (tint * shade).clamp(0, 1.2), depth.sigmoid())
    return graded(c, out)


def regions(c: Canvas) -> Tensor:
    """Two to six surfaces with ragged or smooth edges, each with its own light and texture; hard shadows over all."""
    out = c.colours() * (1 + c.number(0, 0.25) * natural(c, 1, 0.8, 1.8))
    for _ in range(4):
        field = natural(c, 1, 1.2, 2.4)
        inside = ((field - c.number(-0.8, 1.2)) * c.octave(0, 6)).sigmoid() * c.chance(0.8)
        ramp, _ = c.turned()
        light = 1 + c.number(-0.8, 0.8) * (ramp - 0.5)
        tone = torch.where(c.chance(0.5), natural(c, 3, 0.8, 1.8), natural(c, 1, 0.4, 1.2))
        out = torch.lerp(out, c.colours() * light * (1 + c.number(0, 0.4) * tone), inside)
    shadow = ((natural(c, 1, 1.4, 2.4) - c.number(0, 1)) * c.octave(2, 7)).sigmoid() * c.chance(0.6)
    return graded(c, out.clamp(0, 1.2) * (1 - c.number(0.2, 0.7) * shadow))


def lumps(c: Canvas) -> Tensor:
    """Rounded bodies of no particular shape, glossy or dull, with cast shadows, before something out of focus."""
    ramp, _ = c.turned(straight=0.5)
    back = torch.lerp(c.colours(), c.colours(), ramp) * (1 + 0.2 * natural(c, 1, 0.8, 1.6))
    out = _blurred(c, back, 24)
    step = max(1, c.size // 40)
    for _ in range(3):
        field = natural(c, 1, 1.8, 3.0) + 0.02 * natural(c, 1, 0.8, 1.4)
        high = (field - c.number(0.3, 1.3)).clamp(min=0)
        dome = (high * c.octave(0, 2.5)).sqrt()
        inside = (high * c.octave(5, 8)).clamp(0, 1)
        gloss = (lit(c, soft_blur(dome, 1)) - 1.5).clamp(min=0) * c.number(0, 3) * c.chance(0.5)
        body = c.colours() * lit(c, dome) * (1 + c.number(0, 0.3) * natural(c, 1, 0.3, 1.4)) + gloss
        cast = _blurred(c, inside.roll((step, -step), (2, 3)), 8)
        out = torch.lerp(out * (1 - c.number(0, 0.6) * cast.clamp(0, 1)), body.clamp(0, 1.2), inside)
    return graded(c, out)


def blur(c: Canvas) -> Tensor:
    """A photograph out of focus, or in focus along a band, with little contrast or much."""
    sharp = leaves(c)
    far = _blurred(c, sharp, 20)
    ramp, _ = c.turned()
    near = ((ramp - c.number(0, 1)).abs() * c.octave(1, 4)).clamp(max=1)
    return torch.lerp(sharp, far, torch.where(c.chance(0.5), near, c.number(0.5, 1)))


def tinged(c: Canvas) -> Tensor:
    """Natural noise in colours that go together: skies, skins, walls, water, fur."""
    field = natural(c, 1, 0.9, 2.2)
    rest = natural(c, 2, 0.9, 2.2)
    out = torch.lerp(c.colours(), c.colours(), (field * 0.35 + 0.5).clamp(0, 1))
    out = torch.lerp(out, c.colours(), (rest[:, :1] * 0.3).clamp(0, 1) * c.number(0, 1))
    return graded(c, out * lit(c, rest[:, 1:] * c.number(0, 0.05)))


KINDS = (leaves, regions, lumps, blur, tinged)
