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
from bench.nano.scenes.batched.outlines import outlines
from bench.nano.scenes.batched.painting import uniform
from bench.nano.scenes.batched.truth import dense, find_free, find_points, find_spots, place_outlines
from bench.nano.scenes.objects import COLOURS, SceneObject

MAX_OBJECTS = 10
MIN_SIZE, MAX_SIZE = 0.065, 0.45  # longer side before rotation, as a share of the image's short side
MAX_OVERLAP = 0.3
MAX_ANGLE = math.radians(25)
MAX_SHEAR = math.tan(math.radians(8))
_TRIES = 16
_BESIDE = 12  # tries in a crowd; the others find room where there is none beside an object
_CROWDED = 0.35  # of the scenes have objects that touch or overlap as far as they may
_EMPTY = 0.03  # of the scenes hold nothing
_LEAST_PIXELS = 12
_SPRITE = 128
_LEVELS = 7  # blurred copies of the sprites, half an octave apart, in the place of mipmaps


@dataclass(frozen=True)
class Difficulty:
    """Most objects of a scene and their least size; `at` is the curriculum."""

    max_count: int = MAX_OBJECTS
    min_size: float = MIN_SIZE

    @classmethod
    def at(cls, progress: float, ramp: float = 0.35) -> "Difficulty":
        """Return the difficulty at a share of the run: from few and large objects to the full range at `ramp`."""
        t = min(1.0, progress / ramp)
        return cls(max_count=round(3 + t * (MAX_OBJECTS - 3)), min_size=0.3 + t * (MIN_SIZE - 0.3))

    def tensor(self, device: torch.device) -> Tensor:
        """Return both numbers on the device, where a captured graph reads them: [2]."""
        return torch.tensor([self.max_count, self.min_size], dtype=torch.float32, device=device)


@dataclass(frozen=True)
class Layout:
    """Positions and shapes of objects, [B, N] each; `label` is -1 for empty places."""

    label: Tensor
    x: Tensor
    y: Tensor
    size: Tensor
    angle: Tensor
    shear: Tensor
    mirror: Tensor
    width: Tensor
    height: Tensor


@dataclass(frozen=True)
class Scenes:
    """Composed scenes and their truth; places are fractions of the image, objects without a label hold 0."""

    pixels: Tensor  # Uint8 [B, H, W, 3]
    labels: Tensor  # [B, N], -1 where there is no visible object
    boxes: Tensor  # Visible extent, centre x, centre y, width, height, [B, N, 4]
    points: Tensor  # The centre of the box where it is well inside the object, else a place next to it, [B, N, 2]
    spots: Tensor  # Any visible pixel of the object, [B, N, 2]
    free: Tensor  # Any pixel of the background, [B, 2]
    free_ok: Tensor  # Whether one was found, bool [B]
    outlines: Tensor  # Vertices in fractions of the visible box, clockwise, [B, N, 32, 2]; see `place_outlines`
    vertices: Tensor  # How many of them count, [B, N]
    patch_labels: Tensor  # The object at each patch's centre, [B, P]; the number of classes stands for background
    patch_boxes: Tensor  # Its box, [B, P, 4]
    patch_leads: Tensor  # Where its outline begins, [B, P, 2 * LEAD]


class Composer:
    """Draws scenes of `size` (height and width in pixels, multiples of 16) from sprites, uint8 RGBA [classes, s, s, 4].

    `steady`: classes that keep their hue, bool [classes]; see `steady_hues`. `entries`: backgrounds in `bank`, by
    default 8192 on a GPU.
    """

    def __init__(
        self,
        sprites: Tensor,
        size: tuple[int, int],
        grid: int,
        device: torch.device,
        *,
        steady: Tensor | None = None,
        outline: tuple[Tensor, Tensor] | None = None,
        entries: int | None = None,
    ) -> None:
        self.size, self.grid, self.device = size, grid, device
        # Half the bytes where memory traffic counts; a CPU has no fast arithmetic in half precision.
        self.dtype = torch.float16 if device.type == "cuda" else torch.float32
        self.sprite_size = sprites.shape[1]
        if self.sprite_size != _SPRITE:
            raise ValueError(f"sprites are {self.sprite_size} pixels wide, not {_SPRITE}")
        vertices, counts = outlines(sprites.numpy()) if outline is None else outline
        self.outlines, self.vertices = vertices.to(device), counts.to(device)
        straight = sprites.to(device).permute(0, 3, 1, 2).float() / 255
        premultiplied = torch.cat((straight[:, :3] * straight[:, 3:], straight[:, 3:]), dim=1)
        self.classes = premultiplied.shape[0]
        self.steady = torch.zeros(self.classes, dtype=torch.bool) if steady is None else steady
        self.steady = self.steady.to(device)
        self.extent = self._extent(straight[:, 3] > 0.5)
        # Images made by drawing emoji on a transparent canvas have a dark rim: half of the scenes get it too.
        rimmed = torch.cat((premultiplied[:, :3] * premultiplied[:, 3:], premultiplied[:, 3:]), dim=1)
        shape = (2 * _LEVELS, self.classes, _SPRITE, _SPRITE, 4)
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
        return other

    @torch.no_grad()
    def __call__(self, batch: int, difficulty: Tensor) -> Scenes:
        """Compose `batch` scenes; `difficulty` is `Difficulty.tensor`. Nothing here waits for the device."""
        layout = self._layout(batch, difficulty)
        objects = self._objects(layout)
        canvas, owner, seen = blend(self.bank(batch, self.size, self.dtype), self.texels, objects)
        labels, boxes = self._bound(layout.label, seen)
        points = find_points(owner, labels, boxes, seen)
        kind = layout.label.clamp(min=0)
        outline = place_outlines(self.outlines[kind], self.vertices[kind], objects.transform, labels, boxes)
        rounded = degrade(canvas).mul_(255).round_().permute(0, 2, 3, 1)
        pixels = rounded.to(torch.uint8, memory_format=torch.contiguous_format)
        return Scenes(
            pixels,
            labels,
            boxes,
            points,
            find_spots(owner, labels, boxes, points),
            *find_free(owner),
            *outline,
            *dense(owner, labels, boxes, outline[0], self.grid, self.classes),
        )

    @staticmethod
    def _extent(visible: Tensor) -> Tensor:
        """Half width and half height of each sprite's visible part, as a share of half the sprite: [classes, 2]."""
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

    def _layout(self, batch: int, difficulty: Tensor) -> Layout:
        """Place objects one after another, each at the first of several random spots that is free enough."""
        device, count = self.device, MAX_OBJECTS
        aspect = torch.exp2(self._aspect(batch))
        width, height = aspect.clamp(min=1), (1 / aspect).clamp(min=1)
        short = 160 * (10 / torch.maximum(width, height)) ** torch.rand(batch, 1, device=device)
        smallest = torch.maximum(20 / short, difficulty[1]).clamp(max=MAX_SIZE)
        t = torch.rand(batch, count, device=device)
        linear = torch.lerp(smallest, torch.full_like(smallest, MAX_SIZE), t)
        logarithmic = smallest * (MAX_SIZE / smallest) ** t
        size = torch.where(torch.rand(batch, 1, device=device) < 0.5, linear, logarithmic)
        angle = uniform((batch, count), -MAX_ANGLE, MAX_ANGLE, device)
        angle = angle * (torch.rand(batch, 1, device=device) < 0.8)
        shear = uniform((batch, count), -MAX_SHEAR, MAX_SHEAR, device) * (torch.rand(batch, 1, device=device) < 0.6)
        label = self._labels(batch)
        wanted = 1 + (torch.rand(batch, 1, device=device) * difficulty[0]).floor()
        wanted = wanted * (torch.rand(batch, 1, device=device) >= _EMPTY)
        label = torch.where(torch.arange(count, device=device) < wanted, label, -1)

        extent = self.extent[label.clamp(min=0)] * size[..., None] / 2  # [B, N, 2]
        cos, sin = angle.cos().abs(), angle.sin().abs()
        wide, tall = extent[..., 0] + shear.abs() * extent[..., 1], extent[..., 1]
        half = torch.stack((cos * wide + sin * tall, sin * wide + cos * tall), -1)
        frame = torch.stack((width, height), -1)  # [B, 1, 2]
        room = (frame[:, :, None] - 2 * half[:, :, None]).clamp(min=0)
        spots = half[:, :, None] + torch.rand(batch, count, _TRIES, 2, device=device) * room
        crowded = (torch.rand(batch, 1, device=device) < _CROWDED) & (torch.arange(_TRIES, device=device) < _BESIDE)
        centre = torch.zeros(batch, count, 2, device=device)
        area = 4 * half[..., 0] * half[..., 1] * (label >= 0)
        rows = torch.arange(batch, device=device)
        for n in range(count):
            if n:
                near = _beside(centre[:, :n], half[:, :n], half[:, n]) - half[:, n, None]
                near = half[:, n, None] + torch.minimum(near.clamp(min=0), room[:, n])
                spots[:, n] = torch.where(crowded[..., None], near, spots[:, n])
                gap = (spots[:, n, :, None] - centre[:, None, :n]).abs()  # [B, tries, n, 2]
                reach = half[:, n, None, None] + half[:, None, :n]
                overlap = torch.minimum(
                    (reach - gap).clamp(min=0), 2 * torch.minimum(half[:, n, None, None], half[:, None, :n])
                )
                share = overlap.prod(-1) / torch.minimum(area[:, n, None, None], area[:, None, :n]).clamp(min=1e-9)
                free = (share * (label[:, None, :n] >= 0)).amax(-1) <= MAX_OVERLAP
                first = free.int().argmax(1)
                label[:, n] = torch.where(free.any(1), label[:, n], -1)
            else:
                first = torch.zeros(batch, dtype=torch.long, device=device)
            centre[:, n] = spots[rows, n, first]
        mirror = torch.where(torch.rand(batch, count, device=device) < 0.5, -1.0, 1.0)
        return Layout(label, centre[..., 0], centre[..., 1], size, angle, shear, mirror, width, height)

    def _aspect(self, batch: int) -> Tensor:
        """Draw log2 of the images' aspects: any up to 2:1 in a square canvas, else about the canvas's own."""
        height, width = self.size
        if height == width:
            return uniform((batch, 1), -1, 1, self.device)
        return (math.log2(width / height) + uniform((batch, 1), -0.5, 0.5, self.device)).clamp(-1, 1)

    def _labels(self, batch: int) -> Tensor:
        """Draw kinds: half of the scenes from a palette of a few, so that there is something to count."""
        free = torch.randint(self.classes, (batch, MAX_OBJECTS), device=self.device)
        kinds = torch.randint(1, 5, (batch, 1), device=self.device)
        picked = (torch.rand(batch, MAX_OBJECTS, device=self.device) * kinds).long()
        return torch.where(torch.rand(batch, 1, device=self.device) < 0.5, free.gather(1, picked), free)

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

    def _bound(self, labels: Tensor, seen: VisibleExtent) -> tuple[Tensor, Tensor]:
        """Return labels, -1 where hardly a pixel is visible, and the boxes of the visible pixels [B, N, 4]."""
        height, width = self.size
        top = torch.div(seen.first, width, rounding_mode="floor")
        low_x, high_x = seen.left / width, (seen.right + 1) / width
        low_y, high_y = top / height, (seen.bottom + 1) / height
        boxes = torch.stack(((low_x + high_x) / 2, (low_y + high_y) / 2, high_x - low_x, high_y - low_y), -1)
        visible = (seen.pixels >= _LEAST_PIXELS) & (labels >= 0)
        return torch.where(visible, labels, -1), torch.where(visible[..., None], boxes, 0.0)


def _beside(centre: Tensor, half: Tensor, own: Tensor) -> Tensor:
    """Draw spots [B, tries, 2] where an object of half size `own` [B, 2] touches or overlaps one of those placed
    before, which have centres and half sizes [B, n, 2].
    """
    batch, placed, device = *centre.shape[:2], centre.device
    partner = torch.randint(placed, (batch, _TRIES, 1), device=device).expand(-1, -1, 2)
    reach = own[:, None] + half.gather(1, partner)
    side = torch.where(torch.rand(batch, _TRIES, device=device) < 0.5, -1.0, 1.0)
    apart, aslant = uniform((batch, _TRIES), 0.72, 1.02, device) * side, uniform((batch, _TRIES), -0.9, 0.9, device)
    across = torch.rand(batch, _TRIES, device=device) < 0.5
    offset = torch.stack((torch.where(across, apart, aslant), torch.where(across, aslant, apart)), -1)
    return centre.gather(1, partner) + offset * reach


def steady_hues(objects: Sequence[SceneObject]) -> Tensor:
    """Whether objects keep their hue because a name or synonym contains a colour, bool [classes]."""
    return torch.tensor([any(word in COLOURS for name in item.names for word in name.split()) for item in objects])
