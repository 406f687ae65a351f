"""Objects, points and segments in other forms: pixels, masks, COCO annotations, `supervision` detections."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from photonlite.errors import InputError, MissingDependencyError
from photonlite.results.rings import Ring, fill_mask, group_rings
from photonlite.results.svg import path_to_rings

Item = dict[str, Any]

_ACROSS = ("x", "x_min", "x_max")
_DOWN = ("y", "y_min", "y_max")


def scale_item(item: Mapping[str, Any], across: float, down: float) -> Item:
    """A copy of an object, point or segment with every coordinate multiplied; the box-relative path stays."""
    scaled: Item = {}
    for key, value in item.items():
        if key in _ACROSS:
            scaled[key] = value * across
        elif key in _DOWN:
            scaled[key] = value * down
        elif key == "bbox":
            scaled[key] = scale_item(value, across, down)
        elif key == "polygon":
            scaled[key] = [[x * across, y * down] for x, y in value]
        else:
            scaled[key] = value
    return scaled


def check_size(width: int, height: int) -> None:
    """Raises InputError unless both sides are positive."""
    if not (width > 0 and height > 0):
        raise InputError(f"An image of {width} x {height} pixels has no area. Give its width and height in pixels.")


def segment_rings(segment: Mapping[str, Any], width: int, height: int) -> list[Ring]:
    """The outlines of a segment: of its path, or of its polygon where it has no path.

    Args:
        segment: With coordinates in pixels.
        width: Of the image, in pixels.
        height: Of the image, in pixels.

    Returns:
        Rings in pixels.

    Raises:
        InputError: The path is not SVG path data.
    """
    if segment.get("path"):
        rings = path_to_rings(segment["path"], scale_item(segment["bbox"], 1 / width, 1 / height))
        return [[(x * width, y * height) for x, y in ring] for ring in rings]
    polygon = [(float(x), float(y)) for x, y in segment.get("polygon", ())]
    return [polygon] if polygon else []


def segment_masks(segments: Sequence[Mapping[str, Any]], width: int, height: int) -> NDArray[np.bool_]:
    """The pixels of each segment (with coordinates in pixels): bool [n, height, width].

    Raises:
        InputError: A path is not SVG path data.
    """
    masks = np.zeros((len(segments), height, width), dtype=np.bool_)
    for mask, segment in zip(masks, segments, strict=True):
        mask[:] = fill_mask(segment_rings(segment, width, height), width, height)
    return masks


def box_of(item: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """x_min, y_min, x_max and y_max of an object, a segment (its box) or a point (a box of no size)."""
    if "x" in item:
        return item["x"], item["y"], item["x"], item["y"]
    box = item.get("bbox", item)
    return box["x_min"], box["y_min"], box["x_max"], box["y_max"]


def coco_annotations(
    items: Sequence[Mapping[str, Any]],
    width: int,
    height: int,
    image_id: int | str,
    category_ids: Mapping[str, int] | None,
    first_id: int,
) -> list[Item]:
    """COCO annotations (https://cocodataset.org/#format-data) of objects, points or segments.

    Args:
        items: With coordinates in pixels.
        width: Of the image, in pixels.
        height: Of the image, in pixels.
        image_id: Goes into every annotation.
        category_ids: The id of each label; without it labels are numbered from 1 as they come.
        first_id: The id of the first annotation.

    Raises:
        InputError: A label has no category id.
    """
    labels = [str(item.get("label", "")) for item in items]
    known = _numbers(labels, category_ids, "category_ids", first=1)
    annotations = []
    for index, item in enumerate(items):
        x0, y0, x1, y1 = (float(side) for side in box_of(item))
        annotation: Item = {
            "id": first_id + index,
            "image_id": image_id,
            "category_id": known[labels[index]],
            "bbox": [x0, y0, x1 - x0, y1 - y0],
            "area": (x1 - x0) * (y1 - y0),
            "iscrowd": 0,
        }
        if "bbox" in item:
            rings = segment_rings(item, width, height)
            annotation["segmentation"] = [[value for point in ring for value in point] for ring in group_rings(rings)]
            annotation["area"] = float(fill_mask(rings, width, height).sum())
        elif "x" in item:
            # 2: labelled and visible.
            annotation |= {"keypoints": [x0, y0, 2], "num_keypoints": 1}
        if "score" in item:
            annotation["score"] = float(item["score"])
        annotations.append(annotation)
    return annotations


def _numbers(labels: Iterable[str], given: Mapping[str, int] | None, name: str, *, first: int) -> Mapping[str, int]:
    """Return the number of each label: as given by the argument of that name, or in order from `first` on."""
    if given is None:
        return {label: number for number, label in enumerate(dict.fromkeys(labels), start=first)}
    for label in labels:
        if label not in given:
            raise InputError(f"{name} has no id for the label {label!r}. Add one, or leave {name} out.")
    return given


def supervision_detections(
    items: Sequence[Mapping[str, Any]], masks: NDArray[np.bool_] | None, class_ids: Mapping[str, int] | None
) -> Any:
    """The items (with coordinates in pixels) as `supervision.Detections`.

    Points become boxes of no size, which that package's dot and label annotators draw.

    Raises:
        MissingDependencyError: The package `supervision` is not installed.
        InputError: A label has no class id.
    """
    try:
        import supervision
    except ImportError as error:
        raise MissingDependencyError(
            "to_supervision() needs the package supervision. Install it: pip install 'photonlite[supervision]'"
        ) from error
    labels = [str(item.get("label", "")) for item in items]
    numbers = _numbers(labels, class_ids, "class_ids", first=0)
    boxes = [box_of(item) for item in items]
    return supervision.Detections(
        xyxy=np.array(boxes, dtype=np.float32).reshape(-1, 4),
        mask=masks,
        confidence=np.array([item.get("score", 1.0) for item in items], dtype=np.float32),
        class_id=np.array([numbers[label] for label in labels], dtype=np.int64),
        data={"class_name": np.array(labels, dtype=np.str_)},
    )
