"""What results with locations share: drawing, units, filters, sums, exports, arrays."""

import io
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, Generic, Self, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from photonlite.errors import InputError
from photonlite.images.source import ImageSource
from photonlite.results.base import Metrics, SkillResult
from photonlite.results.drawing.shapes import draw_items
from photonlite.results.drawing.style import Style, label_colors, open_image
from photonlite.results.export import (
    box_of,
    coco_annotations,
    label_of,
    number_labels,
    scale_item,
    score_of,
    supervision_detections,
)
from photonlite.results.items import Item

Kind = TypeVar("Kind", bound=Item)
_ROWS_SHOWN = 20
# Pixels of the longer side of a picture in a notebook.
_LEAST_SHOWN = 320


class ResultInfo(TypedDict, total=False):
    """Time and tokens of the request, why the list ended, the image's width and height in pixels, the names asked for.

    The place of a name among `names` is its class id.
    """

    metrics: Metrics | None
    finish_reason: str | None
    picture_size: tuple[int, int] | None
    names: Sequence[str]


class SpatialBase(SkillResult, Generic[Kind]):
    """A result whose value is a list of items with locations in the image."""

    _key: ClassVar[str]
    _noun: ClassVar[str]
    _kind: type[Kind]

    #: The request's image as a small JPEG, where the model keeps `thumbnails`: a notebook shows the result on it.
    thumbnail: bytes | None = None

    #: (width, height) of the image whose pixels the coordinates are in; None: normalised to [0, 1].
    pixel_size: tuple[int, int] | None = None

    def __init__(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        metrics: Metrics | None = None,
        finish_reason: str | None = None,
        picture_size: tuple[int, int] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        super().__init__({self._key: list(items)}, metrics, finish_reason)
        #: (width, height) of the upright image of the request; None where it is not known.
        self.picture_size = picture_size
        #: The names asked for, also those without finds: the place of a name is its class id.
        self.names = tuple(names)
        _ = self._items

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
        # By the names asked for: a name has one colour in all frames of a video.
        draw_items(canvas, items, style, label_colors(self.classes(), colors), labels=labels, scores=scores)
        return canvas

    def to_pixels(self, width: int, height: int) -> Self:
        """The same result with coordinates in pixels (floats, not rounded); a segment's path stays box-relative.

        Args:
            width: Of the image, in pixels.
            height: Of the image, in pixels.

        Raises:
            InputError: A side is not positive.
        """
        result = self._with(self._items_in(width, height))
        result.pixel_size = (width, height)
        return result

    def filter(
        self, *, min_score: float | None = None, labels: str | Iterable[str] | None = None, max: int | None = None
    ) -> Self:
        """The same result with the items that meet all conditions, in their order.

        Args:
            min_score: The lowest score; items without a score count as certain.
            labels: One label or several.
            max: How many items, those with the highest scores.

        Raises:
            InputError: `min_score` is not a number from 0 to 1, or `max` is not a whole number of at least 0.
        """
        if min_score is not None and not (isinstance(min_score, Real) and 0 <= min_score <= 1):
            raise InputError(f"min_score is {min_score!r:.60}: give a number from 0 to 1")
        if max is not None and not (isinstance(max, Integral) and max >= 0):
            raise InputError(f"max is {max!r:.60}: give a whole number of at least 0")
        wanted = {labels} if isinstance(labels, str) else None if labels is None else set(labels)
        items = [
            item
            for item in self._items
            if (min_score is None or score_of(item) >= min_score) and (wanted is None or label_of(item) in wanted)
        ]
        if max is not None:
            best = sorted(range(len(items)), key=lambda index: -score_of(items[index]))[:max]
            items = [items[index] for index in sorted(best)]
        return self._with(items)

    def __add__(self, other: Self) -> Self:
        """Items of both results of one image, those of `other` behind; names that both asked for are one class.

        Coordinates are in the units of the first result.

        Raises:
            InputError: The results are about images of different sizes.
        """
        if type(other) is not type(self):
            return NotImplemented
        if self.picture_size and other.picture_size and self.picture_size != other.picture_size:
            raise InputError(
                f"These results are about images of {self.picture_size} and {other.picture_size} pixels. Add results "
                "of one image; photonlite.to_coco takes a list of results of several."
            )
        names = tuple(dict.fromkeys((*self.names, *other.names)))
        items = [*map(self._kind, self._items), *other._items_in(*(self.pixel_size or (1, 1)))]
        for item in items:
            if "class_id" in item and item.label in names:
                item.class_id = names.index(item.label)
        result = self._with(items)
        result.names = names
        result.picture_size = self.picture_size or other.picture_size
        result.metrics = self.metrics + other.metrics if self.metrics and other.metrics else None
        if result.finish_reason == "stop":
            result.finish_reason = other.finish_reason
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
            category_ids: The id of each label; without it the names asked for, and then other labels, count from 1.
            first_id: The id of the first annotation; the others count on from it.

        Returns:
            One dict per item, with its score.

        Raises:
            InputError: A label has no category id, a side is not positive, or the image's size is not known.
        """
        width, height = self.size(width, height)
        categories = self.classes(category_ids, name="category_ids", first=1)
        return coco_annotations(self._items_in(width, height), width, height, image_id, categories, first_id)

    def to_supervision(
        self, width: int | None = None, height: int | None = None, *, class_ids: Mapping[str, int] | None = None
    ) -> Any:
        """`supervision.Detections` in pixels, for that package's annotators, trackers and counters.

        Labels are in `data["class_name"]`. Points become boxes of no size; segments carry masks.
        `photonlite.to_supervision` converts several results with common class ids.

        Args:
            width: Of the image, in pixels; that of the request's image by default.
            height: Of the image, in pixels; that of the request's image by default.
            class_ids: The id of each label; without it the names asked for, and then other labels, count from 0.

        Raises:
            MissingDependencyError: The package `supervision` is not installed.
            InputError: A label has no class id, a side is not positive, or the image's size is not known.
        """
        width, height = self.size(width, height)
        items = self._items_in(width, height)
        return supervision_detections(items, self._masks(width, height), self.classes(class_ids))

    @property
    def labels(self) -> list[str]:
        """The label of each item, in order; empty texts for those without one."""
        return [label_of(item) for item in self._items]

    @property
    def scores(self) -> NDArray[np.float64]:
        """The score of each item, 1 where there is none: float64 [n]."""
        return np.array([score_of(item) for item in self._items], dtype=np.float64)

    @property
    def class_ids(self) -> NDArray[np.int64]:
        """The place of each item's label among `names`, or behind them: int64 [n]."""
        classes = self.classes()
        return np.array([classes[label] for label in self.labels], dtype=np.int64)

    def classes(
        self, given: Mapping[str, int] | None = None, *, name: str = "class_ids", first: int = 0
    ) -> dict[str, int]:
        """Return the id of each name and label: as `given` by the argument `name`, or counted from `first`."""
        return number_labels([*self.names, *self.labels] if given is None else self.labels, given, name, first=first)

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
    def _items(self) -> list[Kind]:
        """The list itself, whose entries have attributes: plain dictionaries in it are replaced."""
        items: list[Kind] = self[self._key]
        if not all(isinstance(item, self._kind) for item in items):
            items[:] = [item if isinstance(item, self._kind) else self._kind(item) for item in items]
        return items

    def _with(self, items: list[Kind]) -> Self:
        """Return a copy with other items."""
        result = self.copy()
        result[self._key] = items
        return result

    def _boxes(self) -> NDArray[np.float64]:
        return np.array([box_of(item) for item in self._items], dtype=np.float64).reshape(-1, 4)

    def _items_in(self, width: int, height: int) -> list[Kind]:
        if not (width > 0 and height > 0):
            raise InputError(f"An image of {width} x {height} pixels has no area. Give its width and height in pixels.")
        own_width, own_height = self.pixel_size or (1, 1)
        return [self._kind(scale_item(item, width / own_width, height / own_height)) for item in self._items]

    def _masks(self, width: int, height: int) -> NDArray[np.bool_] | None:
        return None

    def _repr_png_(self) -> bytes | None:
        """The result drawn on its thumbnail, for notebooks; without one they show the text."""
        if self.thumbnail is None:
            return None
        canvas = open_image(self.thumbnail)
        if (scale := _LEAST_SHOWN / max(canvas.size)) > 1:  # labels would cover a smaller one
            canvas = canvas.resize((max(1, round(canvas.width * scale)), max(1, round(canvas.height * scale))))
        file = io.BytesIO()
        self.plot(canvas).save(file, "PNG")
        return file.getvalue()

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

    def _location(self, item: Kind) -> str:
        box = item.get("bbox", item)
        return f"{self._xy(box['x_min'], box['y_min'])} to {self._xy(box['x_max'], box['y_max'])}"

    def _xy(self, x: float, y: float) -> str:
        return f"({x:.1f}, {y:.1f})" if self.pixel_size else f"({x:.3f}, {y:.3f})"
