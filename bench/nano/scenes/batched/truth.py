"""Ground truth of composed scenes from the owner of each pixel: points, free spots, outlines, dense targets.

`owner` is int8 `[B, H, W]`, -1 for background; labels `[B, N]` are -1 where there is no visible object; boxes hold
centre and size as fractions of the image.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.scenes.batched.blend import VisibleExtent
from bench.nano.scenes.batched.painting import constant

LEAD = 2
"""First vertices of an outline; they determine how the object is mirrored and turned."""

TOLD = 24
"""First vertices of an outline that are a target of every patch: for most objects all there are."""

_LATTICE = 31  # a side of the lattice over a box on which to point; odd, so that the centre is on it
_AROUND = 5  # places of the lattice, across
_DEEP = 0.95  # of what the place with most of the object around it has
_ASIDE = (0.05, 0.1)  # of a box, left and up: of two places as near to the centre, one is always the nearer
_SPOT_TRIES, _FREE_TRIES = 8, 16
_LEVEL = 0.05  # of half a sprite: heights that differ by less are ties, as those of two ears do


def _own(owner: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the owner of the pixel at fractions x and y, each [B, ...]."""
    height, width = owner.shape[1:]
    column, row = (x * width).long().clamp(0, width - 1), (y * height).long().clamp(0, height - 1)
    return owner.flatten(1).gather(1, (row * width + column).flatten(1)).view(x.shape)


def _numbers(labels: Tensor) -> Tensor:
    return torch.arange(labels.shape[1], device=labels.device)


def find_points(owner: Tensor, labels: Tensor, boxes: Tensor, seen: VisibleExtent) -> Tensor:
    """Return the centre of the box if it lies deep inside the object, else the nearest place that does, [B, N, 2].

    Depth is the share of visible pixels around a place, on a lattice over the box: a point that is a little off still
    hits, and thin things are pointed at where they are thickest. Objects that cover no place of the lattice get their
    first pixel.
    """
    width, device = owner.shape[2], owner.device
    steps = (torch.arange(_LATTICE, device=device) + 0.5) / _LATTICE - 0.5
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    spots = torch.stack((x, y), -1).flatten(0, 1) * boxes[:, :, None, 2:] + boxes[:, :, None, :2]  # [B, N, places, 2]
    mine = _own(owner, spots[..., 0], spots[..., 1]) == _numbers(labels)[:, None]
    depth = mine.view(-1, 1, _LATTICE, _LATTICE).float()
    for _ in range(2):  # what is near counts more
        depth = functional.avg_pool2d(depth, _AROUND, 1, _AROUND // 2)
    depth = depth.view(mine.shape)
    deep = mine & (depth >= _DEEP * depth.amax(2, keepdim=True))
    aside = boxes[:, :, None, :2] - boxes[:, :, None, 2:] * constant(_ASIDE, boxes.dtype, device)
    away = (spots - aside).square().sum(-1)
    away[..., _LATTICE**2 // 2] = -1.0
    nearest, place = torch.where(deep, away, torch.inf).min(2)
    found = spots.gather(2, place[..., None, None].expand(-1, -1, 1, 2))[:, :, 0]
    row = torch.div(seen.first, width, rounding_mode="floor")
    first = torch.stack(((seen.first - row * width + 0.5) / width, (row + 0.5) / owner.shape[1]), -1)
    found = torch.where(nearest.isfinite()[..., None], found, first)
    return torch.where((labels >= 0)[..., None], found, 0.0)


def find_spots(owner: Tensor, labels: Tensor, boxes: Tensor, points: Tensor) -> Tensor:
    """Return a random visible pixel of each object: the first hit of a few tries in its box, else `points`."""
    tries = torch.rand(*labels.shape, _SPOT_TRIES, 2, device=owner.device) - 0.5
    tries = boxes[..., None, :2] + tries * boxes[..., None, 2:]
    hit = _own(owner, tries[..., 0], tries[..., 1]) == _numbers(labels)[:, None]
    first = hit.int().argmax(-1)[..., None, None].expand(-1, -1, 1, 2)
    return torch.where((hit.any(-1) & (labels >= 0))[..., None], tries.gather(2, first)[..., 0, :], points)


def find_free(owner: Tensor, things: Tensor) -> tuple[Tensor, Tensor]:
    """Return a random place [B, 2] that shows none of `things`, bool [B, N], and whether a few tries hit one [B]."""
    tries = torch.rand(len(owner), _FREE_TRIES, 2, device=owner.device)
    own = _own(owner, tries[..., 0], tries[..., 1]).long()
    hit = (own < 0) | ~things.gather(1, own.clamp(min=0))
    first = hit.int().argmax(1)[:, None, None].expand(-1, 1, 2)
    return tries.gather(1, first)[:, 0], hit.any(1)


def place_outlines(
    outline: Tensor, count: Tensor, transform: Tensor, labels: Tensor, boxes: Tensor
) -> tuple[Tensor, Tensor]:
    """Map outlines of sprites [B, N, V, 2], of which `count` [B, N] vertices count, into the visible boxes.

    Vertices run clockwise as seen. The first one is the topmost of the sprite, mirrored as the object is but not
    turned, and the leftmost of equally high ones: the start does not jump as the object turns, and symmetric objects
    start at the same place when mirrored. `transform` maps the scene to the sprites, [B, N, 2, 3]. Returns vertices in
    [0, 1] of the box, 0 past the count, and the count, 0 without a label.
    """
    m, offset = transform[..., :2], transform[..., 2]
    det = m[..., 0, 0] * m[..., 1, 1] - m[..., 0, 1] * m[..., 1, 0]
    u, v = (outline - offset[..., None, :]).unbind(-1)
    x = (m[..., 1, 1, None] * u - m[..., 0, 1, None] * v) / det[..., None]
    y = (m[..., 0, 0, None] * v - m[..., 1, 0, None] * u) / det[..., None]
    scene = (torch.stack((x, y), -1) + 1) / 2
    low = boxes[..., None, :2] - boxes[..., None, 2:] / 2
    inside = ((scene - low) / boxes[..., None, 2:].clamp(min=1e-6)).clamp(0, 1)
    place = torch.arange(outline.shape[2], device=outline.device)
    used = place < count[..., None]
    step = torch.where(det < 0, -1, 1)[..., None]  # a mirror turns clockwise into anticlockwise
    height = torch.where(used, outline[..., 1], torch.inf)
    topmost = height <= height.amin(-1, keepdim=True) + _LEVEL
    start = torch.where(topmost, step * outline[..., 0], torch.inf).argmin(-1, keepdim=True)
    order = (start + step * place).remainder(count[..., None].clamp(min=1))
    ordered = inside.gather(2, order[..., None].expand(-1, -1, -1, 2))
    there = used & (labels >= 0)[..., None]
    return torch.where(there[..., None], ordered, 0.0), torch.where(labels >= 0, count, 0)


class Dense(NamedTuple):
    """What every patch of a picture is to tell, [B, P, ...]."""

    labels: Tensor  # The object at the patch's centre, [B, P]; the number of classes stands for background
    centres: Tensor  # Whether an object's own centre is here, bool [B, P]
    numbers: Tensor  # How many objects of the patch's kind the picture shows, [B, P]; 0 for background
    boxes: Tensor  # The box of the patch's object, [B, P, 4]
    points: Tensor  # Where one points at it, [B, P, 2]
    outlines: Tensor  # The first vertices of its outline, [B, P, 2 * TOLD], -1 where it has fewer


def dense(
    owner: Tensor,
    labels: Tensor,
    boxes: Tensor,
    points: Tensor,
    outlines: Tensor,
    vertices: Tensor,
    *,
    grid: int,
    classes: int,
) -> Dense:
    """Return targets for every patch of a grid: the object at its centre, and each object once at the patch of its own
    centre.
    """
    batch, height, width = owner.shape
    rows = torch.arange(batch, device=owner.device)[:, None]
    centre = torch.arange(grid, device=owner.device) * 2 + 1
    down, across = (torch.div(centre * side, 2 * grid, rounding_mode="floor") for side in (height, width))
    at = owner[:, down[:, None], across].flatten(1).long()
    # Empty places write to a cell of their own behind the last patch.
    at = functional.pad(at, (0, 1), value=-1)
    cell = (boxes[..., :2] * grid).long().clamp(0, grid - 1)
    cell = torch.where(labels >= 0, cell[..., 1] * grid + cell[..., 0], grid * grid)  # [B, N]
    centres = torch.zeros_like(at, dtype=torch.bool).scatter(1, cell, True)[:, :-1]
    index = torch.arange(labels.shape[1], device=owner.device).expand_as(labels)
    index = torch.where((labels >= 0) & (at.gather(1, cell) < 0), index, at.gather(1, cell))
    at[rows, cell] = index
    at = at[:, :-1]
    at = torch.where(labels.gather(1, at.clamp(min=0)) >= 0, at, -1)
    label = torch.where(at >= 0, labels.gather(1, at.clamp(min=0)), classes)
    there = torch.arange(TOLD, device=owner.device) < vertices[..., None]
    first = torch.where(there[..., None], outlines[:, :, :TOLD], -1.0).flatten(2)
    own = at.clamp(min=0)
    number = torch.where(at >= 0, (labels[:, :, None] == labels[:, None]).sum(2).gather(1, own), 0)
    return Dense(label, centres, number, boxes[rows, own], points[rows, own], first[rows, own])
