"""Overlaps of items: which of several finds of one thing stays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from photonlite.results.export import box_of, label_of
from photonlite.skills.tiles import Region

SAME_IOU: Final = 0.5
"""Boxes whose intersection over union is above this are about the same thing."""

POINT_SIDE: Final = 0.05
"""A point counts as a box with sides of this share of the picture that it was found in."""

TILES_IOU: Final = 0.4
"""The same for boxes of different tiles: the larger a tile is, the less exact are its small boxes."""

SAME_SHARE: Final = 0.5
"""A part of an object, as a tile shows it, is about the same thing as a box that holds this share of it."""

EDGE: Final = 0.04
"""A box ends at an edge of its tile if it is this near to it, as a share of the tile's side."""

_WHOLE: Final = (0.0, 0.0, 1.0, 1.0)

AnyItem = TypeVar("AnyItem", bound=Mapping[str, Any])
Boxes = npt.NDArray[np.float64]  # [n, 4]: x_min, y_min, x_max, y_max


def boxes_of(items: Sequence[Mapping[str, Any]], point_sides: float | Boxes = POINT_SIDE) -> Boxes:
    """Return the boxes of objects and segments, and boxes around points with sides of their own [n, 2]: [n, 4]."""
    boxes = np.array([box_of(item) for item in items], np.float64).reshape(-1, 4)
    half = np.broadcast_to(np.asarray(point_sides) / 2, (len(items), 2))
    grows = np.where(np.array(["x" in item for item in items], np.bool_)[:, None], half, 0.0)
    return np.hstack([boxes[:, :2] - grows, boxes[:, 2:] + grows])


def areas(boxes: Boxes) -> npt.NDArray[np.float64]:
    sizes: npt.NDArray[np.float64] = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return sizes


def intersections(box: Boxes, boxes: Boxes) -> npt.NDArray[np.float64]:
    """Return the areas that one box [4] shares with each of others [n, 4]."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    shared: npt.NDArray[np.float64] = np.clip(sides, 0, None).prod(axis=1)
    return shared


def ious(box: Boxes, boxes: Boxes) -> npt.NDArray[np.float64]:
    """Return the intersection over union of one box [4] with each of others [n, 4]; 0 where both are empty."""
    shared = intersections(box, boxes)
    union = areas(box[None]) + areas(boxes) - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def merge_tiles(found: Sequence[tuple[AnyItem, Region | None]], size: tuple[int, int]) -> list[AnyItem]:
    """Return the items of one name without those that repeat another, in their order.

    Boxes that end at an inner edge of their tile are perhaps parts of objects. Parts and points count only in the core
    of their tile (and a little around it): the tile whose core it is sees the object whole, unless it is longer than an
    overlap. Parts of such long ones give way to whole boxes, and to larger parts, that hold half of them. Otherwise a
    box repeats one of another tile if their intersection over union is 0.4 or more, a point if it is nearer than 2.5 %
    of a tile, and the better score stays. Two items of one tile never repeat each other.

    Args:
        found: Items, normalised to [0, 1] of the image, and the tiles that they were found in; None for the image.
        size: Width and height of the image, in pixels.
    """
    items, regions = [item for item, _ in found], [region for _, region in found]
    tiles = _bounds([_WHOLE if region is None else _shares(region.box, size) for region in regions])
    cores = _bounds([_WHOLE if region is None else _shares(region.core, size) for region in regions])
    lengths = tiles[:, 2:] - tiles[:, :2]
    boxes = boxes_of(items, POINT_SIDE * lengths)
    points = np.array(["x" in item for item in items], np.bool_)
    inner = (tiles > 0) & (tiles < 1)
    parts = _any(inner & (np.abs(boxes - tiles) <= EDGE * np.tile(lengths, 2)))
    centres, slack = (boxes[:, :2] + boxes[:, 2:]) / 2, POINT_SIDE / 2 * lengths
    outside = _any((centres < cores[:, :2] - slack) | (centres > cores[:, 2:] + slack))
    strays = (parts | points) & outside
    sizes, numbers = areas(boxes), {region: number for number, region in enumerate(dict.fromkeys(regions))}
    tile_of = np.array([numbers[region] for region in regions])
    # Whole ones by score, then parts by size.
    rank = [(bool(part), -sizes[at] if part else -items[at]["score"]) for at, part in enumerate(parts & ~points)]
    kept, find_near = np.zeros(len(items), np.bool_), _neighbours(boxes)
    for at in sorted(np.flatnonzero(~strays).tolist(), key=lambda at: rank[at]):
        near = find_near(at, kept & (tile_of != tile_of[at]))
        repeats = ious(boxes[at], boxes[near]) >= TILES_IOU
        if points[at]:
            repeats |= intersections(boxes[at], boxes[near]) >= SAME_SHARE * np.minimum(sizes[at], sizes[near])
        elif parts[at]:
            repeats |= intersections(boxes[at], boxes[near]) >= SAME_SHARE * sizes[at]
        kept[at] = not repeats.any()
    return [item for item, stays in zip(items, kept, strict=True) if stays]


def _any(conditions: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.any(conditions, axis=1)
    return found


def _bounds(boxes: Sequence[Sequence[float]]) -> Boxes:
    return np.array(boxes, np.float64).reshape(-1, 4)


def _shares(box: Sequence[float], size: tuple[int, int]) -> tuple[float, ...]:
    return tuple(value / side for value, side in zip(box, (*size, *size), strict=True))


def best_of_overlapping(items: Sequence[AnyItem]) -> list[AnyItem]:
    """Return the items, in their order, without those that overlap one of another name and of a better score.

    Boxes overlap from an intersection over union of 0.5 on, segments by their boxes, and points as boxes of 5 % of the
    image. Of equal scores the first item stays.
    """
    numbers: dict[str, int] = {}
    labels = np.array([numbers.setdefault(label_of(item), len(numbers)) for item in items])
    boxes = boxes_of(items)
    kept, find_near = np.zeros(len(items), np.bool_), _neighbours(boxes)
    for at in sorted(range(len(items)), key=lambda at: -items[at]["score"]):
        near = find_near(at, kept & (labels != labels[at]))
        kept[at] = not (ious(boxes[at], boxes[near]) >= SAME_IOU).any()
    return [item for item, stays in zip(items, kept, strict=True) if stays]


def _neighbours(boxes: Boxes) -> Callable[[int, npt.NDArray[np.bool_]], npt.NDArray[np.intp]]:
    """Return what finds the boxes among some that share area with one: quickly, as a picture may have thousands."""
    left, top, right, bottom = np.ascontiguousarray(boxes.T)

    def find(at: int, among: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        across = (left < right[at]) & (right > left[at])
        down = (top < bottom[at]) & (bottom > top[at])
        return np.flatnonzero(among & across & down)

    return find
