"""Items of one result (objects, points or segments) as pixels, masks, COCO annotations, YOLO rows or `supervision`."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from photonlite.errors import InputError, MissingDependencyError
from photonlite.results.rings import Ring, fill_mask, group_rings, join_rings
from photonlite.results.svg import path_to_rings


def scale_item(item: Mapping[str, Any], x_scale: float, y_scale: float) -> dict[str, Any]:
    """Return a copy with every coordinate multiplied; a segment's path is relative to its box and stays."""
    scaled = dict(item)
    scaled |= {key: item[key] * x_scale for key in ("x", "x_min", "x_max") if key in item}
    scaled |= {key: item[key] * y_scale for key in ("y", "y_min", "y_max") if key in item}
    if "bbox" in item:
        scaled["bbox"] = scale_item(item["bbox"], x_scale, y_scale)
    if "polygon" in item:
        scaled["polygon"] = [[x * x_scale, y * y_scale] for x, y in item["polygon"]]
    return scaled


def segment_rings(segment: Mapping[str, Any], width: int, height: int) -> list[Ring]:
    """Return the outlines of a segment in pixels: of its path, or else of its polygon."""
    if segment.get("path"):
        rings = path_to_rings(segment["path"], scale_item(segment["bbox"], 1 / width, 1 / height))
        return [[(x * width, y * height) for x, y in ring] for ring in rings]
    polygon = [(float(x), float(y)) for x, y in segment.get("polygon", ())]
    return [polygon] if polygon else []


def segment_masks(segments: Sequence[Mapping[str, Any]], width: int, height: int) -> NDArray[np.bool_]:
    """Return the pixels of each segment (with coordinates in pixels): bool [n, height, width]."""
    masks = np.zeros((len(segments), height, width), dtype=np.bool_)
    for mask, segment in zip(masks, segments, strict=True):
        mask[:] = fill_mask(segment_rings(segment, width, height), width, height)
    return masks


def box_of(item: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """Return x_min, y_min, x_max, y_max of an object, a segment's box, or a point (a box of no size)."""
    if "x" in item:
        return item["x"], item["y"], item["x"], item["y"]
    box = item.get("bbox", item)
    return box["x_min"], box["y_min"], box["x_max"], box["y_max"]


def label_of(item: Mapping[str, Any]) -> str:
    return str(item.get("label", ""))


def score_of(item: Mapping[str, Any]) -> float:
    return float(item.get("score", 1.0))


def number_labels(labels: Iterable[str], given: Mapping[str, int] | None, name: str, *, first: int) -> dict[str, int]:
    """Return the number of each label: as `given` by the argument `name`, or counted from `first`."""
    if given is None:
        return {label: number for number, label in enumerate(dict.fromkeys(labels), start=first)}
    for label in labels:
        if label not in given:
            raise InputError(f"{name} has no id for the label {label!r}. Add one, or leave {name} out.")
    return dict(given)


def coco_annotations(
    items: Sequence[Mapping[str, Any]],
    width: int,
    height: int,
    image_id: int | str,
    category_ids: Mapping[str, int],
    first_id: int,
) -> list[dict[str, Any]]:
    """Return items with coordinates in pixels as COCO annotations (https://cocodataset.org/#format-data)."""
    annotations = []
    for index, item in enumerate(items):
        x0, y0, x1, y1 = (float(side) for side in box_of(item))
        annotation: dict[str, Any] = {
            "id": first_id + index,
            "image_id": image_id,
            "category_id": category_ids[label_of(item)],
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


def yolo_rows(items: Sequence[Mapping[str, Any]], width: int, height: int, class_ids: Mapping[str, int]) -> list[str]:
    """Return items with coordinates in pixels as rows of YOLO labels: a box, or one outline that joins all parts.

    A segment without an outline has no row: a box among outlines would be read as one.
    """
    rows = []
    for item in items:
        if outlined := "bbox" in item:
            values = [value for point in join_rings(group_rings(segment_rings(item, width, height))) for value in point]
        else:
            values = list(box_of(item))
        shares = [min(max(value / side, 0.0), 1.0) for value, side in zip(values, cycle((width, height)), strict=False)]
        if not outlined:
            x0, y0, x1, y1 = shares
            shares = [(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0]
        if shares:
            rows.append(f"{class_ids[label_of(item)]} {' '.join(f'{share:.6f}' for share in shares)}\n")
    return rows


def supervision_detections(
    items: Sequence[Mapping[str, Any]], masks: NDArray[np.bool_] | None, class_ids: Mapping[str, int]
) -> Any:
    """Return items with coordinates in pixels as `supervision.Detections`; points become boxes of no size."""
    try:
        import supervision
    except ImportError as error:
        raise MissingDependencyError(
            "to_supervision() needs the package supervision. Install it: pip install 'photonlite[supervision]'"
        ) from error
    labels = [label_of(item) for item in items]
    return supervision.Detections(
        xyxy=np.array([box_of(item) for item in items], dtype=np.float32).reshape(-1, 4),
        mask=masks,
        confidence=np.array([score_of(item) for item in items], dtype=np.float32),
        class_id=np.array([class_ids[label] for label in labels], dtype=np.int64),
        tracker_id=_track_ids(items),
        data={"class_name": np.array(labels, dtype=np.str_)},
    )


def _track_ids(items: Sequence[Mapping[str, Any]]) -> NDArray[np.int64] | None:
    """Return the ids over frames, -1 for none yet and for what is no int64 (ROS has texts); None without any."""
    if not any("track_id" in item for item in items):
        return None
    numbers = [item.get("track_id") for item in items]
    known = [isinstance(number, int) and abs(number) < 2**63 for number in numbers]
    return np.array([number if fits else -1 for number, fits in zip(numbers, known, strict=True)], dtype=np.int64)
