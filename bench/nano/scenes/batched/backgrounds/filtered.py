"""Backgrounds of filtered noise: grit, blades, star fields, cratered ground, plots of several textures, frames.

Every body is a crest of noise or an impulse that a filter has spread: no loop over bodies, and none is like another.
"""

import math

import torch
from torch import Tensor

from bench.nano.scenes.batched.backgrounds.photographic import graded, lit, natural
from bench.nano.scenes.batched.painting import Canvas, look_up


def _frequencies(c: Canvas, turn: Tensor) -> tuple[Tensor, Tensor]:
    """Cycles an image along a direction [B, 1, 1, 1] and across it, [B, 1, S, S // 2 + 1] each."""
    down = torch.fft.fftfreq(c.size, 1 / c.size, device=c.device)[:, None]
    right = torch.fft.rfftfreq(c.size, 1 / c.size, device=c.device)
    return right * turn.cos() + down * turn.sin(), down * turn.cos() - right * turn.sin()


def _filtered(c: Canvas, channels: int, gain: Tensor) -> Tensor:
    """Noise of a spectrum [B, 1, S, S // 2 + 1], of deviation 1: [B, channels, S, S]."""
    turn = c.rand(channels, c.size, c.size // 2 + 1) * (2 * math.pi)
    waves = torch.fft.irfft2(torch.polar(gain.expand_as(turn), turn), s=(c.size, c.size))
    return waves / (waves.std((2, 3), keepdim=True) + 1e-6)


def _band(c: Canvas, channels: int, cells: Tensor, turn: Tensor, longer: Tensor) -> Tensor:
    """Noise of about `cells` crests an image, `longer` times as long in a direction as across it."""
    along, across = _frequencies(c, turn)
    distance = torch.hypot(along * longer, across) / cells
    return _filtered(c, channels, torch.exp(-2 * (distance.clamp(min=1e-3).log2() - 0.2).square()))


def _spread(impulses: Tensor, gain: Tensor) -> Tensor:
    """Put a shape, given by its spectrum [B, 1, S, S // 2 + 1], at all impulses [B, C, S, S], as high as they are."""
    return torch.fft.irfft2(torch.fft.rfft2(impulses) * gain, s=impulses.shape[2:])


def _around(c: Canvas) -> Tensor:
    """Distance of every pixel from the first one, around the image's edges, in images: [S, S]."""
    axis = torch.fft.fftfreq(c.size, device=c.device)
    return torch.hypot(axis[:, None], axis)


def grit(c: Canvas) -> Tensor:
    """Crushed stone, soil, bark, crumbs: bodies of no particular shape that press on each other, lit from a side."""
    turn, longer = c.number(0, math.pi), c.octave(0, 1) * c.chance(0.5) + 1
    fields = _band(c, 7, c.octave(3.3, 6), turn, longer)
    top = fields.topk(2, 1)
    height, owner = top.values[:, :1], top.indices[:, :1]
    gap = (height - top.values[:, 1:]) * c.octave(0.5, 3.5)
    tint = look_up(owner, torch.lerp(c.colours()[..., 0], c.palette(7), c.rand(1, 1)))
    relief = lit(c, height * c.number(0.02, 0.12)) * (1 + c.number(0, 0.35) * natural(c, 1, 0.2, 1.2))
    ground = c.colours() * c.number(0, 0.6)
    return graded(c, torch.lerp(ground, tint * relief, gap.clamp(0, 1)).clamp(0, 1.2))


def blades(c: Canvas) -> Tensor:
    """Lawns, hay, needles, fur, leaves on the ground: crests drawn out in several directions, layer over layer."""
    out = c.colours() * (0.7 + 0.2 * natural(c, 1, 0.3, 1.2)) * c.number(0.1, 1)
    main, spread = c.number(0, math.pi), c.number(0.2, math.pi)
    cells, longer, tint = c.octave(4, 6.3), c.octave(1, 3.3), c.colours()
    for _ in range(7):
        turn = main + spread * (c.rand(1, 1, 1) - 0.5)
        # One layer in six is of leaves in the place of blades.
        broad = c.chance(1 / 6)
        field = _band(c, 1, cells * torch.where(broad, 0.4, 1), turn, torch.where(broad, 1.3, longer))
        over = field - c.number(0.8, 1.6)
        cast = (1 - (over.roll((2, -2), (2, 3)) * 6).clamp(0, 1) * c.number(0, 0.6)).clamp(0, 1)
        body = torch.lerp(tint, c.colours(), c.number(0, 0.5)) * c.number(0.5, 1.3) * lit(c, field * 0.05)
        out = torch.lerp(out * cast, body.clamp(0, 1.2), (over * c.octave(2, 4)).clamp(0, 1))
    return graded(c, out)


def star_field(c: Canvas) -> Tensor:
    """Stars, galaxies and lamps: points of all brightnesses with halos, some drawn out, some with spikes."""
    number, strength = c.octave(5, 10.5), c.octave(-3, 0)
    # Few points are bright: their number falls with the square of their brightness.
    points = (c.rand(1, c.size, c.size) < number / c.size**2) * strength / (c.rand(1, c.size, c.size) + 0.02)
    out = c.colours() * c.number(0, 0.2) * (1 + 0.3 * natural(c, 1, 0.6, 1.8))
    for _ in range(3):
        along, across = _frequencies(c, c.number(0, math.pi))
        radius = c.octave(-9, -5.8)
        # An exponent of 2 gives a disc with soft edges, 1 a core with a wide halo.
        far = torch.hypot(along * c.octave(-1, 1), across) * radius * math.pi
        own = points * (c.rand(1, c.size, c.size) < 0.5)
        bloom = _spread(own, torch.exp(-(far ** c.number(0.9, 2))))
        tint = torch.lerp(c.colours(), torch.ones_like(out[:, :, :1, :1]), c.number(0, 0.8))
        out = out + tint * bloom * (radius * c.size).square() * c.number(0.3, 2)
    along, across = _frequencies(c, c.number(0, 0.3))
    cross = [torch.exp(-(one.abs() * 0.3 + other.abs() * 0.003)) for one, other in ((along, across), (across, along))]
    bright = points * (points > 6) * c.chance(0.4)
    out = (out + _spread(bright, cross[0] + cross[1]) * c.number(0, 2)).clamp(0, 1)
    return out + torch.randn_like(out) * c.number(0, 0.03)


def cratered(c: Canvas) -> Tensor:
    """The moon, rain on sand, dents, blisters: bowls of all sizes, few of them large, in slow or hard light."""
    distance = _around(c)
    height = natural(c, 1, 1.4, 2.4) * c.number(0, 0.06)
    raised = torch.where(c.chance(0.2), 1.0, -1.0)
    for place in range(4):
        radius = c.octave(-6.5 + place, -5.5 + place)
        bowl = (1 - (distance / radius).square()).clamp(min=0)
        rim = torch.exp(-(((distance / radius - 1.05) * 5).square())) * c.number(0.1, 0.5)
        shape = (bowl - rim) * radius * 4
        number = c.octave(-1, 3) * 4.0 ** (2 - place)
        pits = (c.rand(1, c.size, c.size) < number / c.size**2) * c.rand(1, c.size, c.size)
        height = height + raised * _spread(pits, torch.fft.rfft2(shape))
    stain = ((natural(c, 1, 1.2, 2.2) - c.number(0, 2)) * c.octave(0, 4)).sigmoid() * c.number(0, 0.8)
    tone = torch.lerp(c.colours(), c.colours() * 0.3, stain) * (1 + c.number(0, 0.1) * natural(c, 1, 0.2, 1.4))
    return graded(c, (tone * lit(c, height * c.octave(0, 2))).clamp(0, 1.2))


def plots(c: Canvas) -> Tensor:
    """Grounds, skies and silhouettes: parts with straight or ragged edges, each of a texture of its own."""
    ramp, _ = c.turned(straight=0.5)
    out = torch.lerp(c.colours(), c.colours(), ramp.clamp(0, 1)) * (1 + c.number(0, 0.1) * natural(c, 1, 0.8, 1.8))
    for _ in range(4):
        u, v = c.turned(straight=0.6)
        edge = torch.where(c.chance(0.5), u - c.number(0, 1), (u - c.number(0, 1)).abs() - c.octave(-6, -1.5))
        edge = torch.where(c.chance(0.3), torch.maximum(edge, (v - c.number(0, 1)).abs() - c.number(0, 0.5)), edge)
        edge = edge + c.number(0, 0.15) * natural(c, 1, 1.0, 2.4) * c.chance(0.6)
        fine = _band(c, 1, c.octave(4, 7), c.number(0, math.pi), c.octave(0, 3))
        fine = torch.where(c.chance(0.5), natural(c, 1, 0.2, 1.6), fine)
        cut = (fine * c.octave(0, 3)).tanh()
        grain = torch.where(c.chance(0.5), fine, cut) * c.number(0, 0.5)
        part = c.colours() * c.number(0.1, 1.2) * (1 + grain) * lit(c, fine * c.number(0, 0.03))
        out = torch.lerp(out, part.clamp(0, 1.2), (edge * c.octave(5, 9)).sigmoid())
    x, y = c.grid()
    corner = (x - 0.5).square() + (y - 0.5).square()
    return graded(c, out * (1 - c.number(0, 1) * corner)) + torch.randn_like(out) * c.number(0, 0.05)


def frames(c: Canvas) -> Tensor:
    """Fronts of houses, shelves, masts, engines: bars and openings that repeat, in parts of all sizes."""
    ramp, _ = c.turned(straight=0.7)
    out = torch.lerp(c.colours(), c.colours(), ramp.clamp(0, 1)) * (1 + c.number(0, 0.1) * natural(c, 1, 0.8, 1.8))
    tints = c.palette(6)
    for _ in range(9):
        u, v = c.turned(straight=0.7)
        u, v = u - c.number(0, 1), v - c.number(0, 1)
        wide = c.octave(-6.5, -1.3)
        tall = wide * c.octave(1, 3.5)  # a square would be an object
        # Parts grow narrower towards one end, as towers do.
        inside = torch.minimum(wide * (1 - c.number(0, 0.8) * v / tall) - u.abs(), tall - v.abs())
        columns, rows, lean = c.octave(3, 6.5), c.octave(2.5, 6.5), c.number(-1, 1) * c.chance(0.4)
        across, along = (u * columns + lean * v * rows).frac().abs(), (v * rows - lean * u * columns).frac().abs()
        bars = torch.maximum((across - c.number(0.2, 0.9)) / columns, (along - c.number(0.2, 0.9)) / rows)
        dark, light = (tints.gather(2, c.randint(6, 1, 1).expand(-1, 3, 1))[..., None] for _ in range(2))
        part = torch.lerp(dark * c.number(0.2, 1), light, (bars * c.size + 0.5).clamp(0, 1))
        part = part * (1 + c.number(-0.8, 0.8) * u / wide)
        hollow = torch.where(c.chance(0.3), bars, inside)
        mask = torch.minimum(inside, hollow) * c.size
        out = torch.lerp(out, part.clamp(0, 1.2), (mask + 0.5).clamp(0, 1))
    return graded(c, out)


KINDS = (grit, blades, star_field, cratered, plots, frames)
