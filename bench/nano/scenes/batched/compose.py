"""Training scenes, composed on the device in batches: layout, painting, visible boxes, dense targets.

Scenes are drawn at the model's resolution: an image of any aspect squeezed into a square, or into a canvas of nearly
its own aspect. Coordinates "in the image" have its short side as their unit: objects are turned before the squeeze.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.scenes.batched.bank import BackgroundBank
from bench.nano.scenes.batched.blend import VisibleExtent, blend, tints
from bench.nano.scenes.batched.blend_kernel import Objects
from bench.nano.scenes.batched.degrade import degrade
from bench.nano.scenes.batched.layouts import MAX_OBJECTS, Layout, LayoutMaker
from bench.nano.scenes.batched.outlines import outlines
from bench.nano.scenes.batched.painting import uniform
from bench.nano.scenes.batched.truth import Dense, dense, find_free, find_points, find_spots, place_outlines
from bench.nano.scenes.objects import COLOURS, SceneObject

_LEAST_PIXELS = 12
_LEAST_VISIBLE = 0.1  # of an object's pixels; what is covered further is not asked for
_SPRITE = 128
_LEVELS = 7  # blurred copies of the sprites, half an octave apart, in the place of mipmaps


@dataclass(frozen=True)
class Scenes:
    """Composed scenes and their truth; places are fractions of the image, objects without a label hold 0."""

    pixels: Tensor  # Uint8 [B, H, W, 3]
    labels: Tensor  # [B, N], -1 where there is no visible object
    boxes: Tensor  # Visible extent, centre x, centre y, width, height, [B, N, 4]
    points: Tensor  # The centre of the box where it is well inside the object, else a place next to it, [B, N, 2]
    spots: Tensor  # Any visible pixel of the object, [B, N, 2]
    free: Tensor  # Any pixel of the background or of a distractor, [B, 2]
    free_ok: Tensor  # Whether one was found, bool [B]
    outlines: Tensor  # Vertices in fractions of the visible box, clockwise, [B, N, 32, 2]; see `place_outlines`
    vertices: Tensor  # How many of them count, [B, N]
    patches: Dense


class Composer:
    """Draws scenes of `size` (height and width in pixels, multiples of 16) from sprites, uint8 RGBA [classes, s, s, 4].

    `distractors`: further sprites, which cover objects and are in no truth. `steady`: classes that keep their hue,
    bool [classes]; see `steady_hues`. `entries`: number of backgrounds in `bank`, by default 8192 on a GPU. `most`:
    largest number of objects in a scene.
    """

    def __init__(
        self,
        sprites: Tensor,
        size: tuple[int, int],
        grid: int,
        device: torch.device,
        *,
        distractors: Tensor | None = None,
        steady: Tensor | None = None,
        outline: tuple[Tensor, Tensor] | None = None,
        entries: int | None = None,
        most: int = MAX_OBJECTS,
    ) -> None:
        self.size, self.grid, self.device = size, grid, device
        # Half the bytes where memory traffic counts; a CPU has no fast arithmetic in half precision.
        self.dtype = torch.float16 if device.type == "cuda" else torch.float32
        self.sprite_size = sprites.shape[1]
        if self.sprite_size != _SPRITE:
            raise ValueError(f"sprites are {self.sprite_size} pixels wide, not {_SPRITE}")
        vertices, counts = outlines(sprites.numpy()) if outline is None else outline
        self.outlines, self.vertices = vertices.to(device), counts.to(device)
        self.classes = len(sprites)
        everything = sprites if distractors is None else torch.cat((sprites, distractors))
        straight = everything.to(device).permute(0, 3, 1, 2).float() / 255
        premultiplied = torch.cat((straight[:, :3] * straight[:, 3:], straight[:, 3:]), dim=1)
        self.steady = torch.zeros(len(everything), dtype=torch.bool, device=device)
        if steady is not None:
            self.steady[: self.classes] = steady.to(device)
        visible = straight[:, 3] > 0.5
        self._opaque = visible.float().mean((1, 2))  # share of the sprite
        self._layout = LayoutMaker(self._extent(visible), self.classes, size, most)
        # Images made by drawing emoji on a transparent canvas have a dark rim: half of the scenes get it too.
        rimmed = torch.cat((premultiplied[:, :3] * premultiplied[:, 3:], premultiplied[:, 3:]), dim=1)
        shape = (2 * _LEVELS, len(everything), _SPRITE, _SPRITE, 4)
        self.texels = torch.empty(shape, dtype=self.dtype, device=device)
        for place in range(2 * _LEVELS):
            edge = rimmed if place < _LEVELS else premultiplied
            self.texels[place] = self._level(edge, place % _LEVELS).permute(0, 2, 3, 1)
        usual = 8192 if device.type == "cuda" else 48
        self.bank = BackgroundBank(max(size), device, usual if entries is None else entries)

    def resized(self, size: tuple[int, int]) -> "Composer":
        """Return a composer of another canvas that shares sprites and backgrounds; best made from the largest."""
        if max(size) > self.bank.side:
            raise ValueError(f"a canvas of {size} is larger than the backgrounds, {self.bank.side} pixels")
        other = copy.copy(self)
        other.size = size
        other._layout = LayoutMaker(self._layout.extent, self.classes, size, self._layout.most)
        return other

    @torch.no_grad()
    def __call__(self, batch: int, difficulty: Tensor) -> Scenes:
        """Compose `batch` scenes; `difficulty` is `Difficulty.tensor`. Nothing here waits for the device."""
        layout = self._layout(batch, difficulty)
        objects = self._objects(layout)
        canvas, owner, seen = blend(self.bank(batch, self.size, self.dtype), self.texels, objects)
        labels, boxes = self._bound(objects, seen)
        points = find_points(owner, labels, boxes, seen)
        kind = labels.clamp(min=0)
        outline = place_outlines(self.outlines[kind], self.vertices[kind], objects.transform, labels, boxes)
        rounded = degrade(canvas).mul_(255).round_().permute(0, 2, 3, 1)
        pixels = rounded.to(torch.uint8, memory_format=torch.contiguous_format)
        return Scenes(
            pixels,
            labels,
            boxes,
            points,
            find_spots(owner, labels, boxes, points),
            *find_free(owner, layout.label < self.classes),
            *outline,
            dense(owner, labels, boxes, points, *outline, grid=self.grid, classes=self.classes),
        )

    @staticmethod
    def _extent(visible: Tensor) -> Tensor:
        """Half width and half height of each sprite's visible part, as a share of half the sprite: [sprites, 2]."""
        side = visible.shape[-1]
        return torch.stack((visible.any(1).sum(1), visible.any(2).sum(1)), dim=1).float() / side

    def _level(self, sprites: Tensor, level: int) -> Tensor:
        sigma = 0.45 * math.sqrt(2.0**level - 1)
        if sigma == 0:
            return sprites.to(self.dtype)
        radius = math.ceil(3 * sigma)
        taps = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, device=self.device) / sigma) ** 2)
        taps = (taps / taps.sum()).expand(4, 1, 1, -1)
        soft = functional.conv2d(functional.pad(sprites, (radius, radius, 0, 0)), taps, groups=4)
        taps = taps.transpose(2, 3)
        return functional.conv2d(functional.pad(soft, (0, 0, radius, radius)), taps, groups=4).to(self.dtype)

    def _objects(self, layout: Layout) -> Objects:
        """Draw sharpness, colours and shadows of the objects of a layout."""
        shape, device = layout.label.shape, self.device
        batch = shape[0]
        short = math.sqrt(math.prod(self.size)) / (layout.width * layout.height).sqrt()
        shrink = self.sprite_size / (layout.size * short)
        level = (2 * shrink.log2() + uniform(shape, -0.7, 0.7, device)).round().long().clamp(0, _LEVELS - 1)
        level = level + _LEVELS * (torch.rand(batch, 1, device=device) < 0.5)
        stretch = 1 + uniform((*shape, 2), -0.08, 0.08, device)
        drop = uniform((batch, 1), 0, 0.12, device)
        darkness = uniform((batch, 1), 0, 0.5, device) * (torch.rand(batch, 1, device=device) < 0.3)
        tint = tints(self.steady[layout.label.clamp(min=0)], uniform)
        return Objects(layout.label, level, self._transforms(layout, stretch), tint, drop, darkness)

    def _transforms(self, layout: Layout, stretch: Tensor) -> Tensor:
        """Return maps from the scene to each sprite, both with x and y in [-1, 1]: [B, N, 2, 3]."""
        cos, sin = layout.angle.cos(), layout.angle.sin()
        sx, sy = (2 / layout.size * layout.mirror * stretch[..., 0], 2 / layout.size * stretch[..., 1])
        w, h = layout.width / 2, layout.height / 2
        dx, dy = w - layout.x, h - layout.y
        # Undo the turn (a, b), then the shear, which moved what is low to the right.
        a, b = cos + layout.shear * sin, sin - layout.shear * cos
        return torch.stack(
            (
                torch.stack((sx * a * w, sx * b * h, sx * (a * dx + b * dy)), -1),
                torch.stack((-sy * sin * w, sy * cos * h, sy * (-sin * dx + cos * dy)), -1),
            ),
            dim=2,
        )

    def _bound(self, objects: Objects, seen: VisibleExtent) -> tuple[Tensor, Tensor]:
        """Return labels, -1 for distractors and where hardly a pixel is visible, and the boxes of the visible pixels
        [B, N, 4].
        """
        height, width = self.size
        top = torch.div(seen.first, width, rounding_mode="floor")
        low_x, high_x = seen.left / width, (seen.right + 1) / width
        low_y, high_y = top / height, (seen.bottom + 1) / height
        boxes = torch.stack(((low_x + high_x) / 2, (low_y + high_y) / 2, high_x - low_x, high_y - low_y), -1)
        label, m = objects.label, objects.transform
        squeeze = (m[..., 0, 0] * m[..., 1, 1] - m[..., 0, 1] * m[..., 1, 0]).abs()  # the canvas over the sprite
        whole = self._opaque[label.clamp(min=0)] * (height * width) / squeeze
        visible = (seen.pixels >= (_LEAST_VISIBLE * whole).clamp(min=_LEAST_PIXELS)) & (label >= 0)
        visible = visible & (label < self.classes)
        return torch.where(visible, label, -1), torch.where(visible[..., None], boxes, 0.0)


def steady_hues(objects: Sequence[SceneObject]) -> Tensor:
    """Whether objects keep their hue because a name or synonym contains a colour, bool [classes]."""
    return torch.tensor([any(word in COLOURS for name in item.names for word in name.split()) for item in objects])
