"""Painted backgrounds on the device; each scene samples one or two of them and varies them at random.

Painting takes hundreds of passes over an image, sampling takes one. Entries are square and larger
than scenes, RGB in the first three of four bytes, so that one load fetches a texel.
"""

import math
import random

import torch
from torch import Tensor

from bench.nano.scenes.batched import bank_kernel
from bench.nano.scenes.batched.backgrounds import KINDS
from bench.nano.scenes.batched.painting import Canvas, uniform

_MARGIN = 1.25  # side of an entry over the longer side of a scene
_CHUNK = 32
_MIXED = 1 / 3  # share of scenes whose background is blended from two entries


class BackgroundBank:
    """Backgrounds painted in advance. `longest`: the longer side of the largest scene, pixels."""

    def __init__(self, longest: int, device: torch.device, entries: int) -> None:
        self.device, self.side = device, math.ceil(_MARGIN * longest)
        self.texels = torch.zeros(entries, self.side, self.side, 4, dtype=torch.uint8, device=device)
        self.means = torch.zeros(entries, 3, device=device)
        self._next, self._kinds = 0, list[int]()
        self.refresh(entries)

    def refresh(self, count: int) -> None:
        """Repaint the `count` oldest entries without waiting for the device.

        The host chooses kinds and entries: call it outside of captured graphs, whose replays see the new entries.
        """
        while count > 0:
            if not self._kinds:
                self._kinds = random.sample(range(len(KINDS)), len(KINDS))
            fair = max(1, len(self.texels) // len(KINDS))
            number = min(count, _CHUNK, fair, len(self.texels) - self._next)
            self._fill(self._kinds.pop(), self._next, number)
            self._next = (self._next + number) % len(self.texels)
            count -= number

    @torch.no_grad()
    def _fill(self, kind: int, start: int, number: int) -> None:
        painted = (
            KINDS[kind](Canvas(number, self.side, self.device)).expand(number, 3, self.side, self.side).clamp(0, 1)
        )
        # Sliced writes of bytes: what lies there is read by kernels launched earlier, in the same stream.
        self.texels[start : start + number, ..., :3] = painted.mul(255).round().to(torch.uint8).permute(0, 2, 3, 1)
        self.means[start : start + number] = painted.mean((2, 3))

    def __call__(self, batch: int, size: tuple[int, int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Sample backgrounds [B, 3, H, W] in [0, 1]: moved, scaled, turned by quarters, mirrored, in other colours."""
        entry = torch.randint(len(self.texels), (batch, 2), device=self.device)
        place, colour, mask = self._places(batch, size), self._colours(entry), self._masks(batch)
        if self.device.type == "cuda" and bank_kernel.HAS_TRITON and dtype == torch.float16:
            return bank_kernel.triton_take(self.texels, entry, place, colour, mask, size)
        return take(self.texels, entry, place, colour, mask, size).to(dtype)

    def _places(self, batch: int, size: tuple[int, int]) -> Tensor:
        """Maps from scenes (x, y in [-1, 1]) to entries (texels), [B, 2, 2, 3]."""
        device = self.device
        zoom = torch.exp2(uniform((batch, 2, 1), -0.8, 0.25, device) + uniform((batch, 2, 2), -0.2, 0.2, device))
        half = torch.stack((zoom[..., 0] * size[1], zoom[..., 1] * size[0]), -1).div_(self.side).clamp(max=1)
        half = half * torch.where(torch.rand(batch, 2, 2, device=device) < 0.5, -1.0, 1.0)
        upright = torch.diag_embed(half)
        matrix = torch.where(torch.rand(batch, 2, 1, 1, device=device) < 0.5, upright.flip(-2), upright)
        room = 1 - matrix.abs().sum(-1, keepdim=True)
        centre = uniform((batch, 2, 2, 1), -1, 1, device) * room
        texels = torch.cat((matrix, centre), -1) * (self.side / 2)
        texels[..., 2] += (self.side - 1) / 2
        return texels

    def _colours(self, entry: Tensor) -> Tensor:
        """Maps of colours, [B, 2, 3, 4]: channels in any order, a third inverted, less contrast."""
        batch, device = len(entry), self.device
        order = torch.rand(batch, 2, 3, device=device).argsort(-1)
        matrix = (order[..., None] == torch.arange(3, device=device)).float()
        inverted = torch.rand(batch, 2, 1, device=device) < 0.33
        matrix = torch.where(inverted[..., None], -matrix, matrix)
        offset = inverted.float().expand(-1, -1, 3)
        mean = (matrix * self.means[entry][:, :, None]).sum(-1) + offset
        contrast = uniform((batch, 1, 1), 0.3, 1.0, device)
        return torch.cat((matrix * contrast[..., None], (mean + (offset - mean) * contrast)[..., None]), -1)

    def _masks(self, batch: int) -> Tensor:
        """Masks of the second entry, [B, 11]: three waves (frequencies x and y, phase), hardness, whether it shows."""
        device = self.device
        frequency = uniform((batch, 3, 2), -4.5, 4.5, device)
        waves = torch.cat((frequency, uniform((batch, 3, 1), 0, 2 * math.pi, device)), -1).flatten(1)
        hardness = torch.exp2(uniform((batch, 1), 0, 6, device))
        return torch.cat((waves, hardness, (torch.rand(batch, 1, device=device) < _MIXED).float()), 1)


def take(texels: Tensor, entry: Tensor, place: Tensor, colour: Tensor, mask: Tensor, size: tuple[int, int]) -> Tensor:
    """Sample backgrounds, float [B, 3, H, W], with PyTorch alone: the reference of the kernel.

    `texels`: uint8 [entries, side, side, 4]; `entry`: the two entries of each scene, [B, 2]; `place`: from x and y in
    [-1, 1] to column and row, [B, 2, 2, 3]; `colour`: from RGB and 1 to RGB, [B, 2, 3, 4]; `mask`: see `_masks`.
    """
    height, width = size
    side, device = texels.shape[1], texels.device
    x = ((torch.arange(width, device=device) + 0.5) * (2 / width) - 1)[None, None, :]
    y = ((torch.arange(height, device=device) + 0.5) * (2 / height) - 1)[None, :, None]

    def layer(k: int) -> Tensor:
        m = place[:, k, :, :, None, None]
        column, row = (
            (m[:, axis, 0] * x + m[:, axis, 1] * y + m[:, axis, 2]).clamp(0, side - 1.001) for axis in range(2)
        )
        c, r = column.long(), row.long()
        right, down = (column - c)[..., None], (row - r)[..., None]
        e = entry[:, k, None, None]
        upper = torch.lerp(texels[e, r, c, :3].float(), texels[e, r, c + 1, :3].float(), right)
        lower = torch.lerp(texels[e, r + 1, c, :3].float(), texels[e, r + 1, c + 1, :3].float(), right)
        rgb = torch.lerp(upper, lower, down) / 255
        return torch.einsum("bhwk,bck->bchw", rgb, colour[:, k, :, :3]) + colour[:, k, :, 3, None, None]

    w = [value[:, None, None] for value in mask.unbind(1)]
    waves = [torch.sin(w[3 * i] * x + w[3 * i + 1] * y + w[3 * i + 2]) for i in range(3)]
    share = torch.sigmoid((waves[0] + waves[1] + waves[2]) * w[9]) * w[10]
    return torch.lerp(layer(0), layer(1), share[:, None]).clamp(0, 1)
