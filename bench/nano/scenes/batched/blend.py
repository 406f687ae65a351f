"""Lay sprites over a canvas, by the Triton kernel where available, else by the PyTorch reference.

Sprites are premultiplied RGBA at several levels of blur, float `[2 * levels, classes, side, side, 4]`: half of the
levels with a dark rim. A transform says where the scene's pixels, x and y in [-1, 1], fall in a sprite, same units.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bench.nano.scenes.batched import blend_kernel
from bench.nano.scenes.batched.blend_kernel import UNSEEN, Objects


class VisibleExtent(NamedTuple):
    """Visible pixels of every object, int32 [B, N] each; undefined where `pixels` is 0."""

    pixels: Tensor  # How many
    first: Tensor  # The first of them in reading order, as row * width + column
    left: Tensor  # The first column
    right: Tensor  # The last column
    bottom: Tensor  # The last row; the first is that of `first`


class Blended(NamedTuple):
    """Images [B, 3, H, W], the object at each pixel (int8 [B, H, W], -1 for background), and visible extents."""

    canvas: Tensor
    owner: Tensor
    seen: VisibleExtent


def blend(canvas: Tensor, texels: Tensor, objects: Objects) -> Blended:
    """Paint objects with their shadows on a canvas [B, 3, H, W] in [0, 1]; on a GPU it is float16 and overwritten."""
    if canvas.is_cuda and blend_kernel.HAS_TRITON:
        bounds = reach(objects, canvas.shape, texels.shape[2])
        owner, tallies = blend_kernel.triton_blend(canvas, texels, objects, bounds)
        return Blended(canvas, owner, VisibleExtent(*tallies))
    canvas, owner = reference_blend(canvas, texels, objects)
    return Blended(canvas, owner, measure(owner, objects.label.shape[1]))


def reference_blend(canvas: Tensor, texels: Tensor, objects: Objects) -> tuple[Tensor, Tensor]:
    """Blend with PyTorch alone: the image and its owners as in `Blended`."""
    _, classes, side, _, _ = texels.shape
    flat = texels.flatten(0, 3)
    height, width = canvas.shape[2:]
    x = ((torch.arange(width, device=canvas.device) + 0.5) * (2 / width) - 1)[None, None, :]
    y = ((torch.arange(height, device=canvas.device) + 0.5) * (2 / height) - 1)[None, :, None]
    owner = torch.full((len(canvas), height, width), -1, dtype=torch.int8, device=canvas.device)
    out = canvas.float()
    shift = (objects.drop * side)[..., None]
    for n in range(objects.label.shape[1]):
        if not bool((objects.label[:, n] >= 0).any()):
            continue
        present = (objects.label[:, n] >= 0)[:, None, None]
        kind = objects.label[:, n].clamp(min=0)
        m = objects.transform[:, n, :, :, None, None]
        u = m[:, 0, 0] * x + m[:, 0, 1] * y + m[:, 0, 2]
        v = m[:, 1, 0] * x + m[:, 1, 1] * y + m[:, 1, 2]
        column, row = ((u + 1) * side - 1) / 2, ((v + 1) * side - 1) / 2  # [B, H, W]
        softest = ((texels.shape[0] - 1) * classes + kind)[:, None, None] * (side * side)
        near = (row - shift + 0.5).floor().long(), (column - shift + 0.5).floor().long()
        shadow = flat[softest + _flat_index(*near, side)][..., 3].float()
        shadow = shadow * (present & _inside(*near, side)) * objects.darkness[..., None]
        base = (objects.level[:, n] * classes + kind)[:, None, None] * (side * side)
        sprite = _bilinear(flat, base, row, column, side) * present[..., None]
        alpha = sprite[..., 3]
        colour = torch.einsum("bhwk,bck->bchw", sprite, objects.tint[:, n])
        colour = torch.minimum(colour.clamp(min=0), alpha[:, None])
        out = colour + out * ((1 - shadow) * (1 - alpha))[:, None]
        owner = torch.where(alpha > 0.5, n, owner)
    return out.to(canvas.dtype), owner


def measure(owner: Tensor, count: int) -> VisibleExtent:
    """Measure what can be seen of each of `count` objects from the owners of pixels [B, H, W]."""
    height, width = owner.shape[1:]
    mine = owner[:, None] == torch.arange(count, device=owner.device, dtype=torch.int8)[:, None, None]
    rows = torch.arange(height, device=owner.device, dtype=torch.int32)[:, None]
    columns = torch.arange(width, device=owner.device, dtype=torch.int32)

    def least(values: Tensor) -> Tensor:
        return torch.where(mine, values, UNSEEN).amin((2, 3))

    def most(values: Tensor) -> Tensor:
        return torch.where(mine, values, -1).amax((2, 3))

    return VisibleExtent(
        mine.sum((2, 3)).int(), least(rows * width + columns), least(columns), most(columns), most(rows)
    )


def reach(objects: Objects, shape: torch.Size, side: int) -> Tensor:
    """Bound what each object and its shadow can touch: left, top, right, bottom (exclusive), int32 [B, N, 4]."""
    height, width = shape[2:]
    m, offset = objects.transform[..., :2], objects.transform[..., 2]
    det = m[..., 0, 0] * m[..., 1, 1] - m[..., 0, 1] * m[..., 1, 0]
    adjoint = torch.stack((m[..., 1, 1], -m[..., 0, 1], -m[..., 1, 0], m[..., 0, 0]), -1)
    inverse = (adjoint / det[..., None]).view(m.shape)
    shadow = objects.drop * (objects.darkness > 0)  # half of the way, in units of half a sprite
    centre = (inverse * (shadow[..., None] - offset)[..., None, :]).sum(-1)
    half = (1 + 2 / side + shadow)[..., None] * inverse.abs().sum(-1)
    scale = torch.cat((half.new_full((1,), width / 2), half.new_full((1,), height / 2)))
    low, high = (1 + centre - half) * scale - 1, (1 + centre + half) * scale + 1
    return torch.cat((low.floor(), high.ceil()), -1).clamp(-1e6, 1e6).int()


def _inside(row: Tensor, column: Tensor, side: int) -> Tensor:
    return (row >= 0) & (row < side) & (column >= 0) & (column < side)


def _flat_index(row: Tensor, column: Tensor, side: int) -> Tensor:
    return row.clamp(0, side - 1) * side + column.clamp(0, side - 1)


def _bilinear(texels: Tensor, base: Tensor, row: Tensor, column: Tensor, side: int) -> Tensor:
    """Sample [B, H, W, 4]; zero outside the sprite."""
    top, left = row.floor(), column.floor()
    down, right = row - top, column - left
    r, c = top.long(), left.long()
    out = torch.zeros((), device=texels.device)
    for dr, wr in ((0, 1 - down), (1, down)):
        for dc, wc in ((0, 1 - right), (1, right)):
            weight = wr * wc * _inside(r + dr, c + dc, side)
            out = out + texels[base + _flat_index(r + dr, c + dc, side)].float() * weight[..., None]
    return out


_HUE = math.radians(8)
_LUMA = (0.299, 0.587, 0.114)

Uniform = Callable[[tuple[int, ...], float, float, torch.device], Tensor]


def tints(steady: Tensor, uniform: Uniform) -> Tensor:
    """Draw maps from premultiplied RGBA to RGB for every object, [B, N, 3, 4].

    The hue turns around the grey axis (Rodrigues' formula), except where `steady`, bool [B, N].
    """
    shape, device = tuple(steady.shape), steady.device
    angle = uniform(shape, -_HUE, _HUE, device) * ~steady
    cos, third, skew = angle.cos(), (1 - angle.cos()) / 3, angle.sin() / math.sqrt(3)
    own, right, left = cos + third, third - skew, third + skew
    hue = torch.stack((own, right, left, left, own, right, right, left, own), -1).view(*shape, 3, 3)
    saturation = uniform((*shape, 1, 1), 0.75, 1.25, device)
    luma = sum(weight * hue[..., row, None, :] for row, weight in enumerate(_LUMA))  # the grey after the turn
    contrast = uniform((*shape, 1, 1), 0.85, 1.15, device)
    gain = uniform((*shape, 1, 1), 0.75, 1.2, device) * uniform((*shape, 3, 1), 0.92, 1.08, device)
    matrix = (luma + (hue - luma) * saturation) * contrast
    return torch.cat((matrix, (0.5 - 0.5 * contrast).expand(*shape, 3, 1)), -1) * gain
