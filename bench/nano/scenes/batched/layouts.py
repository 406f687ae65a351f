"""Where objects of composed scenes lie: anywhere, beside one another, in rows, in grids, in piles.

Lengths have the short side of the image as their unit. B scenes have N places for objects, some of them empty.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.nano.scenes.batched.painting import uniform

MAX_OBJECTS = 50
MAX_KINDS = 10  # in one scene
MIN_SIZE, MAX_SIZE = 0.04, 0.9  # longer side before rotation
MAX_ANGLE = math.radians(25)
MAX_SHEAR = math.tan(math.radians(8))
CROWDS = ((10, 0.5), (25, 0.25), (50, 0.25))
"""Most objects of a crowd, and the share of the scenes that have so many; each begins where the last one ends."""

_ANY_ANGLE = 0.5  # of the scenes turn objects by any angle: outlines of these are learned late
_EMPTY = 0.18  # of the scenes hold nothing, or distractors alone: texture is no object
_ALONE = 0.15  # of the scenes that may hold up to ten objects hold one: it must not be taken for background
_DISTRACTED = 0.4  # of the scenes hold distractors, up to `_MOST_DISTRACTORS`
_MOST_DISTRACTORS = 5
_LEAST_PIXELS = 14  # of an object's longer side in the image before it is scaled to the crop
_FILL = 1.3  # longer side at most, times the root of the number of objects
_TRIES = 16
_BESIDE = 12  # tries in a crowd; the others find room where there is none beside an object
_CROWDED = 0.35  # of the free scenes have objects that touch or overlap as far as they may
_CELLS = 128
_ROWS, _GRID, _PILE = 0.12, 0.3, 0.45  # cumulative shares of the layouts; the others are free
_OVERLAPS = (0.3, 0.5, 0.6)  # of the smaller box: usually, in a third of the free scenes and in grids, in piles
_COVERED = 0.1  # more of a box may be covered by all later ones together than by one of them


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
    width: Tensor  # Of the image, [B, 1]
    height: Tensor


@dataclass(frozen=True)
class _Bounds:
    """What placing objects needs to know."""

    label: Tensor  # [B, N]
    half: Tensor  # Half sides of the boxes, [B, N, 2]
    frame: Tensor  # Width and height of the image, [B, 1, 2]


class LayoutMaker:
    """Lays out scenes of up to `most` of `classes` objects.

    `extent`: half width and half height of each sprite, [sprites, 2]; those past the classes are distractors.
    `size`: height and width of the canvas in pixels, of which only the aspect counts.
    """

    def __init__(self, extent: Tensor, classes: int, size: tuple[int, int], most: int) -> None:
        self.extent, self.classes, self.size, self.most = extent, classes, size, most
        self.device = extent.device

    def __call__(self, batch: int, difficulty: Tensor) -> Layout:
        """Place objects one after another, each at the first of several spots that is free enough."""
        device, shape = self.device, (batch, self.most)
        aspect = torch.exp2(self._aspect(batch))
        width, height = aspect.clamp(min=1), (1 / aspect).clamp(min=1)
        frame = torch.stack((width, height), -1)
        label = self._labels(batch, self._count(batch, difficulty[0]))
        total = (label >= 0).sum(1, keepdim=True).clamp(min=1)
        turned = torch.where(self._chance(batch, _ANY_ANGLE), math.pi, MAX_ANGLE)
        angle = uniform(shape, -1, 1, device) * turned * self._chance(batch, 0.8)
        shear = uniform(shape, -MAX_SHEAR, MAX_SHEAR, device) * self._chance(batch, 0.6)
        cap = (_FILL / total.sqrt()).clamp(max=MAX_SIZE)
        short = 160 * (10 / torch.maximum(width, height)) ** torch.rand(batch, 1, device=device)
        smallest = torch.minimum(torch.maximum(_LEAST_PIXELS / short, difficulty[1]), cap / 2)
        style = torch.rand(batch, 1, device=device)
        lattice = _Lattice(total, style < _ROWS, frame, self.most)
        size = self._sizes(smallest, cap)
        size = torch.where(style < _GRID, lattice.sizes(size).clamp(max=MAX_SIZE), size).maximum(smallest)
        half = self._half(label, size, angle, shear)
        fit = (0.5 * frame / half).amin(-1).clamp(max=1)
        size, half = size * fit, half * fit[..., None]
        bounds = _Bounds(label, half, frame)
        spots = torch.where((style < _PILE)[..., None, None], _piles(bounds, total), _anywhere(bounds))
        spots = torch.where((style < _GRID)[..., None, None], lattice.spots(half), spots)
        low, high = half[:, :, None], frame[:, :, None] - half[:, :, None]
        spots = torch.minimum(spots.maximum(low), high.maximum(low))
        often, some, most = _OVERLAPS
        limit = torch.where((style < _GRID) | self._chance(batch, 1 / 3), some, often)
        limit = torch.where((style >= _GRID) & (style < _PILE), most, limit)
        beside = (style >= _PILE) & self._chance(batch, _CROWDED)
        label, centre = _place(bounds, spots, beside, limit)
        # Words are not mirrored.
        mirror = torch.where((torch.rand(shape, device=device) < 0.5) & (label < self.classes), -1.0, 1.0)
        return Layout(label, centre[..., 0], centre[..., 1], size, angle, shear, mirror, width, height)

    def _chance(self, batch: int, share: float) -> Tensor:
        return torch.rand(batch, 1, device=self.device) < share

    def _aspect(self, batch: int) -> Tensor:
        """Draw log2 of the images' aspects: any up to 2:1 in a square canvas, else about the canvas's own."""
        height, width = self.size
        if height == width:
            return uniform((batch, 1), -1, 1, self.device)
        return (math.log2(width / height) + uniform((batch, 1), -0.5, 0.5, self.device)).clamp(-1, 1)

    def _count(self, batch: int, most: Tensor) -> Tensor:
        """Draw how many objects scenes have, [B, 1]: by the shares of `CROWDS`, evenly below a smaller limit."""
        band, share = torch.rand(2, batch, 1, device=self.device).unbind()
        count, first, begins = torch.zeros_like(share), 1, 0.0
        for last, odds in CROWDS:
            count = torch.where(band >= begins, first + (share * (last + 1 - first)).floor(), count)
            first, begins = last + 1, begins + odds
        count = torch.where((count <= CROWDS[0][0]) & self._chance(batch, _ALONE), 1.0, count)
        most = most.clamp(max=self.most)
        count = torch.where(count > most, 1 + (share * most).floor(), count)
        return count * ~self._chance(batch, _EMPTY)

    def _labels(self, batch: int, count: Tensor) -> Tensor:
        """Draw kinds, [B, N]: of a few, of up to `MAX_KINDS`, or of one or two and some others, and distractors."""
        shape, device = (batch, self.most), self.device
        place = torch.arange(self.most, device=device)
        drawn, other, rank = torch.rand(3, *shape, device=device).unbind()
        few = (drawn * torch.randint(1, 5, (batch, 1), device=device)).long()
        chief = (drawn * torch.randint(1, 3, (batch, 1), device=device)).long()
        others = 2 + (other * (MAX_KINDS - 2) * torch.rand(batch, 1, device=device)).long()
        # Often the others are one of each: else a scene that repeats a kind would teach that there are few kinds.
        others = torch.where(self._chance(batch, 0.5), 2 + place % (MAX_KINDS - 2), others)
        crowd, way = count > CROWDS[0][0], torch.rand(batch, 1, device=device)
        share = uniform((batch, 1), 0.5, 1.1, device)
        chief = torch.where(rank < torch.where(crowd, share, 1.6 * share - 0.7), chief, others)
        picked = torch.where(way < torch.where(crowd, 0.8, 0.65), few, place % MAX_KINDS)
        picked = torch.where(way < torch.where(crowd, 0.5, 0.35), chief, picked)
        palette = torch.randint(self.classes, (batch, MAX_KINDS), device=device)
        label, used = palette.gather(1, picked), count
        if len(self.extent) > self.classes:
            number = torch.randint(1, _MOST_DISTRACTORS + 1, (batch, 1), device=device)
            number = torch.minimum(number * self._chance(batch, _DISTRACTED), self.most - count)
            used = count + number
            # Anywhere among the objects: what is painted later lies on top.
            rank = torch.where(place < used, torch.rand(shape, device=device), 2.0).argsort(1).argsort(1)
            distractor = torch.randint(self.classes, len(self.extent), shape, device=device)
            label = torch.where(rank < number, distractor, label)
        return torch.where(place < used, label, -1)

    def _sizes(self, smallest: Tensor, cap: Tensor) -> Tensor:
        """Draw sizes from `smallest` to `cap`, [B, 1] each: evenly, by ratio, or nearly the same for a whole scene."""
        shape, device = (len(cap), self.most), self.device
        t = torch.rand(shape, device=device)
        t = torch.where(self._chance(len(cap), 0.15), (1 + t) / 2, t)
        alike = self._chance(len(cap), 0.3)
        t = torch.where(alike, t[:, :1], t)
        linear, logarithmic = torch.lerp(smallest, cap, t), smallest * (cap / smallest) ** t
        size = torch.where(self._chance(len(cap), 0.4), linear, logarithmic)
        return size * torch.where(alike, uniform(shape, 0.85, 1.0, device), 1.0)

    def _half(self, label: Tensor, size: Tensor, angle: Tensor, shear: Tensor) -> Tensor:
        """Half sides of the boxes of turned objects, [B, N, 2]."""
        extent = self.extent[label.clamp(min=0)] * size[..., None] / 2
        cos, sin = angle.cos().abs(), angle.sin().abs()
        wide, tall = extent[..., 0] + shear.abs() * extent[..., 1], extent[..., 1]
        return torch.stack((cos * wide + sin * tall, sin * wide + cos * tall), -1)


class _Lattice:
    """Rows or grids: at least `total` cells [B, 1] in a part of the image, some of them left empty."""

    def __init__(self, total: Tensor, in_rows: Tensor, frame: Tensor, most: int) -> None:
        batch, device = len(total), total.device
        wanted = total * uniform((batch, 1), 1.0, 1.35, device)
        shape = frame[..., 0] / frame[..., 1] * torch.exp2(uniform((batch, 1), -0.7, 0.7, device))
        columns = (wanted * shape).sqrt().round()
        columns = torch.where(in_rows, (wanted / torch.randint(1, 4, (batch, 1), device=device)).ceil(), columns)
        columns = torch.minimum(columns, (18 * frame[..., 0]).floor()).clamp(min=1)
        rows = (wanted / columns).ceil()
        low = 0.5 + total[..., None] / (2 * MAX_OBJECTS)  # of the image, for larger crowds more
        region = (low + (1 - low) * torch.rand(batch, 1, 2, device=device)).clamp(max=1) * frame
        self._offset = torch.rand(batch, 1, 2, device=device) * (frame - region)
        self._cell = region / torch.stack((columns, rows), -1)  # [B, 1, 2]
        index = torch.arange(_CELLS, device=device).expand(batch, -1)
        scattered = torch.rand(batch, _CELLS, device=device)
        score = torch.where(torch.rand(batch, 1, device=device) < 0.5, index / _CELLS, scattered)
        chosen = torch.where(index < rows * columns, score, 2.0).argsort(1)[:, :most]
        row = torch.div(chosen, columns, rounding_mode="floor")
        self._at = torch.stack((chosen - row * columns, row), -1)  # column and row, [B, N, 2]
        shift = torch.rand(batch, _CELLS, device=device).gather(1, row.long().clamp(max=_CELLS - 1)) - 0.5
        self._shift = shift * (torch.rand(batch, 1, device=device) < 0.5)
        self._in_rows = in_rows

    def sizes(self, size: Tensor) -> Tensor:
        """Sizes [B, N] that fill the cells; the spread of `size` in a half of the scenes, else nearly equal ones."""
        batch, device = len(size), size.device
        relative = (size / size.amax(1, keepdim=True)).clamp(min=0.5)
        relative = torch.where(torch.rand(batch, 1, device=device) < 0.5, relative, uniform(size.shape, 0.9, 1, device))
        return self._cell.amin(-1) * uniform((batch, 1), 0.6, 1.1, device) * relative

    def spots(self, half: Tensor) -> Tensor:
        """Spots in the cells for boxes of half sides [B, N, 2]: [B, N, tries, 2]. Rows may stand on their lines."""
        batch, device = len(half), half.device
        place = self._at + 0.5
        place = torch.stack((place[..., 0] + self._shift * self._in_rows, place[..., 1]), -1)
        centre = self._offset + place * self._cell
        standing = self._in_rows & (torch.rand(batch, 1, device=device) < 0.6)
        line = self._offset[..., 1] + (self._at[..., 1] + 0.95) * self._cell[..., 1] - half[..., 1]
        centre = torch.stack((centre[..., 0], torch.where(standing, line, centre[..., 1])), -1)
        loose = torch.rand(batch, 1, 1, 1, device=device) * (torch.rand(batch, 1, 1, 1, device=device) < 0.6)
        jitter = uniform((*half.shape[:2], _TRIES, 2), -0.25, 0.25, device) * loose
        return centre[:, :, None] + jitter * self._cell[:, :, None]


def _anywhere(bounds: _Bounds) -> Tensor:
    """Spots anywhere in the image, [B, N, tries, 2]."""
    half = bounds.half[:, :, None]
    share = torch.rand(*half.shape[:2], _TRIES, 2, device=half.device)
    return half + share * (bounds.frame[:, :, None] - 2 * half).clamp(min=0)


def _piles(bounds: _Bounds, total: Tensor) -> Tensor:
    """Spots around one to three places, as close as piles are, [B, N, tries, 2]."""
    half, batch, device = bounds.half, len(bounds.half), bounds.half.device
    number = torch.randint(1, 4, (batch, 1), device=device)
    pile = (torch.rand(half.shape[:2], device=device) * number).long()
    middle = (0.15 + 0.7 * torch.rand(batch, 3, 2, device=device)) * bounds.frame
    middle = middle.gather(1, pile[..., None].expand(-1, -1, 2))
    side = (4 * half.prod(-1) * (bounds.label >= 0)).sum(1, keepdim=True) / number
    spread = (0.45 * side.sqrt() * uniform((batch, 1), 0.7, 1.3, device))[..., None, None]
    return middle[:, :, None] + spread * torch.randn(*half.shape[:2], _TRIES, 2, device=device)


def _place(bounds: _Bounds, spots: Tensor, beside: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Choose the first spot of each object that overlaps no earlier one too much, nor covers too much of any.

    `spots` [B, N, tries, 2] are taken from beside earlier objects where `beside` [B, 1]; `limit` [B, 1] is a share of
    the smaller of two boxes. Returns labels, -1 where no spot is free, and centres [B, N, 2].
    """
    half, device = bounds.half, spots.device
    batch, count = bounds.label.shape
    partner, offset = _neighbours(half)
    near_tries = (beside & (torch.arange(_TRIES, device=device) < _BESIDE))[..., None]
    low, high = half, (bounds.frame - half).maximum(half)
    reach, least = half[:, :, None] + half[:, None], 2 * torch.minimum(half[:, :, None], half[:, None])
    area = (4 * half.prod(-1)).clamp(min=1e-9)
    smaller = torch.minimum(area[:, :, None], area[:, None])  # [B, N, N]
    centre = torch.zeros(batch, count, 2, device=device)
    covered, placed = torch.zeros(batch, count, device=device), torch.zeros(batch, count, device=device)
    most, rows = limit[..., None], torch.arange(batch, device=device)
    for n in range(count):
        spot = spots[:, n]
        if n:
            near = centre.gather(1, partner[:, n]) + offset[:, n]
            near = torch.minimum(near.maximum(low[:, n, None]), high[:, n, None])
            spot = torch.where(near_tries, near, spot)
        gap = (spot[:, :, None] - centre[:, None]).abs()  # [B, tries, N, 2]
        sides = torch.minimum((reach[:, n, None] - gap).clamp(min=0), least[:, n, None])
        shared = sides[..., 0] * sides[..., 1] * placed[:, None]
        cover = shared / area[:, None] + covered[:, None]
        free = ((shared <= most * smaller[:, n, None]) & (cover <= most + _COVERED)).all(-1)
        first = free.int().argmax(1)
        there = free.any(1) & (bounds.label[:, n] >= 0)
        placed[:, n] = there
        centre[:, n] = spot[rows, first]
        covered = torch.where(there[:, None], cover[rows, first], covered)
    return torch.where(placed > 0, bounds.label, -1), centre


def _neighbours(half: Tensor) -> tuple[Tensor, Tensor]:
    """Draw an earlier object for each try, [B, N, tries, 2], and where to lie from its centre so that both touch or
    overlap, likewise.
    """
    batch, count, _ = half.shape
    shape, device = (batch, count, _TRIES), half.device
    earlier = torch.arange(count, device=device)[:, None]
    partner = (torch.rand(shape, device=device) * earlier).long().minimum((earlier - 1).clamp(min=0))
    pairs = partner[..., None].expand(-1, -1, -1, 2)
    reach = half[:, :, None] + half.gather(1, pairs.flatten(1, 2)).view(*shape, 2)
    side = torch.where(torch.rand(shape, device=device) < 0.5, -1.0, 1.0)
    apart, aslant = uniform(shape, 0.72, 1.02, device) * side, uniform(shape, -0.9, 0.9, device)
    across = torch.rand(shape, device=device) < 0.5
    offset = torch.stack((torch.where(across, apart, aslant), torch.where(across, aslant, apart)), -1)
    return pairs, offset * reach
