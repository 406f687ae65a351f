"""What all painters of backgrounds use: grids, random colours, noise, phases.

Planes are ``[B, 1, S, S]``, numbers of an image ``[B, 1, 1, 1]``, so that they multiply.
"""

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional


@functools.cache
def constant(value: float | tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a number or a row of numbers on the device; copied once, so a graph is captured after a first call."""
    return torch.tensor(value, dtype=dtype, device=device)


def grid(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return x and y of every pixel in [0, 1], each [S, S]."""
    axis = (torch.arange(size, device=device) + 0.5) / size
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return x, y


def uniform(shape: tuple[int, ...], low: float, high: float, device: torch.device) -> Tensor:
    """Draw from U[low, high)."""
    return torch.rand(shape, device=device) * (high - low) + low


def number(batch: int, low: float, high: float, device: torch.device) -> Tensor:
    """Draw one number an image from U[low, high): [B, 1, 1, 1]."""
    return uniform((batch, 1, 1, 1), low, high, device)


def octave(batch: int, low: float, high: float, device: torch.device) -> Tensor:
    """Draw one power of two an image, its exponent from U[low, high): [B, 1, 1, 1]."""
    return torch.exp2(number(batch, low, high, device))


def chance(batch: int, share: float, device: torch.device) -> Tensor:
    """Draw yes (with probability `share`) or no for every image: [B, 1, 1, 1]."""
    return torch.rand(batch, 1, 1, 1, device=device) < share


def colours(batch: int, device: torch.device) -> Tensor:
    """Draw colours [B, 3, 1, 1]: half of them muted, as rooms and tables are."""
    vivid = torch.rand(batch, 3, 1, 1, device=device)
    grey = torch.rand(batch, 1, 1, 1, device=device)
    mix = torch.rand(batch, 1, 1, 1, device=device) * chance(batch, 0.6, device)
    return vivid * (1 - mix) + grey * mix


def palette(batch: int, count: int, device: torch.device) -> Tensor:
    """Draw `count` colours an image that go together more or less: [B, 3, count]."""
    drawn = torch.cat([colours(batch, device) for _ in range(count)], dim=2)[..., 0]
    return torch.lerp(drawn, drawn[..., :1], torch.rand(batch, 1, 1, device=device).square())


def look_up(index: Tensor, colour: Tensor) -> Tensor:
    """Colour a plane of indices [B, 1, S, S] by a palette [B, 3, count]."""
    flat = (index.long() % colour.shape[2]).flatten(1)[:, None].expand(-1, 3, -1)
    return colour.gather(2, flat).view(-1, 3, *index.shape[2:])


def smooth_noise(batch: int, channels: int, cells: int, size: int, device: torch.device) -> Tensor:
    """Value noise: random cells, bicubically enlarged, roughly in [0, 1]."""
    low = torch.rand(batch, channels, cells, cells, device=device)
    return functional.interpolate(low, size=(size, size), mode="bicubic", align_corners=False).clamp(0, 1)


def stretch(plane: Tensor) -> Tensor:
    """Stretch every image's values to [0, 1]."""
    low, high = plane.amin((1, 2, 3), keepdim=True), plane.amax((1, 2, 3), keepdim=True)
    return (plane - low) / (high - low + 1e-3)


def fractal(batch: int, channels: int, size: int, device: torch.device, octaves: int = 5) -> Tensor:
    """Sum of value noises of doubling frequency with random weights, stretched to [0, 1]."""
    total = torch.zeros(batch, channels, size, size, device=device)
    cells = 3
    for _ in range(octaves):
        total += smooth_noise(batch, channels, cells, size, device) * torch.rand(batch, 1, 1, 1, device=device)
        cells *= 2
    return stretch(total)


def phase(batch: int, size: int, device: torch.device, warp: float = 0.0) -> Tensor:
    """A ramp across the image in a random direction, [B, 1, S, S], bent by noise."""
    ramp, _ = turned(batch, size, device)
    return ramp + warp * smooth_noise(batch, 1, 5, size, device) * torch.rand(batch, 1, 1, 1, device=device)


def turned(batch: int, size: int, device: torch.device, straight: float = 0.0) -> tuple[Tensor, Tensor]:
    """Coordinates across and along a random direction, each [B, 1, S, S]; a share `straight` is not turned."""
    x, y = grid(size, device)
    angle = number(batch, 0, math.pi, device) * ~chance(batch, straight, device)
    return x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()


def soft_blur(planes: Tensor, passes: int) -> Tensor:
    """Blur by repeated averages of 3 pixels each way."""
    for _ in range(passes):
        planes = functional.avg_pool2d(functional.pad(planes, (1, 1, 0, 0), mode="replicate"), (1, 3), 1)
        planes = functional.avg_pool2d(functional.pad(planes, (0, 0, 1, 1), mode="replicate"), (3, 1), 1)
    return planes
