"""The vision towers: patches of several images of different sizes, packed on one axis, to embeddings of the decoder.

```
patches ── linear ──[+ learned positions]── blocks, 2-D rotary ──────────────── merger ──> embeddings [P / 4, dim]
                                              └─ after chosen layers ── merger ──> deepstack [D, P / 4, dim]
```

Attention never leaves an image. The older tower attends within windows in most layers: embeddings are reordered so that
the windows of one size follow each other, which makes each size one batch, and put back behind the merger.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from photonlite.models.layers import RMSNorm, attend, rotate
from photonlite.models.qwen.config import Version, VisionConfig
from photonlite.models.qwen.images import ImageSettings
from photonlite.models.qwen.text import GatedMLP

Grid = tuple[int, int]  # rows and columns of patches of an image
Runs = Sequence[tuple[int, int]]  # how many sequences of which length follow each other on the packed axis

_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Place:
    """What follows from the sizes of a launch's images alone."""

    positions: Tensor | None  # [P, dim]: learned positions, interpolated
    rotary: Tensor  # cosines and sines, float32 [2, P, D / 2]
    whole: Runs
    order: Tensor | None  # [P / 4]: embeddings by window, where there are windows
    windows: Runs

    def runs_of(self, config: VisionConfig, layer: int) -> Runs:
        return self.whole if self.order is None or layer in config.full_layers else self.windows

    def reorder(self, x: Tensor) -> Tensor:
        """Reorder patches ``[P, ...]`` by windows."""
        return x if self.order is None else _reorder(x, self.order)

    def put_back(self, merged: Tensor) -> Tensor:
        """Reorder embeddings ``[P / 4, dim]`` as they were before."""
        return merged if self.order is None else torch.empty_like(merged).index_copy_(0, self.order, merged)


class MLP(nn.Module):
    """``fc2(gelu(fc1(x)))``."""

    def __init__(self, dim: int, ff_dim: int, out_dim: int, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate
        self.fc1 = nn.Linear(dim, ff_dim)
        self.fc2 = nn.Linear(ff_dim, out_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(x), approximate=self.approximate))


class VisionBlock(nn.Module):
    """A pre-norm transformer block over packed patches ``[P, dim]``."""

    def __init__(self, config: VisionConfig, version: Version) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm1, self.norm2 = _norm(config.dim, version), _norm(config.dim, version)
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.proj = nn.Linear(config.dim, config.dim)
        self.mlp: nn.Module
        if version.newer:
            self.mlp = MLP(config.dim, config.ff_dim, config.dim, "tanh")
        else:
            self.mlp = GatedMLP(config.dim, config.ff_dim, bias=True)

    def forward(self, x: Tensor, rotary: Tensor, runs: Runs) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(1)  # [P, H, D] each
        q, k = rotate(q, *rotary.unsqueeze(-2)), rotate(k, *rotary.unsqueeze(-2))
        x = x + self.proj(attend_runs(q, k, v, runs).flatten(1))
        return x + self.mlp(self.norm2(x))


class Merger(nn.Module):
    """Joins the patches of one embedding and maps them to the decoder's space; the norm comes before or behind."""

    def __init__(self, config: VisionConfig, version: Version, *, norm_joined: bool = False) -> None:
        super().__init__()
        self.joined, self.norm_joined = config.dim * config.merge**2, norm_joined
        self.norm = _norm(self.joined if norm_joined else config.dim, version)
        self.mlp = MLP(self.joined, self.joined, config.out_dim, "none")

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.reshape(-1, self.joined)) if self.norm_joined else self.norm(x).reshape(-1, self.joined)
        return self.mlp(x)


class VisionTower(nn.Module):
    """Patch embedding, transformer and mergers of either generation."""

    def __init__(self, config: VisionConfig, version: Version, images: ImageSettings) -> None:
        super().__init__()
        self.config, self.images = config, images
        self.patch_embed = nn.Linear(config.patch_dim, config.dim, bias=version.newer)
        self.positions = nn.Parameter(torch.empty(config.table**2, config.dim)) if config.table else None
        self.blocks = nn.ModuleList(VisionBlock(config, version) for _ in range(config.layers))
        self.merger = Merger(config, version)
        self.deepstack = nn.ModuleList(Merger(config, version, norm_joined=True) for _ in config.deepstack)

    def encode(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Map patches as images are cut into, uint8; see `models.base.PatchEncoder`."""
        return self(self.normalize(patches), grids)

    def encoding(self, grids: Sequence[Grid]) -> Callable[[Tensor], Tensor]:
        place = self.place_of(grids)
        return lambda patches: self._run(self.normalize(patches), place)

    def normalize(self, patches: Tensor) -> Tensor:
        return normalize_patches(patches, self.images, self.config.frames).to(self.patch_embed.weight.dtype)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Map normalised patches ``[P, patch_dim]`` of images to embeddings ``[1 + D, P / 4, dim]``, deepstack last."""
        return self._run(patches, self.place_of(grids))

    def _run(self, patches: Tensor, place: Place) -> Tensor:
        x = self.patch_embed(patches)
        if place.positions is not None:
            x = x + place.positions
        x = place.reorder(x)
        outputs: list[Tensor] = []
        for index, block in enumerate(self.blocks):
            x = block(x, place.rotary, place.runs_of(self.config, index))
            if index in self.config.deepstack:
                outputs.append(self.deepstack[len(outputs)](x))
        return torch.stack((place.put_back(self.merger(x)), *outputs))

    def place_of(self, grids: Sequence[Grid]) -> Place:
        config, weight = self.config, self.patch_embed.weight
        dtype, device = weight.dtype, weight.device
        whole: Runs = [(1, rows * columns) for rows, columns in grids]
        positions = None if self.positions is None else self._positions(self.positions, grids).to(dtype)
        angles = torch.cat([_rotary_angles(grid, config, device) for grid in grids])
        order, windows = None, whole
        if config.window:
            order, windows = _window_order(grids, config, device)
            angles = _reorder(angles, order)
        return Place(positions, torch.stack((angles.cos(), angles.sin())), whole, order, windows)

    def _positions(self, table: Tensor, grids: Iterable[Grid]) -> Tensor:
        """Interpolate learned positions to each image's grid, linearly, corners on corners: float32 ``[P, dim]``."""
        side, merge = self.config.table, self.config.merge
        square = table.float().view(side, side, -1)
        found = []
        for rows, columns in grids:
            down, across = (_interpolation(length, side, table.device) for length in (rows, columns))
            spread = torch.einsum("hi,ijd->hjd", down, square)
            found.append(_merge_major(torch.einsum("wj,hjd->hwd", across, spread), merge))
        return torch.cat(found)


def normalize_patches(pixels: Tensor, settings: ImageSettings, frames: int) -> Tensor:
    """Map uint8 patches ``[P, 3 * patch * patch]`` to what the tower reads: float32, once a frame."""
    mean, std = _statistics(settings, pixels.device)
    normalized = (pixels.view(len(pixels), 3, -1).float() / 255 - mean) / std
    return normalized.unsqueeze(2).expand(-1, -1, frames, -1).flatten(1)


@functools.cache  # a copy to a card would wait for all that it has to do, and graphs read what was copied once
def _statistics(settings: ImageSettings, device: torch.device) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(values, device=device)[:, None] for values in (settings.mean, settings.std))
    return mean, std


def _norm(dim: int, version: Version) -> nn.Module:
    return nn.LayerNorm(dim, eps=_NORM_EPS) if version.newer else RMSNorm(dim, _NORM_EPS)


def attend_runs(q: Tensor, k: Tensor, v: Tensor, runs: Runs) -> Tensor:
    """Attend within each sequence of the packed axis; all tensors are ``[P, H, D]``."""
    parts, start = [], 0
    for count, length in runs:
        part = slice(start, start := start + count * length)
        batch = (count, length, *q.shape[1:])
        parts.append(attend(q[part].view(batch), k[part].view(batch), v[part].view(batch)).flatten(0, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _merge_major(x: Tensor, merge: int) -> Tensor:
    """Reorder ``[rows, columns, ...]`` of patches to ``[rows * columns, ...]``, those of one embedding together."""
    rows, columns = x.shape[:2]
    split = x.reshape(rows // merge, merge, columns // merge, merge, *x.shape[2:])
    return split.transpose(1, 2).flatten(0, 3)


def _rotary_angles(grid: Grid, config: VisionConfig, device: torch.device) -> Tensor:
    """Return the angles of an image's patches, float32 ``[rows * columns, D / 2]``: first by row, then by column."""
    dim = config.dim // config.heads // 2
    frequencies = 1.0 / config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)
    rows, columns = (torch.arange(length, device=device).float()[:, None] * frequencies for length in grid)
    shape = (*grid, -1)
    return _merge_major(torch.cat((rows[:, None].expand(shape), columns[None].expand(shape)), dim=-1), config.merge)


def _interpolation(length: int, side: int, device: torch.device) -> Tensor:
    """Return the weights of `side` table entries at `length` evenly spaced places, ends on ends: ``[length, side]``."""
    places = torch.arange(length, device=device).float() * (side - 1) / max(length - 1, 1)
    return (1 - (places[:, None] - torch.arange(side, device=device)).abs()).clamp(min=0)


def _window_order(grids: Iterable[Grid], config: VisionConfig, device: torch.device) -> tuple[Tensor, Runs]:
    """Return the embeddings of all images ordered by window, and the windows; those at the edges may be smaller."""
    order: list[Tensor] = []
    runs: list[tuple[int, int]] = []
    start = 0
    for grid in grids:
        rows, columns = (length // config.merge for length in grid)
        units = torch.arange(start, start + rows * columns, device=device).view(rows, columns)
        for strip in _cut(units, config.window, 0):
            for part in _cut(strip, config.window, 1):
                height, width = (min(length, config.window) for length in part.shape)
                windows = part.reshape(part.shape[0] // height, height, part.shape[1] // width, width).transpose(1, 2)
                order.append(windows.flatten())
                runs.append((windows.shape[0] * windows.shape[1], height * width * config.merge**2))
        start += rows * columns
    return torch.cat(order), runs


def _cut(units: Tensor, window: int, dim: int) -> list[Tensor]:
    """Cut off what is left of an axis behind its whole windows; empty parts are left out."""
    length = units.shape[dim]
    whole = length // window * window
    return [part for part in (units.narrow(dim, 0, whole), units.narrow(dim, whole, length - whole)) if part.numel()]


def _reorder(x: Tensor, order: Tensor) -> Tensor:
    """Reorder ``[P, ...]`` by embeddings."""
    return x.view(len(order), -1, x.shape[-1])[order].flatten(0, 1)
