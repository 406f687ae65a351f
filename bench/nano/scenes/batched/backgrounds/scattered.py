"""Backgrounds of many small bodies: pebbles, litter of blades and twigs, deep skies, craters.

On photographs of such ground a detector of small objects sees most of what is none.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from bench.nano.scenes.batched.backgrounds.photographic import graded, lit, natural
from bench.nano.scenes.batched.painting import Canvas, soft_blur


@dataclass(frozen=True)
class Bodies:
    """The body of one neighbouring cell at every pixel: [B, 1, S, S] each."""

    u: Tensor  # Place within the body, along it: -1 and 1 are its ends
    v: Tensor  # The same across it
    draws: Tensor  # Numbers of the body from U[0, 1), [B, 4, S, S]

    @property
    def radius(self) -> Tensor:
        return torch.hypot(self.u, self.v)


def scatter(c: Canvas, cells: int, length: Tensor, aspect: Tensor, angle: Tensor, reach: int) -> Iterator[Bodies]:
    """Put a body somewhere in every cell of a grid; yields those whose cells are up to `reach` away from a pixel's.

    Args:
        cells: Of the grid, each way.
        length: Half the length of a body at most, in cells; a body has from 60 % of it on.
        aspect: Its length over its width.
        angle: How far the directions of bodies differ, in radians.
    """
    side = cells + 2 * reach
    table = c.rand(8, side, side)
    turn = c.number(0, math.pi) + angle * (table[:, 3:4] - 0.5)
    x, y = (axis * cells for axis in c.grid())
    column, row = x.long(), y.long()
    for down in range(2 * reach + 1):
        for across in range(2 * reach + 1):
            cell = row + down, column + across
            own, theta = table[:, :, *cell], turn[:, :, *cell]
            dx = x - (column + across - reach) - own[:, :1]
            dy = y - (row + down - reach) - own[:, 1:2]
            half = length * (0.6 + 0.4 * own[:, 2:3])
            u = (dx * theta.cos() + dy * theta.sin()) / half
            v = (dy * theta.cos() - dx * theta.sin()) / half * aspect
            yield Bodies(u, v, own[:, 4:])


def heap(c: Canvas, bodies: Iterator[Bodies], power: Tensor) -> tuple[Tensor, Tensor]:
    """Return the height [B, 1, S, S] of the uppermost body, 0 between bodies, and its draws [B, 4, S, S]."""
    height, above = c.zeros(1), c.zeros(1)
    draws = c.zeros(4)
    for one in bodies:
        inside = 1 - (one.u.abs().clamp(min=1e-4) ** power + one.v.abs().clamp(min=1e-4) ** power)
        over = (inside > 0) & (one.draws[:, :1] > above)
        above = torch.where(over, one.draws[:, :1], above)
        height = torch.where(over, inside.clamp(min=0).sqrt(), height)
        draws = torch.where(over, one.draws, draws)
    return height, draws


def coloured(c: Canvas, height: Tensor, draws: Tensor) -> Tensor:
    """Colour bodies from one palette with light and texture, and darken the gaps between them."""
    tint = torch.lerp(c.colours(), c.colours(), draws[:, 1:2]) * (1 + c.number(0, 1.2) * (draws[:, 2:3] - 0.5))
    tone = tint * lit(c, height) * (1 + c.number(0, 0.3) * natural(c, 1, 0.3, 1.2))
    gap = c.colours() * c.number(0, 0.5)
    body = (height * c.octave(1, 4)).clamp(max=1)
    return graded(c, torch.lerp(gap, tone, body).clamp(0, 1.2))


def pebbles(c: Canvas) -> Tensor:
    """Gravel, beans, coins of no kind: rounded bodies of about a size, close together, with dark gaps."""
    cells = int(14 * 4 ** float(torch.rand(())))
    length, aspect, angle = c.number(0.6, 1), c.octave(0, 1), c.number(0, 3.2)
    layers = [scatter(c, cells, length, aspect, angle, 1) for _ in range(2)]
    return coloured(c, *heap(c, chain(*layers), c.number(1.6, 3.5)))


def litter(c: Canvas) -> Tensor:
    """Blades of grass, needles, straw, twigs: long thin bodies across one another."""
    cells = int(18 * 3 ** float(torch.rand(())))
    bodies = scatter(c, cells, c.number(1.2, 2), c.octave(2, 3.5), c.number(0.3, 3.2), 2)
    return coloured(c, *heap(c, bodies, c.number(1.2, 2.5)))


def deep_sky(c: Canvas) -> Tensor:
    """Stars, galaxies, lights at night, confetti out of focus: blobs that glow, few of them large, on a dark ground."""
    cells = int(12 * 4 ** float(torch.rand(())))
    few, first, second = c.number(0.1, 0.9), c.colours(), c.colours()
    ground = c.colours() * c.number(0, 0.25)
    glow = torch.zeros(c.batch, 3, c.size, c.size, device=c.device)
    for one in scatter(c, cells, c.number(0.3, 0.9), c.octave(0, 1.2), c.number(0, 6.3), 1):
        bright = one.draws[:, :1] * (one.draws[:, 1:2] < few)
        spread = 0.15 + 0.85 * one.draws[:, 2:3] ** 4
        tint = torch.lerp(torch.lerp(first, second, one.draws[:, 3:]), torch.ones_like(first), 0.4)
        glow = glow + tint * bright * torch.exp(-((one.radius / spread) ** 2))
    return ground * (1 + 0.3 * natural(c, 1, 0.8, 1.8)) + glow * c.number(0.8, 3)


def craters(c: Canvas) -> Tensor:
    """Dents and bumps in something smooth, lit from a side: the moon, dough, dented metal, drops."""
    cells = int(3 * 5 ** float(torch.rand(())))
    few, rim, raised = c.number(0.1, 0.7), c.number(0.05, 0.4), torch.where(c.chance(0.3), 1, -1)
    height = natural(c, 1, 1.6, 2.6) * c.number(0, 0.3)
    for one in scatter(c, cells, c.number(0.3, 0.9), c.octave(0, 0.7), c.number(0, 6.3), 1):
        bowl = (1 - one.radius.square()).clamp(min=0) - rim * torch.exp(-(((one.radius - 1) * 6) ** 2))
        height = height + raised * bowl * (one.draws[:, :1] < few) * (0.3 + one.draws[:, 1:2])
    tone = torch.lerp(c.colours(), c.colours(), (natural(c, 1, 1.2, 2.2) * 0.3 + 0.5).clamp(0, 1))
    return graded(c, (tone * lit(c, soft_blur(height, 1) * c.octave(-1, 2))).clamp(0, 1.2))


KINDS = (pebbles, litter, deep_sky, craters)
