"""The results with locations: objects, points and segments."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from photonlite.results.export import segment_masks
from photonlite.results.items import BoxItem, PointItem, SegmentItem
from photonlite.results.spatial import ResultInfo, SpatialBase


class Detections(SpatialBase[BoxItem]):
    """Boxes: `{"objects": [{"x_min", "y_min", "x_max", "y_max", "label", "score"}, ...]}`, normalised to [0, 1].

    Args:
        objects: The boxes; label and score may be missing.
        info: See `ResultInfo`.
    """

    _key = "objects"
    _kind = BoxItem
    _noun = "object"

    def __init__(self, objects: Iterable[Mapping[str, Any]], **info: Unpack[ResultInfo]) -> None:
        super().__init__(objects, **info)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: Literal["objects"], /) -> list[BoxItem]: ...
        @overload
        def __getitem__(self, key: str, /) -> Any: ...
        def __getitem__(self, key: str, /) -> Any: ...

    @property
    def objects(self) -> list[BoxItem]:
        """The boxes: the list under the key "objects"."""
        return self._items

    @property
    def boxes(self) -> NDArray[np.float64]:
        """x_min, y_min, x_max and y_max of each box: float64 [n, 4]."""
        return self._boxes()


class Points(SpatialBase[PointItem]):
    """Points: `{"points": [{"x", "y", "label", "score"}, ...]}`, normalised to [0, 1].

    Args:
        points: The points; label and score may be missing.
        info: See `ResultInfo`.
    """

    _key = "points"
    _kind = PointItem
    _noun = "point"

    def __init__(self, points: Iterable[Mapping[str, Any]], **info: Unpack[ResultInfo]) -> None:
        super().__init__(points, **info)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: Literal["points"], /) -> list[PointItem]: ...
        @overload
        def __getitem__(self, key: str, /) -> Any: ...
        def __getitem__(self, key: str, /) -> Any: ...

    @property
    def points(self) -> list[PointItem]:
        """The points: the list under the key "points"."""
        return self._items

    @property
    def xy(self) -> NDArray[np.float64]:
        """X and y of each point: float64 [n, 2]."""
        return self._boxes()[:, :2]

    def _location(self, item: PointItem) -> str:
        return self._xy(item["x"], item["y"])


class Segments(SpatialBase[SegmentItem]):
    """Outlines: `{"segments": [{"path", "bbox": {...}, "polygon": [[x, y], ...], "label", "score"}, ...]}`.

    `path` is SVG path data relative to `bbox`; `bbox` and `polygon` are normalised to [0, 1].

    Args:
        segments: The outlines; label and score may be missing, and either the path or the polygon.
        info: See `ResultInfo`.
    """

    _key = "segments"
    _kind = SegmentItem
    _noun = "segment"

    def __init__(self, segments: Iterable[Mapping[str, Any]], **info: Unpack[ResultInfo]) -> None:
        super().__init__(segments, **info)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: Literal["segments"], /) -> list[SegmentItem]: ...
        @overload
        def __getitem__(self, key: str, /) -> Any: ...
        def __getitem__(self, key: str, /) -> Any: ...

    @property
    def segments(self) -> list[SegmentItem]:
        """The outlines: the list under the key "segments"."""
        return self._items

    @property
    def boxes(self) -> NDArray[np.float64]:
        """x_min, y_min, x_max and y_max of each segment's box: float64 [n, 4]."""
        return self._boxes()

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
