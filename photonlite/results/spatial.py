"""Results with locations: objects, points and segments; several of them as one data set."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, ClassVar, Self, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from photonlite.errors import InputError
from photonlite.images.source import ImageSource
from photonlite.results.base import Metrics, SkillResult
from photonlite.results.drawing.shapes import draw_items
from photonlite.results.drawing.style import Style, open_image
from photonlite.results.export import (
    Item,
    coco_annotations,
    label_of,
    number_labels,
    scale_item,
    segment_masks,
    supervision_detections,
)

_ROWS_SHOWN = 20


class ResultInfo(TypedDict, total=False):
    """Time and tokens of the request, why the list ended, and width and height of the image in pixels."""

    metrics: Metrics | None
    finish_reason: str | None
    picture_size: tuple[int, int] | None


class _Spatial(SkillResult):
    """A result whose value is a list of items with locations in the image."""

    _key: ClassVar[str]
    _noun: ClassVar[str]

    #: (width, height) of the image whose pixels the coordinates are in; None: normalised to [0, 1].
    pixel_size: tuple[int, int] | None = None

    def __init__(
        self,
        items: list[Item],
        *,
        metrics: Metrics | None = None,
        finish_reason: str | None = None,
        picture_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__({self._key: items}, metrics, finish_reason)
        #: (width, height) of the upright image of the request; None where it is not known.
        self.picture_size = picture_size

    def plot(
        self,
        image: ImageSource,
        *,
        labels: bool = True,
        scores: bool = True,
        line_width: int | None = None,
        font_size: int | None = None,
        font: str | PathLike[str] | None = None,
        colors: str | Mapping[str, str] | None = None,
    ) -> Image.Image:
        """Draw the items on a copy of the image.

        Labels are moved to stay inside the image and off each other. Where there is too little room they are
        shortened, and then left out. A result without items gets the label "nothing found".

        Args:
            image: A PIL image, an array, a path, bytes or a file object; it stays as it is.
            labels: Whether to write labels.
            scores: Whether to write the score behind the label.
            line_width: In pixels; follows the image's size by default.
            font_size: In pixels; follows the image's size by default.
            font: A font file, for scripts that Pillow's own font lacks.
            colors: One colour for everything, or the colours of labels, as Pillow names colours; labels not named get
                one from the palette.

        Returns:
            A new RGB image of the same size, upright.

        Raises:
            ImageError: The image cannot be opened.
            InputError: A colour or the font cannot be read, or a segment's path is not SVG path data.
        """
        canvas = open_image(image)
        items = self._items_in(*canvas.size)
        style = Style.of(canvas.size, count=len(items), line_width=line_width, font_size=font_size, font=font)
        draw_items(canvas, items, style, labels=labels, scores=scores, colors=colors)
        return canvas

    def to_pixels(self, width: int, height: int) -> Self:
        """The same result with coordinates in pixels (floats, not rounded); a segment's path stays box-relative.

        Args:
            width: Of the image, in pixels.
            height: Of the image, in pixels.

        Raises:
            InputError: A side is not positive.
        """
        result = self.copy()
        result[self._key] = self._items_in(width, height)
        result.pixel_size = (width, height)
        return result

    def to_coco(
        self,
        width: int | None = None,
        height: int | None = None,
        *,
        image_id: int | str = 1,
        category_ids: Mapping[str, int] | None = None,
        first_id: int = 1,
    ) -> list[dict[str, Any]]:
        """COCO annotations, in pixels: boxes as x, y, width, height; segments as polygons; points as one keypoint.

        `photonlite.to_coco` joins several results and gives their annotations unique ids.

        Args:
            width: Of the image, in pixels; that of the request's image by default.
            height: Of the image, in pixels; that of the request's image by default.
            image_id: Goes into every annotation.
            category_ids: The id of each label; without it labels are numbered from 1 as they come.
            first_id: The id of the first annotation; the others count on from it.

        Returns:
            One dict per item, with its score.

        Raises:
            InputError: A label has no category id, a side is not positive, or the image's size is not known.
        """
        width, height = self.size(width, height)
        return coco_annotations(self._items_in(width, height), width, height, image_id, category_ids, first_id)

    def to_supervision(
        self, width: int | None = None, height: int | None = None, *, class_ids: Mapping[str, int] | None = None
    ) -> Any:
        """`supervision.Detections` in pixels, for that package's annotators, trackers and counters.

        Labels are in `data["class_name"]`. Points become boxes of no size; segments carry masks.
        `photonlite.to_supervision` converts several results with common class ids.

        Args:
            width: Of the image, in pixels; that of the request's image by default.
            height: Of the image, in pixels; that of the request's image by default.
            class_ids: The id of each label; without it labels are numbered from 0 as they come.

        Raises:
            MissingDependencyError: The package `supervision` is not installed.
            InputError: A label has no class id, a side is not positive, or the image's size is not known.
        """
        width, height = self.size(width, height)
        return supervision_detections(self._items_in(width, height), self._masks(width, height), class_ids)

    @property
    def labels(self) -> list[str]:
        """The label of each item, in order; empty texts for those without one."""
        return [label_of(item) for item in self._items]

    def size(self, width: int | None = None, height: int | None = None) -> tuple[int, int]:
        """Return width and height in pixels: those given, else those of the coordinates, else the image's own.

        Raises:
            InputError: One side was given without the other, or the image's size is not known.
        """
        if width is not None and height is not None:
            return width, height
        known = self.pixel_size or self.picture_size
        if known is None or width is not None or height is not None:
            raise InputError("The image's size is not known. Give both its width and its height, in pixels.")
        return known

    @property
    def _items(self) -> list[Item]:
        items: list[Item] = self[self._key]
        return items

    def _items_in(self, width: int, height: int) -> list[Item]:
        if not (width > 0 and height > 0):
            raise InputError(f"An image of {width} x {height} pixels has no area. Give its width and height in pixels.")
        own_width, own_height = self.pixel_size or (1, 1)
        return [scale_item(item, width / own_width, height / own_height) for item in self._items]

    def _masks(self, width: int, height: int) -> NDArray[np.bool_] | None:
        return None

    def __repr__(self) -> str:
        count = len(self._items)
        unit = "in pixels of {} x {}".format(*self.pixel_size) if self.pixel_size else ""
        noun = self._noun if count == 1 else f"{self._noun}s"
        lines = [f"{type(self).__name__}: {count} {noun} {unit}".rstrip() + self._suffix()]
        labels = self.labels[:_ROWS_SHOWN]
        widest = min(max(map(len, labels), default=0), 40)
        for label, item in zip(labels, self._items, strict=False):
            score = f"{item['score']:.2f}" if "score" in item else ""
            lines.append(f"  {label:{widest}}  {score:4}  {self._location(item)}".rstrip())
        if count > _ROWS_SHOWN:
            lines.append(f"  ... and {count - _ROWS_SHOWN} more")
        return "\n".join(lines)

    def _location(self, item: Item) -> str:
        box = item.get("bbox", item)
        return f"{self._xy(box['x_min'], box['y_min'])} to {self._xy(box['x_max'], box['y_max'])}"

    def _xy(self, x: float, y: float) -> str:
        return f"({x:.1f}, {y:.1f})" if self.pixel_size else f"({x:.3f}, {y:.3f})"


class Detections(_Spatial):
    """Boxes: `{"objects": [{"x_min", "y_min", "x_max", "y_max", "label", "score"}, ...]}`, normalised to [0, 1].

    Args:
        objects: The boxes; label and score may be missing.
        info: See `ResultInfo`.
    """

    _key = "objects"
    _noun = "object"

    def __init__(self, objects: list[Item], **info: Unpack[ResultInfo]) -> None:
        super().__init__(objects, **info)


class Points(_Spatial):
    """Points: `{"points": [{"x", "y", "label", "score"}, ...]}`, normalised to [0, 1].

    Args:
        points: The points; label and score may be missing.
        info: See `ResultInfo`.
    """

    _key = "points"
    _noun = "point"

    def __init__(self, points: list[Item], **info: Unpack[ResultInfo]) -> None:
        super().__init__(points, **info)

    def _location(self, item: Item) -> str:
        return self._xy(item["x"], item["y"])


class Segments(_Spatial):
    """Outlines: `{"segments": [{"path", "bbox": {...}, "polygon": [[x, y], ...], "label", "score"}, ...]}`.

    `path` is SVG path data relative to `bbox`; `bbox` and `polygon` are normalised to [0, 1].

    Args:
        segments: The outlines; label and score may be missing, and either the path or the polygon.
        info: See `ResultInfo`.
    """

    _key = "segments"
    _noun = "segment"

    def __init__(self, segments: list[Item], **info: Unpack[ResultInfo]) -> None:
        super().__init__(segments, **info)

    def mask(self, width: int, height: int) -> NDArray[np.bool_]:
        """The pixels of each segment: those whose centres its path encloses (its polygon, where it has no path).

        Args:
            width: Of the image, in pixels.
            height: Of the image, in pixels.

        Returns:
            bool [n, height, width].

        Raises:
            InputError: A side is not positive, or a path is not SVG path data.
        """
        return segment_masks(self._items_in(width, height), width, height)

    def _masks(self, width: int, height: int) -> NDArray[np.bool_]:
        return self.mask(width, height)


SpatialResult: TypeAlias = Detections | Points | Segments


def to_coco(
    results: Iterable[SpatialResult | Exception],
    *,
    file_names: Sequence[str | PathLike[str]] | None = None,
    category_ids: Mapping[str, int] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Return results as one COCO data set (https://cocodataset.org/#format-data), in pixels.

    Image ids count from 1 in the order of the results, annotation ids from 1 over all of them.

    Args:
        results: Of `detect`, `point` or `segment`, in any mixture; an error that `batch` left in a result's place has
            an image id and no image.
        file_names: Of the images, in the same order.
        category_ids: The id of each label; without it labels are numbered from 1 as they come.

    Returns:
        `{"images": [...], "annotations": [...], "categories": [...]}`.

    Raises:
        InputError: Something else is among the results, the number of file names differs, a label has no category id,
            or the size of an image is not known.
    """
    checked = _check_results(results)
    if file_names is not None and len(file_names) != len(checked):
        raise InputError(
            f"There are {len(checked)} results and {len(file_names)} file names. Give one for each result."
        )
    categories = dict(category_ids) if category_ids is not None else _number_classes(checked, first=1)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index, result in enumerate(checked):
        if isinstance(result, Exception):
            continue
        width, height = result.size()
        file_name = {} if file_names is None else {"file_name": fspath(file_names[index])}
        images.append({"id": index + 1, "width": width, "height": height, **file_name})
        annotations += result.to_coco(image_id=index + 1, category_ids=categories, first_id=len(annotations) + 1)
    return {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": number, "name": label} for label, number in categories.items()],
    }


def to_supervision(
    results: Iterable[SpatialResult | Exception], *, class_ids: Mapping[str, int] | None = None
) -> list[Any]:
    """Return one `supervision.Detections` for each result, in pixels, with the same class id for a label everywhere.

    Args:
        results: As for `to_coco`; an error gives None.
        class_ids: The id of each label; without it labels are numbered from 0 as they come.

    Raises:
        MissingDependencyError: The package `supervision` is not installed.
        InputError: Something else is among the results, a label has no class id, or the size of an image is not known.
    """
    checked = _check_results(results)
    classes = dict(class_ids) if class_ids is not None else _number_classes(checked, first=0)
    return [None if isinstance(result, Exception) else result.to_supervision(class_ids=classes) for result in checked]


def _check_results(results: Iterable[SpatialResult | Exception]) -> list[SpatialResult | Exception]:
    if isinstance(results, Mapping):
        raise InputError("One result was given. Give a list of results, or call the method of the same name on it.")
    checked = list(results)
    for index, result in enumerate(checked):
        if not isinstance(result, Detections | Points | Segments | Exception):
            raise InputError(
                f"Result {index} is of type {type(result).__name__}. Give results of detect, point or segment."
            )
    return checked


def _number_classes(results: Iterable[SpatialResult | Exception], *, first: int) -> dict[str, int]:
    labels = [label for result in results if not isinstance(result, Exception) for label in result.labels]
    return number_labels(labels, None, "", first=first)
