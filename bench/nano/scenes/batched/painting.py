"""Tools of all painters of backgrounds: grids, random colours, noise, ramps.

Planes are [B, 1, S, S], numbers of an image [B, 1, 1, 1], so that they multiply.
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


def uniform(shape: tuple[int, ...], low: float, high: float, device: torch.device) -> Tensor:
    return torch.rand(shape, device=device) * (high - low) + low


class Canvas:
    """A batch of square images to paint on, and the random draws that painting needs."""

    def __init__(self, batch: int, size: int, device: torch.device) -> None:
        self.batch, self.size, self.device = batch, size, device

    def rand(self, *shape: int) -> Tensor:
        """Draw from U[0, 1) for every image: [B, *shape]."""
        return torch.rand(self.batch, *shape, device=self.device)

    def randint(self, high: int, *shape: int) -> Tensor:
        """Draw integers below `high` for every image: [B, *shape]."""
        return torch.randint(high, (self.batch, *shape), device=self.device)

    def number(self, low: float, high: float) -> Tensor:
        """Draw one number an image from U[low, high): [B, 1, 1, 1]."""
        return uniform((self.batch, 1, 1, 1), low, high, self.device)

    def octave(self, low: float, high: float) -> Tensor:
        """Draw one power of two an image, its exponent from U[low, high): [B, 1, 1, 1]."""
        return torch.exp2(self.number(low, high))

    def chance(self, share: float) -> Tensor:
        """Draw True (with probability `share`) or False for every image: [B, 1, 1, 1]."""
        return self.rand(1, 1, 1) < share

    def zeros(self, channels: int) -> Tensor:
        return torch.zeros(self.batch, channels, self.size, self.size, device=self.device)

    def colours(self) -> Tensor:
        """Draw colours [B, 3, 1, 1]: half of them muted, as rooms and tables are."""
        vivid, grey = self.rand(3, 1, 1), self.rand(1, 1, 1)
        mix = self.rand(1, 1, 1) * self.chance(0.6)
        return vivid * (1 - mix) + grey * mix

    def palette(self, count: int) -> Tensor:
        """Draw `count` colours an image that go together more or less: [B, 3, count]."""
        drawn = torch.cat([self.colours() for _ in range(count)], dim=2)[..., 0]
        return torch.lerp(drawn, drawn[..., :1], self.rand(1, 1).square())

    def grid(self, size: int | None = None) -> tuple[Tensor, Tensor]:
        """Return x and y of every pixel in [0, 1], each [S, S]."""
        size = size or self.size
        axis = (torch.arange(size, device=self.device) + 0.5) / size
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        return x, y

    def smooth_noise(self, channels: int, cells: int, size: int | None = None) -> Tensor:
        """Value noise: random cells, bicubically enlarged, roughly in [0, 1]."""
        side = size or self.size
        low = self.rand(channels, cells, cells)
        return functional.interpolate(low, size=(side, side), mode="bicubic", align_corners=False).clamp(0, 1)

    def fractal(self, channels: int, octaves: int = 5, size: int | None = None) -> Tensor:
        """Sum of value noises of doubling frequency with random weights, stretched to [0, 1]."""
        size = size or self.size
        total = torch.zeros(self.batch, channels, size, size, device=self.device)
        for octave in range(octaves):
            total += self.smooth_noise(channels, 3 * 2**octave, size) * self.rand(1, 1, 1)
        return stretch(total)

    def phase(self, warp: float = 0.0) -> Tensor:
        """A ramp across the image in a random direction, [B, 1, S, S], bent by noise."""
        ramp, _ = self.turned()
        return ramp + warp * self.smooth_noise(1, 5) * self.rand(1, 1, 1)

    def turned(self, straight: float = 0.0) -> tuple[Tensor, Tensor]:
        """Coordinates across and along a random direction, [B, 1, S, S] each; a share `straight` is not turned."""
        x, y = self.grid()
        angle = self.number(0, math.pi) * ~self.chance(straight)
        return x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()


def look_up(index: Tensor, colour: Tensor) -> Tensor:
    """Colour a plane of indices [B, 1, S, S] by a palette [B, 3, count]."""
    flat = (index.long() % colour.shape[2]).flatten(1)[:, None].expand(-1, 3, -1)
    return colour.gather(2, flat).view(-1, 3, *index.shape[2:])


def stretch(plane: Tensor) -> Tensor:
    """Stretch every image's values to [0, 1]."""
    low, high = plane.amin((1, 2, 3), keepdim=True), plane.amax((1, 2, 3), keepdim=True)
    return (plane - low) / (high - low + 1e-3)


def soft_blur(planes: Tensor, passes: int) -> Tensor:
    """Blur by repeated averages of 3 pixels each way."""
    for _ in range(passes):
        planes = functional.avg_pool2d(functional.pad(planes, (1, 1, 0, 0), mode="replicate"), (1, 3), 1)
        planes = functional.avg_pool2d(functional.pad(planes, (0, 0, 1, 1), mode="replicate"), (3, 1), 1)
    return planes
