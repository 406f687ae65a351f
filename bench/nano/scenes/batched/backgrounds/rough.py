"""Rough grounds: crushed stone, tufts of grass, blemished surfaces, and the output of random networks.

The first three are what photographs of gravel, lawns and the moon showed to be lacking; the last is like nothing in
particular, so that what is learned to be no object does not end at the kinds that were thought of.
"""

import math
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.scenes.batched.backgrounds.photographic import graded, lit, natural
from bench.nano.scenes.batched.backgrounds.scattered import Bodies, coloured, heap, scatter
from bench.nano.scenes.batched.painting import Canvas

_CHANNELS = 8
_STEPS = 1, 1, 2, 3, 5, 8  # between the pixels that a layer reads
_BENDS = functional.leaky_relu, torch.abs, torch.sin, torch.tanh, torch.relu


def crushed(c: Canvas) -> Tensor:
    """Crushed stone, broken glass, cut gems, clods: bodies that fill the ground, each of three faces in their light."""
    cells = int(12 * 5 ** float(torch.rand(())))
    first, second = c.zeros(1) + 9, c.zeros(1) + 9
    turn, draws = c.zeros(1), c.zeros(4)
    for one in scatter(c, cells, c.number(0.8, 1), c.octave(0, 0.8), c.number(0, 6.3), 1):
        nearer = one.radius < first
        second = torch.where(nearer, first, torch.minimum(second, one.radius))
        first = torch.where(nearer, one.radius, first)
        turn = torch.where(nearer, torch.atan2(one.v, one.u), turn)
        draws = torch.where(nearer, one.draws, draws)
    face = ((turn / (2 * math.pi) + draws[:, :1]) * 3).floor() % 3
    light = (draws[:, 1:2] * 7.3 + face * (0.37 + draws[:, 2:3])).frac()
    tint = torch.lerp(c.colours(), c.colours(), draws[:, 3:4] * c.number(0, 1))
    tone = tint * (1 + c.number(0.1, 1.2) * (light - 0.5)) * (1 + c.number(0, 0.3) * natural(c, 1, 0.3, 1.2))
    gap = ((second - first) * c.octave(1, 4) - c.number(0, 0.4)).clamp(0, 1)
    return graded(c, torch.lerp(c.colours() * c.number(0, 0.5), tone, gap).clamp(0, 1.2))


def tufts(c: Canvas) -> Tensor:
    """Trodden grass, straw, hair, roots: bent blades of several lengths in all tones, the short ones on top."""
    bend = c.number(0, 1.5)
    cells = int(8 * 3 ** float(torch.rand(())))

    def layer(finer: int) -> Iterator[Bodies]:
        for b in scatter(c, finer * cells, c.number(0.9, 2), c.octave(2.5, 4.5), c.number(0.5, 6.3), 2):
            yield Bodies(b.u, b.v + bend * (b.draws[:, 3:] - 0.5) * b.u.square() * 3, b.draws + (finer - 1))

    height, draws = heap(c, chain(layer(1), layer(2)), c.number(1.2, 2.5))
    ground = coloured(c, height, draws.frac())
    tone = 1 + c.number(0.2, 1.4) * ((draws[:, :1] * 5.7).frac() - 0.5) * (height > 0)
    return (ground * tone).clamp(0, 1.2)


def blemished(c: Canvas) -> Tensor:
    """The moon from far away, plaster, skin, old paper: few spots, faint or not, on an even ground."""
    ramp, _ = c.turned()
    ground = c.colours() * (0.3 + 0.6 * c.rand(1, 1, 1) + c.number(-0.3, 0.3) * (ramp - 0.5))
    ground = ground * (1 + c.number(0, 0.06) * natural(c, 1, 0.3, 1.8))
    ragged = 1 + c.number(0, 0.6) * natural(c, 1, 1.0, 2.2)
    for cells in (3, 7, 16, 34):
        few, strength = c.number(0.02, 0.5), c.octave(-5, -0.3)
        for one in scatter(c, cells, c.octave(-3, -1.2), c.octave(0, 1.5), c.number(0, 6.3), 1):
            shape = torch.exp(-((one.radius * ragged).clamp(0, 9) ** c.number(1.5, 4)))
            sign = torch.where(one.draws[:, 1:2] < 0.6, -1.0, 1.0)
            ground = ground * (1 + sign * strength * shape * (one.draws[:, :1] < few) * one.draws[:, 2:3]).clamp(min=0)
    return graded(c, ground.clamp(0, 1.2)) + torch.randn_like(ground) * c.number(0, 0.02)


def network(c: Canvas) -> Tensor:
    """What a convolutional network with random weights makes of noise (as in Baradad et al., 2021)."""
    shape = (1, c.batch * _CHANNELS, c.size, c.size)
    ramp, across = c.turned()
    x = torch.cat((natural(c, _CHANNELS - 2, 0.2, 2), ramp * 2 - 1, across * 2 - 1), 1)
    for _ in range(int(torch.randint(2, 5, ()))):
        step = _STEPS[int(torch.randint(len(_STEPS), ()))]
        weight = torch.randn(c.batch * _CHANNELS, _CHANNELS, 3, 3, device=c.device)
        padded = functional.pad(x.view(shape), (step,) * 4, mode="reflect")
        x = functional.conv2d(padded, weight, groups=c.batch, dilation=step).view(c.batch, _CHANNELS, c.size, c.size)
        x = (x - x.mean((2, 3), keepdim=True)) / (x.std((2, 3), keepdim=True) + 1e-3)
        x = _BENDS[int(torch.randint(len(_BENDS), ()))](x * c.octave(-0.5, 1.5))
    mixed = torch.einsum("bkc,bchw->bkhw", torch.randn(c.batch, 3, _CHANNELS, device=c.device), x)
    mixed = mixed / (mixed.std((1, 2, 3), keepdim=True) + 1e-3)
    tone = torch.lerp(c.colours(), c.colours(), (0.5 + 0.3 * mixed[:, :1]).clamp(0, 1))
    return graded(c, (tone * lit(c, mixed[:, 1:2] * c.number(0, 0.05)) + 0.2 * c.rand(1, 1, 1) * mixed).clamp(0, 1.2))


KINDS = (crushed, tufts, blemished, network)
