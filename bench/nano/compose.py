"""Training scenes, composed on the device by the hundred: layout, painting, visible boxes, dense targets.

Everything is drawn at the model's own resolution, as the crop sees it: a picture of any aspect squeezed into a square.
Coordinates "in the picture" have the short side as their unit, so that rotation is true before the squeeze.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bench.nano.backgrounds import backgrounds, uniform
from bench.nano.degrade import degrade

MAX_OBJECTS = 10
MIN_SIZE, MAX_SIZE = 0.065, 0.45  # longer side before rotation, as a share of the picture's short side
MAX_OVERLAP = 0.3
MAX_ANGLE = math.radians(25)
_TRIES = 16
_LEAST_PIXELS = 12
_SPRITE = 128
_LEVELS = 7  # blurred copies of the sprites, half an octave apart, in the place of mipmaps


@dataclass(frozen=True)
class Difficulty:
    """How full and how fine scenes are; `at` gives the curriculum."""

    max_count: int = MAX_OBJECTS
    min_size: float = MIN_SIZE

    @classmethod
    def at(cls, progress: float, ramp: float = 0.35) -> "Difficulty":
        """Give the difficulty at a share of the run: from few and large objects to the full range at `ramp`."""
        t = min(1.0, progress / ramp)
        return cls(max_count=round(3 + t * (MAX_OBJECTS - 3)), min_size=0.3 + t * (MIN_SIZE - 0.3))

    def tensor(self, device: torch.device) -> Tensor:
        """Give both numbers on the device, where a captured graph reads them: ``[2]``."""
        return torch.tensor([self.max_count, self.min_size], dtype=torch.float32, device=device)


@dataclass(frozen=True)
class Layout:
    """Where objects stand: ``[B, N]`` each; `label` is -1 for places left empty."""

    label: Tensor
    x: Tensor
    y: Tensor
    size: Tensor
    angle: Tensor
    mirror: Tensor
    width: Tensor
    height: Tensor


@dataclass(frozen=True)
class Scenes:
    """Composed scenes and their truth.

    Attributes:
        pixels: uint8 ``[B, S, S, 3]``.
        labels: ``[B, N]``, -1 where there is no visible object.
        boxes: visible extent, centre x, centre y, width, height in [0, 1], ``[B, N, 4]``.
        patch_labels: the object at each patch's centre, ``[B, P]``; the number of objects stands for background.
        patch_boxes: its box, ``[B, P, 4]``.
    """

    pixels: Tensor
    labels: Tensor
    boxes: Tensor
    patch_labels: Tensor
    patch_boxes: Tensor


class Composer:
    """Draws scenes from premultiplied sprites at several levels of blur.

    Args:
        sprites: straight RGBA, uint8 ``[classes, s, s, 4]``.
        size: side of a composed scene in pixels.
        patch: side of a patch in pixels.
        device: where to draw.
    """

    def __init__(self, sprites: Tensor, size: int, patch: int, device: torch.device) -> None:
        self.size, self.patch, self.device = size, patch, device
        # Half the bytes where memory traffic counts; a CPU has no fast arithmetic in half precision.
        self.dtype = torch.float16 if device.type == "cuda" else torch.float32
        self.sprite_size = sprites.shape[1]
        if self.sprite_size != _SPRITE:
            raise ValueError(f"sprites are {self.sprite_size} pixels wide, not {_SPRITE}")
        straight = sprites.to(device).permute(0, 3, 1, 2).float() / 255
        premultiplied = torch.cat((straight[:, :3] * straight[:, 3:], straight[:, 3:]), dim=1)
        self.classes = premultiplied.shape[0]
        self.extent = self._extent(straight[:, 3] > 0.5)
        # Pictures made by drawing emoji on a transparent canvas have a dark rim: half of the scenes get it too.
        rimmed = torch.cat((premultiplied[:, :3] * premultiplied[:, 3:], premultiplied[:, 3:]), dim=1)
        pyramid = torch.stack(
            [self._level(edge, level) for edge in (rimmed, premultiplied) for level in range(_LEVELS)]
        )
        self.texels = pyramid.permute(0, 1, 3, 4, 2).reshape(-1, 4).contiguous()
        # One fused pass over the pixels in the place of hundreds of small ones; a CPU only draws a few scenes.
        compiled = device.type == "cuda"
        self._blend = torch.compile(_blend) if compiled else _blend
        self._bound = torch.compile(_bound) if compiled else _bound

    def __call__(self, batch: int, difficulty: Tensor) -> Scenes:
        """Compose `batch` scenes; `difficulty` is :meth:`Difficulty.tensor`. Nothing here waits for the device."""
        layout = self._layout(batch, difficulty)
        canvas, owner = self._paint(backgrounds(batch, self.size, self.device), layout)
        labels, boxes = self._bound(owner, layout.label)
        pixels = degrade(canvas.float()).mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        return Scenes(pixels, labels, boxes, *self._dense(owner, labels, boxes))

    @staticmethod
    def _extent(visible: Tensor) -> Tensor:
        """Half width and half height of each sprite's visible part, as a share of half the sprite: ``[classes, 2]``."""
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
        aspect = torch.exp2(uniform((batch, 1), -1, 1, device))
        width, height = aspect.clamp(min=1), (1 / aspect).clamp(min=1)
        short = 160 * (10 / torch.maximum(width, height)) ** torch.rand(batch, 1, device=device)
        smallest = torch.maximum(20 / short, difficulty[1]).clamp(max=MAX_SIZE)
        t = torch.rand(batch, count, device=device)
        linear = torch.lerp(smallest, torch.full_like(smallest, MAX_SIZE), t)
        logarithmic = smallest * (MAX_SIZE / smallest) ** t
        size = torch.where(torch.rand(batch, 1, device=device) < 0.5, linear, logarithmic)
        angle = uniform((batch, count), -MAX_ANGLE, MAX_ANGLE, device)
        angle = angle * (torch.rand(batch, 1, device=device) < 0.8)
        label = self._labels(batch)
        wanted = 1 + (torch.rand(batch, 1, device=device) * difficulty[0]).floor()
        label = torch.where(torch.arange(count, device=device) < wanted, label, -1)

        extent = self.extent[label.clamp(min=0)] * size[..., None] / 2  # [B, N, 2]
        cos, sin = angle.cos().abs(), angle.sin().abs()
        half = torch.stack(
            (cos * extent[..., 0] + sin * extent[..., 1], sin * extent[..., 0] + cos * extent[..., 1]), -1
        )
        frame = torch.stack((width, height), -1)  # [B, 1, 2]
        spots = torch.rand(batch, count, _TRIES, 2, device=device)
        spots = half[:, :, None] + spots * (frame[:, :, None] - 2 * half[:, :, None]).clamp(min=0)
        centre = torch.zeros(batch, count, 2, device=device)
        area = 4 * half[..., 0] * half[..., 1] * (label >= 0)
        rows = torch.arange(batch, device=device)
        for n in range(count):
            if n:
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
        return Layout(label, centre[..., 0], centre[..., 1], size, angle, mirror, width, height)

    def _labels(self, batch: int) -> Tensor:
        """Draw kinds: half of the scenes from a palette of a few, so that there is something to count."""
        free = torch.randint(self.classes, (batch, MAX_OBJECTS), device=self.device)
        kinds = torch.randint(1, 5, (batch, 1), device=self.device)
        picked = (torch.rand(batch, MAX_OBJECTS, device=self.device) * kinds).long()
        return torch.where(torch.rand(batch, 1, device=self.device) < 0.5, free.gather(1, picked), free)

    def _paint(self, canvas: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Lay the objects over the canvas one after another.

        Returns:
            The picture, ``[B, 3, S, S]``, and which object owns each pixel, int8 ``[B, S, S]``, -1 for the background.
        """
        batch, device = canvas.shape[0], self.device
        shape = layout.label.shape
        shrink = self.sprite_size / (layout.size * self.size / (layout.width * layout.height).sqrt())
        level = (2 * shrink.log2() + uniform(shape, -0.7, 0.7, device)).round().long().clamp(0, _LEVELS - 1)
        level = level + _LEVELS * (torch.rand(batch, 1, device=device) < 0.5)
        gain = uniform((*shape, 1), 0.75, 1.2, device) * uniform((*shape, 3), 0.91, 1.09, device)
        stretch = 1 + uniform((*shape, 2), -0.08, 0.08, device)
        drop = uniform((batch, 1), 0, 0.12, device)
        darkness = uniform((batch, 1), 0, 0.5, device) * (torch.rand(batch, 1, device=device) < 0.3)
        return self._blend(
            canvas.to(self.dtype),
            self.texels,
            layout.label,
            level,
            self._transforms(layout, stretch),
            gain.to(self.dtype),
            drop,
            darkness.to(self.dtype),
        )

    def _transforms(self, layout: Layout, stretch: Tensor) -> Tensor:
        """Where the scene's pixels, x and y in [-1, 1], fall in each sprite, in the same units: ``[B, N, 2, 3]``."""
        cos, sin = layout.angle.cos(), layout.angle.sin()
        sx, sy = (2 / layout.size * layout.mirror * stretch[..., 0], 2 / layout.size * stretch[..., 1])
        w, h = layout.width / 2, layout.height / 2
        dx, dy = w - layout.x, h - layout.y
        return torch.stack(
            (
                torch.stack((sx * cos * w, sx * sin * h, sx * (cos * dx + sin * dy)), -1),
                torch.stack((-sy * sin * w, sy * cos * h, sy * (-sin * dx + cos * dy)), -1),
            ),
            dim=2,
        )

    def _dense(self, owner: Tensor, labels: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Targets for every patch: the object at its centre, and each object once at the patch of its own centre."""
        batch, grid = owner.shape[0], self.size // self.patch
        rows = torch.arange(batch, device=self.device)[:, None]
        at = owner[:, self.patch // 2 :: self.patch, self.patch // 2 :: self.patch].flatten(1).long()
        # Empty places write to a cell of their own behind the last patch.
        at = functional.pad(at, (0, 1), value=-1)
        cell = (boxes[..., :2] * grid).long().clamp(0, grid - 1)
        cell = torch.where(labels >= 0, cell[..., 1] * grid + cell[..., 0], grid * grid)  # [B, N]
        index = torch.arange(labels.shape[1], device=self.device).expand_as(labels)
        index = torch.where((labels >= 0) & (at.gather(1, cell) < 0), index, at.gather(1, cell))
        at[rows, cell] = index
        at = at[:, :-1]
        at = torch.where(labels.gather(1, at.clamp(min=0)) >= 0, at, -1)
        label = torch.where(at >= 0, labels.gather(1, at.clamp(min=0)), self.classes)
        return label, boxes[rows, at.clamp(min=0)]


def _blend(
    canvas: Tensor,
    texels: Tensor,
    label: Tensor,
    level: Tensor,
    transform: Tensor,
    gain: Tensor,
    drop: Tensor,
    darkness: Tensor,
) -> tuple[Tensor, Tensor]:
    """Blend sprites over a canvas ``[B, 3, S, S]``; see :meth:`Composer._paint`.

    `texels` holds premultiplied RGBA of every level, class, row and column, ``[2 * levels * classes * s * s, 4]``.
    """
    size, classes = canvas.shape[-1], texels.shape[0] // (2 * _LEVELS)
    side = _SPRITE
    classes //= side * side
    axis = (torch.arange(size, device=canvas.device) + 0.5) * (2 / size) - 1
    x, y = axis[None, None, :], axis[None, :, None]
    owner = torch.full((canvas.shape[0], size, size), -1, dtype=torch.int8, device=canvas.device)
    for n in range(label.shape[1]):
        present = (label[:, n] >= 0)[:, None, None]
        kind = label[:, n].clamp(min=0)
        m = transform[:, n, :, :, None, None]
        u = m[:, 0, 0] * x + m[:, 0, 1] * y + m[:, 0, 2]
        v = m[:, 1, 0] * x + m[:, 1, 1] * y + m[:, 1, 2]
        column, row = ((u + 1) * side - 1) / 2, ((v + 1) * side - 1) / 2  # [B, S, S]
        shift = (drop * side)[..., None]
        blurred = ((2 * _LEVELS - 1) * classes + kind)[:, None, None] * (side * side)
        near = (row - shift).round().long(), (column - shift).round().long()
        cast = present & _inside(*near, side)
        shadow = texels[blurred + _flat_index(*near, side)][..., 3] * cast * darkness[..., None]
        base = (level[:, n] * classes + kind)[:, None, None] * (side * side)
        sprite = _bilinear(texels, base, row, column, side) * present[..., None]
        alpha = sprite[..., 3]
        colour = torch.minimum(sprite[..., :3] * gain[:, n, None, None], alpha[..., None])
        canvas = colour.permute(0, 3, 1, 2) + canvas * ((1 - shadow) * (1 - alpha))[:, None]
        owner = torch.where(alpha > 0.5, n, owner)
    return canvas, owner


def _inside(row: Tensor, column: Tensor, side: int) -> Tensor:
    return (row >= 0) & (row < side) & (column >= 0) & (column < side)


def _flat_index(row: Tensor, column: Tensor, side: int) -> Tensor:
    return row.clamp(0, side - 1) * side + column.clamp(0, side - 1)


def _bilinear(texels: Tensor, base: Tensor, row: Tensor, column: Tensor, side: int) -> Tensor:
    """Sample ``[B, S, S, 4]``; zero outside the sprite."""
    top, left = row.floor(), column.floor()
    down, right = (row - top).to(texels.dtype), (column - left).to(texels.dtype)
    r, c = top.long(), left.long()
    out = torch.zeros((), dtype=texels.dtype, device=texels.device)
    for dr, wr in ((0, 1 - down), (1, down)):
        for dc, wc in ((0, 1 - right), (1, right)):
            weight = wr * wc * _inside(r + dr, c + dc, side)
            out = out + texels[base + _flat_index(r + dr, c + dc, side)] * weight[..., None]
    return out


def _bound(owner: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Bound the pixels each object still owns: labels (-1 for what is hardly seen) and boxes ``[B, N, 4]``."""
    size, count = owner.shape[-1], labels.shape[1]
    mine = owner[:, None] == torch.arange(count, device=owner.device, dtype=torch.int8)[:, None, None]
    place = torch.arange(size, device=owner.device)
    columns, rows = mine.any(2), mine.any(3)  # [B, N, S]
    low = torch.stack([torch.where(line, place, size).amin(-1) for line in (columns, rows)], -1)
    high = torch.stack([torch.where(line, place, -1).amax(-1) + 1 for line in (columns, rows)], -1)
    boxes = torch.cat((low + high, 2 * (high - low)), -1).float() / (2 * size)
    seen = mine.sum((2, 3)) >= _LEAST_PIXELS
    return torch.where(seen, labels, -1), torch.where(seen[..., None], boxes, 0.0)
