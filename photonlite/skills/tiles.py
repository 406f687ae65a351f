"""Tiles: an image cut into overlapping parts, so that small objects are seen larger.

```
|<------ tile 0 ------>|
                  |<------ tile 1 ------>|
|  core of tile 0   |   core of tile 1   |    cores meet in the middle of an overlap, and cover the image
```

Tiles of one axis are equally long, begin and end at the image's edges, and share at least `OVERLAP` of their length
with the next: an object up to that long is whole in one of them.
"""

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from photonlite.errors import SettingsError, TileError
from photonlite.results.export import scale_item
from photonlite.settings import plain

Tile: TypeAlias = Literal["auto"] | tuple[int, int] | int
"""How to cut an image: rows and columns, the side of a tile in pixels, or "auto"."""

OVERLAP: Final = 0.25
MAX_TILES: Final = 64
MOST_AUTO: Final = 4
"""Tiles along a side at most, where the number was left to "auto"."""

_TEXT: Final = re.compile("[0-9]{1,9}(x[0-9]{1,9})?")
_FORMS: Final = "give 'auto', (rows, columns) or the side of a tile in pixels"


class Region(NamedTuple):
    """A part of an image, in pixels: x_min, y_min, x_max, y_max; and of that the core, which no other tile has."""

    box: tuple[int, int, int, int]
    core: tuple[float, float, float, float]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        left, top, right, bottom = self.box
        return right - left, bottom - top


def check_tile(given: object) -> Tile | None:
    """Return how to cut images, checked; None for not at all. Raises a SettingsError.

    A command or a form gives "2x3" for (2, 3), and "640" for 640.
    """
    if isinstance(given, str) and _TEXT.fullmatch(given):
        counts = tuple(map(int, given.split("x")))
        value: object = counts if len(counts) == 2 else counts[0]
    else:
        value = plain(tuple(given) if isinstance(given, list) else given)
    if value is None or value == "auto":
        return cast(Tile | None, value)
    if isinstance(value, tuple) and len(value) == 2 and all(map(_is_count, value)):
        if (count := value[0] * value[1]) > MAX_TILES:
            raise SettingsError(f"tile={value!r:.60} makes {count} tiles, over the limit of {MAX_TILES}: give fewer")
        return cast(Tile, value)
    if _is_count(value):
        return cast(Tile, value)
    raise SettingsError(f"tile is {given!r:.60}: {_FORMS}, as whole numbers above 0")


def cut_tiles(size: tuple[int, int], tile: Tile, sight: int) -> list[Region]:
    """Return the tiles of an image row by row; none where one tile would be the whole image.

    Args:
        size: Width and height of the image, in pixels.
        tile: How to cut it.
        sight: Pixels along a side of an image that the model reads without shrinking it, for "auto".

    Raises:
        TileError: Tiles are larger than the image, smaller than a pixel, or more than 64.
    """
    width, height = size
    if tile == "auto":
        columns, rows = (min(MOST_AUTO, math.ceil(side / sight)) for side in size)
        if rows == columns == 1:
            columns, rows = (2 if side == max(size) else 1 for side in size)
    elif isinstance(tile, tuple):
        rows, columns = tile
    else:
        if tile > max(size):
            raise TileError(f"a tile of {tile} pixels is larger than the image of {width} x {height}: give less")
        columns, rows = (_count(side, min(tile, side)) for side in size)
    if rows > height or columns > width:
        raise TileError(f"an image of {width} x {height} pixels has no {rows} x {columns} tiles: make them larger")
    if rows * columns > MAX_TILES:
        raise TileError(
            f"tile={tile!r} cuts an image of {width} x {height} pixels into {rows * columns} tiles, over the limit of "
            f"{MAX_TILES}: make them larger"
        )
    if rows * columns == 1:
        return []
    given = tile if isinstance(tile, int) else None
    across, down = _spans(width, columns, given), _spans(height, rows, given)
    return [
        Region((x.start, y.start, x.end, y.end), (x.core_start, y.core_start, x.core_end, y.core_end))
        for y in down
        for x in across
    ]


def to_image(item: Mapping[str, Any], region: Region, size: tuple[int, int]) -> dict[str, Any]:
    """Return an item of a tile with coordinates of the image; both are normalised to [0, 1]."""
    x0, y0, x1, y1 = region.box
    width, height = size
    scaled = scale_item(item, (x1 - x0) / width, (y1 - y0) / height)
    return _shift(scaled, x0 / width, y0 / height)


def _shift(item: dict[str, Any], x: float, y: float) -> dict[str, Any]:
    shifted = dict(item)
    shifted |= {key: min(1.0, item[key] + x) for key in ("x", "x_min", "x_max") if key in item}
    shifted |= {key: min(1.0, item[key] + y) for key in ("y", "y_min", "y_max") if key in item}
    if "bbox" in item:
        shifted["bbox"] = _shift(item["bbox"], x, y)
    if "polygon" in item:
        shifted["polygon"] = [[at_x + x, at_y + y] for at_x, at_y in item["polygon"]]
    return shifted


class _Span(NamedTuple):
    """A tile along one axis."""

    start: int
    end: int
    core_start: float
    core_end: float


def _spans(side: int, count: int, given: int | None) -> list[_Span]:
    length = min(side, given or math.ceil(side / (count - OVERLAP * (count - 1))))
    starts = [round(index * (side - length) / max(1, count - 1)) for index in range(count)]
    seams = [0.0, *((start + length + after) / 2 for start, after in pairwise(starts)), float(side)]
    return [_Span(start, start + length, *seams[index : index + 2]) for index, start in enumerate(starts)]


def _count(side: int, length: int) -> int:
    """Return how many tiles of a length cover a side with the overlap."""
    return max(1, math.ceil((side - OVERLAP * length) / ((1 - OVERLAP) * length)))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
