"""Entries of results: dictionaries whose keys are attributes as well, typed for each skill."""

from typing import TYPE_CHECKING, Any, Self


class Item(dict[str, Any]):
    """A dictionary of plain values; `item.label` reads and sets `item["label"]`.

    Attributes:
        label: What was asked for; may be missing.
        score: Confidence in presence and location, in (0, 1]; may be missing.
        class_id: The place of the label among the names of a list that was asked for; only of such results.
        track_id: Which object of a video it is, None while that is open; missing without a `Tracker`.
    """

    __slots__ = ()

    label: str
    score: float
    class_id: int
    track_id: int | None

    if not TYPE_CHECKING:  # type checkers take the annotations, so that they find misspelt names

        def __getattr__(self, name: str) -> Any:
            try:
                return self[name]
            except KeyError:
                raise AttributeError(f"this {type(self).__name__} has no {name!r}: it has {', '.join(self)}") from None

        def __setattr__(self, name: str, value: Any) -> None:
            self[name] = value

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def copy(self) -> Self:
        """A shallow copy of the same type."""
        return type(self)(self)


class BoxItem(Item):
    """A box: an entry of `Detections`, or the `bbox` of a segment, which has neither label nor score."""

    __slots__ = ()

    x_min: float
    y_min: float
    x_max: float
    y_max: float


class PointItem(Item):
    """A point: an entry of `Points`."""

    __slots__ = ()

    x: float
    y: float


class SegmentItem(Item):
    """An outline: an entry of `Segments`.

    Attributes:
        path: SVG path data relative to `bbox`.
        bbox: The box around the outline.
        polygon: Corners x, y of the outline.
    """

    __slots__ = ()

    path: str
    bbox: BoxItem
    polygon: list[list[float]]

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        if isinstance(box := self.get("bbox"), dict) and not isinstance(box, BoxItem):
            self["bbox"] = BoxItem(box)
