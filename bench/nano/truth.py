"""What is true of composed scenes, from who owns each pixel: points, free spots, outlines, dense targets.

`owner` is int8 ``[B, H, W]``, -1 for nobody; labels ``[B, N]`` are -1 where there is no visible object; boxes hold
centre and size as fractions of the picture.
"""

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.blend import Seen

_STEP = 4  # of the lattice on which the nearest visible pixel is sought
_SPOT_TRIES, _FREE_TRIES = 8, 16
_SAME = 1e-4  # of a box: heights that differ by less are ties


def _own(owner: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Give the owner of the pixel at fractions x and y, each ``[B, ...]``."""
    height, width = owner.shape[1:]
    column, row = (x * width).long().clamp(0, width - 1), (y * height).long().clamp(0, height - 1)
    return owner.flatten(1).gather(1, (row * width + column).flatten(1)).view(x.shape)


def _numbers(labels: Tensor) -> Tensor:
    return torch.arange(labels.shape[1], device=labels.device)


def find_points(owner: Tensor, labels: Tensor, boxes: Tensor, seen: Seen) -> Tensor:
    """Find where to point: the centre of the box if the object is visible there, else the visible pixel next to it.

    It is sought among every fourth pixel of every fourth row; an object that has none of them gets its first pixel.
    """
    height, width = owner.shape[1:]
    device = owner.device
    lattice = owner[:, _STEP // 2 :: _STEP, _STEP // 2 :: _STEP]
    y, x = ((torch.arange(_STEP // 2, side, _STEP, device=device) + 0.5) / side for side in (height, width))
    down = (y - boxes[..., 1:2]).square()[..., :, None] * (height / width) ** 2
    across = (x - boxes[..., :1]).square()[..., None, :]
    mine = lattice[:, None] == _numbers(labels).to(torch.int8)[:, None, None]
    nearest, place = torch.where(mine, down + across, torch.inf).flatten(2).min(-1)
    columns = len(x)
    found = torch.stack((x[place % columns], y[torch.div(place, columns, rounding_mode="floor")]), -1)
    row = torch.div(seen.first, width, rounding_mode="floor")
    first = torch.stack(((seen.first - row * width + 0.5) / width, (row + 0.5) / height), -1)
    found = torch.where(nearest.isfinite()[..., None], found, first)
    centre = boxes[..., :2]
    hit = _own(owner, centre[..., 0], centre[..., 1]) == _numbers(labels)
    return torch.where((labels >= 0)[..., None], torch.where(hit[..., None], centre, found), 0.0)


def find_spots(owner: Tensor, labels: Tensor, boxes: Tensor, points: Tensor) -> Tensor:
    """Find a random visible pixel of each object: the first hit of a few tries in its box, else `points`."""
    tries = torch.rand(*labels.shape, _SPOT_TRIES, 2, device=owner.device) - 0.5
    tries = boxes[..., None, :2] + tries * boxes[..., None, 2:]
    hit = _own(owner, tries[..., 0], tries[..., 1]) == _numbers(labels)[:, None]
    first = hit.int().argmax(-1)[..., None, None].expand(-1, -1, 1, 2)
    return torch.where((hit.any(-1) & (labels >= 0))[..., None], tries.gather(2, first)[..., 0, :], points)


def find_free(owner: Tensor) -> tuple[Tensor, Tensor]:
    """Find a random place of the background, ``[B, 2]``, and whether a few tries hit one, bool ``[B]``."""
    tries = torch.rand(len(owner), _FREE_TRIES, 2, device=owner.device)
    hit = _own(owner, tries[..., 0], tries[..., 1]) < 0
    first = hit.int().argmax(1)[:, None, None].expand(-1, 1, 2)
    return tries.gather(1, first)[:, 0], hit.any(1)


def place_outlines(
    outline: Tensor, count: Tensor, transform: Tensor, labels: Tensor, boxes: Tensor
) -> tuple[Tensor, Tensor]:
    """Express outlines of sprites in the visible boxes: clockwise as seen, from the topmost vertex (ties: leftmost).

    Args:
        outline: vertices in sprite units, clockwise, ``[B, N, V, 2]``.
        count: how many of them count, ``[B, N]``.
        transform: from the scene to the sprites, ``[B, N, 2, 3]``.
        labels: -1 where nothing is visible.
        boxes: visible extent.

    Returns:
        Vertices in [0, 1] of the box, 0 past the count, and the count, 0 without a label.
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
    height = torch.where(used, inside[..., 1], torch.inf)
    topmost = height <= height.amin(-1, keepdim=True) + _SAME
    start = torch.where(topmost, inside[..., 0], torch.inf).argmin(-1, keepdim=True)
    step = torch.where(det < 0, -1, 1)[..., None]  # a mirror turns clockwise into anticlockwise
    order = (start + step * place).remainder(count[..., None].clamp(min=1))
    ordered = inside.gather(2, order[..., None].expand(-1, -1, -1, 2))
    there = used & (labels >= 0)[..., None]
    return torch.where(there[..., None], ordered, 0.0), torch.where(labels >= 0, count, 0)


def dense(owner: Tensor, labels: Tensor, boxes: Tensor, grid: int, classes: int) -> tuple[Tensor, Tensor]:
    """Targets for every patch of a grid: the object at its centre, and each object once at the patch of its centre.

    Returns:
        Labels ``[B, grid * grid]``, `classes` for background, and boxes ``[B, grid * grid, 4]``.
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
    index = torch.arange(labels.shape[1], device=owner.device).expand_as(labels)
    index = torch.where((labels >= 0) & (at.gather(1, cell) < 0), index, at.gather(1, cell))
    at[rows, cell] = index
    at = at[:, :-1]
    at = torch.where(labels.gather(1, at.clamp(min=0)) >= 0, at, -1)
    label = torch.where(at >= 0, labels.gather(1, at.clamp(min=0)), classes)
    return label, boxes[rows, at.clamp(min=0)]
