"""Ids that objects keep from frame to frame."""

import importlib
import math
from typing import Any, Final, TypeVar

import numpy as np

from photonlite.errors import InputError, MissingDependencyError, SettingsError
from photonlite.results.export import box_of, label_of, score_of
from photonlite.results.spatial import SpatialBase

Result = TypeVar("Result", bound=SpatialBase[Any])

_SIDE: Final = 1000.0  # the longer side of the image in the tracker's units
_APART: Final = 10 * _SIDE  # between the boxes of different labels, which then never overlap
_LEAST_OVERLAP: Final = 1e-6  # at 0 boxes that do not overlap at all, of any labels, would match
_MOST_OVERLAP: Final = 0.999  # at 1 no box that moves would match
_POINT: Final = 50.0  # half the side of the square that stands for a point


def require_trackers() -> Any:
    """Import the package trackers, which is optional; raises `MissingDependencyError`."""
    try:
        return importlib.import_module("trackers")
    except ImportError as error:
        raise MissingDependencyError(
            f"ids over frames need the package trackers: pip install 'photonlite[track]' ({error})"
        ) from error


class Tracker:
    """Gives the objects of one video ids that they keep from frame to frame.

    ```python
    tracker = photonlite.Tracker()
    for frame in frames:
        found = tracker.update(model.detect(frame, "ball"))
        print([item.track_id for item in found.objects])
    ```

    Boxes are matched by overlap with where their motion leads them (ByteTrack, Y. Zhang et al. 2022, from the package
    trackers), within a label; segments by their box, points as squares of a tenth of the image's longer side. Ids count
    from 1. An object has one from the second of two frames in a row that show it; before that its id is None.

    Args:
        rate: Updates per second, for videos whose frames are handed in without their times.
        keep_s: Seconds for which an object that is not seen keeps its id.
        min_score: Objects below it get no new id, and keep one only where no better object claims it.
        min_overlap: Intersection over union, from 0 to 0.999, that boxes of one object have at least; at 0, any.

    Raises:
        MissingDependencyError: The package trackers is not installed.
        SettingsError: A number is out of range.
    """

    def __init__(
        self, *, rate: float = 30.0, keep_s: float = 1.0, min_score: float = 0.3, min_overlap: float = 0.1
    ) -> None:
        for name, value, least, most in (
            ("rate", rate, 1e-3, 1e6),
            ("keep_s", keep_s, 0, 1e6),
            ("min_score", min_score, 0, 1),
            ("min_overlap", min_overlap, 0, _MOST_OVERLAP),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise SettingsError(f"{name} is {value!r:.60}: give a number from {least:g} to {most:g}")
        self._tracker = require_trackers().ByteTrackTracker(
            frame_rate=float(rate),
            lost_track_buffer=round(30 * keep_s),  # the package counts frames of a thirtieth of a second
            track_activation_threshold=min_score,
            high_conf_det_threshold=min_score,
            minimum_iou_threshold=max(min_overlap, _LEAST_OVERLAP),
        )
        self._detections = importlib.import_module("supervision").Detections
        self._labels: dict[str, int] = {}
        self._time_s = -math.inf

    def update(self, result: Result, time_s: float | None = None) -> Result:
        """Return the result of the next frame with a `track_id` in every item; the result handed in stays as it is.

        Args:
            result: Of `detect`, `point` or `segment`. A frame that shows nothing is handed in as well.
            time_s: When the frame was taken, where frames are missing or come at a varying rate.

        Raises:
            InputError: It is another result, or the time is not after that of the frame before.
        """
        if not isinstance(result, SpatialBase):
            raise InputError(f"a {type(result).__name__} cannot be tracked: give results of detect, point or segment")
        if time_s is not None:
            if not (math.isfinite(time_s) and time_s > self._time_s):
                raise InputError(f"time_s is {time_s}: give times that grow from frame to frame")
            self._time_s = time_s
        tracked = self._tracker.update(self._boxes(result), timestamp=time_s)
        ids: list[int | None] = [None] * len(result._items)
        if len(tracked):
            for place, number in zip(tracked.data["place"], tracked.tracker_id, strict=True):
                ids[place] = None if number < 0 else int(number) + 1
        items = [type(item)(item, track_id=number) for item, number in zip(result._items, ids, strict=True)]
        return result._with(items)

    def _boxes(self, result: SpatialBase[Any]) -> Any:
        width, height = result.picture_size or result.pixel_size or (1, 1)
        scale = _SIDE / max(width, height)
        items = result._items_in(1, 1)
        boxes = np.array([box_of(item) for item in items], dtype=np.float64).reshape(-1, 4)
        boxes *= np.array([width, height, width, height]) * scale
        if any("x" in item for item in items):
            boxes += [-_POINT, -_POINT, _POINT, _POINT]
        places = [self._labels.setdefault(label_of(item), len(self._labels)) for item in items]
        boxes += _APART * np.array(places, dtype=np.float64).reshape(-1, 1)
        scores = np.array([score_of(item) for item in items], dtype=np.float64)
        return self._detections(xyxy=boxes, confidence=scores, data={"place": np.arange(len(items))})
