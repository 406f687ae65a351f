"""A drawing of a frame in characters, two pixels a cell, with marks on what was found."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Final

import numpy as np
from PIL import Image
from rich.color import Color as TerminalColor
from rich.style import Style
from rich.text import Text

from photonlite.results.drawing.style import Color, label_colors

_HALF: Final = "▀"
_SHADE: Final = 0.62  # darkens the image, so that marks stand out
_STEP: Final = 12
_BOLD: Final = Style(bold=True)
Cell = tuple[int, int]


def draw_canvas(image: Image.Image, result: Mapping[str, Any], columns: int, rows: int) -> Text:
    """Draw a frame, with the result of detect, point or segment, in at most so many columns and rows."""
    width, height = _fitted(image.size, columns, rows)
    pixels = np.asarray(image.convert("RGB").resize((width, 2 * height), Image.Resampling.BOX)) * _SHADE
    # Changes of colour are slow in terminals and in rich: few levels make few changes.
    rows_of = (pixels // _STEP * _STEP).astype(np.uint8).reshape(height, 2, width, 3).tolist()
    marks = _marks(result, width, height)
    text = Text(no_wrap=True)
    for y, (upper, lower) in enumerate(rows_of):
        cells = (_styled(marks.get((x, y)), tuple(upper[x]), tuple(lower[x])) for x in range(width))
        for style, run in groupby(cells, key=itemgetter(1)):
            text.append("".join(character for character, _ in run), style)
        text.append("\n" if y < height - 1 else "")
    return text


def items_of(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [item for key in ("objects", "points", "segments") for item in result.get(key, ())]


def _fitted(size: tuple[int, int], columns: int, rows: int) -> tuple[int, int]:
    """Return the columns and rows of an image; a cell is twice as high as wide."""
    scale = min(columns / size[0], 2 * rows / size[1])
    return max(1, round(scale * size[0])), max(1, min(rows, round(scale * size[1] / 2)))


def _marks(result: Mapping[str, Any], width: int, height: int) -> dict[Cell, tuple[str, Color]]:
    """Return the character of each marked cell: labels cover outlines, earlier items cover later ones."""
    items = items_of(result)
    colors = label_colors(str(item.get("label", "")) for item in items)
    marks: dict[Cell, tuple[str, Color]] = {}
    for draw in (_label, _shape):
        for item in items:
            for cell, character in draw(item, width, height):
                red, green, blue = colors[str(item.get("label", ""))]
                # Mixed with white: outlines are thin, on a dark image.
                bright = (red + 255) // 2, (green + 255) // 2, (blue + 255) // 2
                if 0 <= cell[0] < width and 0 <= cell[1] < height:
                    marks.setdefault(cell, (character, bright))
    return marks


def _shape(item: Mapping[str, Any], width: int, height: int) -> Iterator[tuple[Cell, str]]:
    if "x" in item:
        yield _cell(item["x"], item["y"], width, height), "●"
    elif item.get("polygon"):
        points = [(x * width, y * height) for x, y in item["polygon"]]
        for (x0, y0), (x1, y1) in pairwise([*points, points[0]]):
            steps = max(1, round(2 * max(abs(x1 - x0), abs(y1 - y0))))
            for step in range(steps):
                share = step / steps
                yield (int(x0 + share * (x1 - x0)), int(y0 + share * (y1 - y0))), "•"
    else:
        box = item.get("bbox", item)
        left, top = _cell(box["x_min"], box["y_min"], width, height)
        right, bottom = _cell(box["x_max"], box["y_max"], width, height)
        yield from (((left, top), "┏"), ((right, top), "┓"), ((left, bottom), "┗"), ((right, bottom), "┛"))
        for x in range(left + 1, right):
            yield from (((x, top), "━"), ((x, bottom), "━"))
        for y in range(top + 1, bottom):
            yield from (((left, y), "┃"), ((right, y), "┃"))


def _label(item: Mapping[str, Any], width: int, height: int) -> Iterator[tuple[Cell, str]]:
    """Write id and score into the upper side of a box, or beside a point; the title has the label."""
    number = item.get("track_id")
    texts = ["" if number is None else f"#{number}", f"{item['score']:.0%}" if "score" in item else ""]
    text = " ".join(filter(None, texts))
    if "x" in item:
        x, y = _cell(item["x"], item["y"], width, height)
        x = x + 2 if x + 2 + len(text) <= width else x - 1 - len(text)
    else:
        box = item.get("bbox", item)
        x, y = _cell(box["x_min"], box["y_min"], width, height)
        x, y = x + 1, y if "polygon" not in item else y - 1
    for offset, character in enumerate(text):
        yield (x + offset, y), character


def _cell(x: float, y: float, width: int, height: int) -> Cell:
    return min(width - 1, int(x * width)), min(height - 1, int(y * height))


def _styled(mark: tuple[str, Color] | None, upper: Color, lower: Color) -> tuple[str, Style]:
    return (_HALF, _style(upper, lower)) if mark is None else (mark[0], _style(mark[1], lower) + _BOLD)


@lru_cache(maxsize=4096)
def _style(color: Color, background: Color) -> Style:
    return Style(color=TerminalColor.from_rgb(*color), bgcolor=TerminalColor.from_rgb(*background))
