"""Overlaps of items: which of several finds of one thing stays."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from photonlite.results.export import box_of, label_of
from photonlite.results.items import Item

SAME_IOU: Final = 0.5
"""Boxes whose intersection over union is above this are about the same thing."""

POINT_SIDE: Final = 0.05
"""A point counts as a box with sides of this share of the picture that it was found in."""

Boxes = npt.NDArray[np.float64]  # [n, 4]: x_min, y_min, x_max, y_max


def boxes_of(items: Sequence[Item], point_side: float = POINT_SIDE) -> Boxes:
    """Return the boxes of objects and segments, and boxes around points: [n, 4]."""
    boxes = np.array([box_of(item) for item in items], np.float64).reshape(-1, 4)
    grows = np.array([point_side / 2 if "x" in item else 0.0 for item in items])[:, None]
    grown: Boxes = boxes + grows * np.array([-1, -1, 1, 1])
    return grown


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


def best_of_overlapping(items: Sequence[Item]) -> list[Item]:
    """Return the items, in their order, without those that overlap one of another name and of a better score.

    Boxes overlap from an intersection over union of 0.5 on, segments by their boxes, and points as boxes of 5 % of the
    image. Of equal scores the first item stays.
    """
    boxes, labels = boxes_of(items), np.array([label_of(item) for item in items])
    stays = np.ones(len(items), np.bool_)
    for index in sorted(range(len(items)), key=lambda index: -items[index]["score"]):
        if stays[index]:
            worse = (ious(boxes[index], boxes) >= SAME_IOU) & (labels != labels[index])
            stays &= ~worse
    return [item for item, kept in zip(items, stays, strict=True) if kept]
