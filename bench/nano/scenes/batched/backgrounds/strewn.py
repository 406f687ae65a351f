"""Grounds strewn with what has a shape, a place and an inside, and is no object: medals, galaxies, plants, tripods.

Photographs of coins, of a deep sky, of a lawn and of a man with a camera showed them to be lacking.
"""

from itertools import chain

import torch
from torch import Tensor

from bench.nano.scenes.batched.backgrounds.photographic import graded, lit, natural
from bench.nano.scenes.batched.backgrounds.scattered import Bodies, heap, scatter
from bench.nano.scenes.batched.painting import Canvas, soft_blur


def medals(c: Canvas) -> Tensor:
    """Coins, buttons, stamped lids: worn figures in relief on discs of metal or clay, loose on an even ground."""
    cells = int(3 * 4 ** float(torch.rand(())))
    figures = (natural(c, 1, 1, 1.7) * c.octave(0, 2)).tanh()
    height, above, draws = c.zeros(1), c.zeros(1), c.zeros(4)
    few, ragged = c.number(0.5, 1), c.number(0, 0.06) * natural(c, 1, 1.2, 2)
    for one in scatter(c, cells, c.number(0.35, 0.6), c.octave(0, 0.25), c.number(0, 6.3), 1):
        radius = one.radius + ragged
        rim = torch.exp(-(((radius - c.number(0.8, 0.95)) * 12) ** 2)) * one.draws[:, 1:2]
        relief = 1 + 0.15 * rim + c.number(0.15, 0.6) * figures * (radius < 0.85)
        over = (radius < 1) & (one.draws[:, :1] > above) & (one.draws[:, 3:] < few)
        above = torch.where(over, one.draws[:, :1], above)
        height = torch.where(over, relief, height)
        draws = torch.where(over, one.draws, draws)
    ramp, _ = c.turned()
    ground = c.colours() * (1 + c.number(-0.7, 0.7) * (ramp - 0.5)) * (1 + c.number(0, 0.15) * natural(c, 1, 0.5, 1.5))
    # Of little colour, and never smooth: circles of a bold colour are objects.
    metal = torch.lerp(c.number(0.2, 0.9), c.colours(), c.number(0, 0.3))
    metal = metal * (1 + c.number(0, 0.7) * (draws[:, 1:2] - 0.5)) * (1 + c.number(0.1, 0.3) * natural(c, 1, 0.3, 1.2))
    metal = metal * (1 + c.number(0, 0.3) * figures)
    smooth = soft_blur(height, 1)
    tone = torch.lerp(ground, metal, smooth.clamp(0, 1)) * lit(c, smooth * c.number(0.02, 0.08))
    return graded(c, tone.clamp(0, 1.2))


def galaxies(c: Canvas) -> Tensor:
    """A deep sky: ellipses with cores and arms, blue to orange, stars with spikes and points of all sizes, on black."""
    ground = c.colours() * c.number(0, 0.12) * (1 + c.number(0, 0.6) * natural(c, 1, 0.6, 1.6))
    warm, cold = c.colours(), c.colours()
    light = torch.zeros(c.batch, 3, c.size, c.size, device=c.device)
    for cells in (5, 12, 26, 50):
        few, flat = c.number(0.1, 0.9), c.number(0, 5)
        for one in scatter(c, cells, c.number(0.3, 0.9), c.octave(0, 0.3), c.number(3, 6.3), 1):
            own = one.draws
            radius = torch.hypot(one.u, one.v * (1 + flat * own[:, 2:3]))
            arms = 1 + 0.6 * torch.cos(2 * torch.atan2(one.v, one.u) + 5 * radius) * (own[:, 1:2] < 0.3)
            disc = torch.exp(-4 * radius) * arms + 1.5 * torch.exp(-30 * radius.square())
            cross = torch.exp(-25 * one.u.abs() - 2.5 * one.v.abs()) + torch.exp(-25 * one.v.abs() - 2.5 * one.u.abs())
            shape = torch.where(own[:, 1:2] > 0.93, disc + cross, disc)
            tint = torch.lerp(torch.lerp(warm, cold, own[:, 3:]), torch.ones_like(warm), 0.5 * torch.exp(-6 * radius))
            light = light + tint * shape * own[:, 2:3] * (own[:, :1] < few)
    points = (c.rand(1, c.size, c.size) > 1 - 0.004 * c.rand(1, 1, 1)).float()
    return (ground + light * c.octave(-0.3, 1.7) + soft_blur(points, 1) * c.number(0, 3)).clamp(0, 1.2)


def meadow(c: Canvas) -> Tensor:
    """A lawn from above: bent blades, short stalks and small round leaves, mostly of one colour, or of none."""
    bend, cells = c.number(0, 2), int(12 * 3 ** float(torch.rand(())))
    turn = c.number(1.5, 6.3)

    def plants() -> chain[Bodies]:
        blades = scatter(c, cells, c.number(1, 1.9), c.octave(2.3, 4), turn, 2)
        bent = (Bodies(b.u, b.v + bend * (b.draws[:, 3:] - 0.5) * b.u.square() * 3, b.draws) for b in blades)
        stalks = scatter(c, 2 * cells, c.number(0.6, 1.2), c.octave(1.5, 3.5), turn, 1)
        leaves = scatter(c, cells, c.number(0.2, 0.5), c.octave(0, 0.8), turn, 1)
        few = c.number(0, 0.9)
        sparse = (Bodies(b.u + 9 * (b.draws[:, 1:2] > few), b.v, b.draws + 0.1) for b in leaves)
        under = scatter(c, cells * 3 // 2, c.number(1, 1.9), c.octave(1.5, 3.5), turn, 2)
        return chain(under, bent, stalks, sparse)

    height, draws = heap(c, plants(), c.number(1.2, 2.5))
    tone = 1 + c.number(0.2, 1.5) * ((draws[:, :1] * 7.1).frac() - 0.5) + c.number(0, 0.4) * (height - 0.5)
    shade = 1 + c.number(0, 0.4) * natural(c, 1, 1.2, 2)
    colour = c.colours()
    ground = torch.where(height > 0, colour * tone * shade, torch.lerp(colour, c.colours(), 0.2) * c.number(0, 0.9))
    plain = torch.where(c.chance(0.4), ground.mean(1, keepdim=True).expand_as(ground), ground)
    even = torch.lerp(plain.mean((2, 3), keepdim=True), plain * lit(c, height * c.number(0, 0.03)), c.number(0.3, 1))
    return torch.lerp(even, soft_blur(even, 1), c.number(0, 1))


def rigs(c: Canvas) -> Tensor:
    """Poles, tripods, cranes, pipes: round rods with knobs and boxes where they meet, dark shapes, a far skyline."""
    x, y = c.grid()
    horizon = c.number(0.1, 0.9)
    below = ((y - horizon) * c.octave(4, 9)).sigmoid()
    sky = c.colours() * (1 + c.number(-0.6, 0.6) * (y - 0.5)) * (1 + c.number(0, 0.1) * natural(c, 1, 1.2, 2.4))
    out = torch.lerp(sky, c.colours() * (1 + c.number(0, 0.4) * natural(c, 1, 0.2, 1)), below)
    # Roofs and towers: each column of the skyline is as high as its block.
    blocks = c.rand(1, 1, 24).repeat_interleave(-(-c.size // 24), 3)[..., : c.size]
    far = (y < horizon) & (y > horizon - c.number(0, 0.25) * blocks.square())
    out = torch.where(far, c.colours() * (0.6 + 0.6 * c.smooth_noise(1, 48)), out)
    shape = ((natural(c, 1, 1.8, 2.8) - c.number(0.2, 1.6)) * c.octave(4, 7)).sigmoid()
    out = torch.lerp(out, c.colours() * c.number(0, 0.4) * (1 + c.number(0, 0.5) * natural(c, 1, 1, 2)), shape)
    joint_x, joint_y = c.number(0, 1), c.number(0, 1)
    for place in range(9):
        loose = c.chance(0.4)
        joint_x, joint_y = (torch.where(loose, c.number(0, 1), old) for old in (joint_x, joint_y))
        turn, length, thick = c.number(0, 6.3), c.octave(-4, 0), c.octave(-8, -4.5)
        along = (x - joint_x) * turn.cos() + (y - joint_y) * turn.sin()
        across = (y - joint_y) * turn.cos() - (x - joint_x) * turn.sin()
        boxed = c.chance(0.35)
        thick = torch.where(boxed, thick * 4, thick)
        length = torch.where(boxed, thick * c.octave(1.6, 3), length)  # no squares, which are objects
        rod = (along > 0) & (along < length) & (across.abs() < thick * (1 - c.number(0, 0.6) * along / length))
        gloss = 0.4 + c.number(0.2, 1.4) * (1 - ((across / thick - c.number(-0.6, 0.6)).square())).clamp(min=0)
        tint = torch.where(c.chance(0.5), c.number(0, 1), c.colours())
        out = torch.where(rod, tint * torch.where(boxed & (place % 2 == 0), 1, gloss), out)
        joint_x, joint_y = joint_x + length * turn.cos(), joint_y + length * turn.sin()
    soft = torch.lerp(out, soft_blur(out, 1), c.number(0, 1))
    return graded(c, soft.clamp(0, 1.2))


KINDS = (medals, galaxies, meadow, rigs)
