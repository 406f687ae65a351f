"""Items of a result drawn on an image: shapes first, the largest below, then labels above all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from photonlite.results.drawing.labels import Label, draw_labels, one_line
from photonlite.results.drawing.shapes import PixelBox, draw_box, draw_dot, draw_outline
from photonlite.results.drawing.style import Color, Style, label_colors
from photonlite.results.export import box_of, label_of, segment_rings
from photonlite.results.rings import fill_mask

_GREY: Color = (70, 70, 74)


def draw_items(
    image: Image.Image,
    items: Sequence[Mapping[str, Any]],
    style: Style,
    *,
    labels: bool,
    scores: bool,
    colors: str | Mapping[str, str] | None,
) -> None:
    """Draw items with coordinates in pixels on an RGB image; `colors` is one colour, or colours by label."""
    palette = label_colors(map(label_of, items), colors)
    wanted = []
    for item in sorted(items, key=_area, reverse=True):
        color = palette[label_of(item)]
        top = _draw_item(image, item, color, style)
        texts = _texts(item, scores)
        if texts:
            wanted.append(Label(texts, _label_target(item, image, style), color, beside="x" in item, top=top))
    if not items:
        wanted.append(Label(("nothing found",), (0, 0, *image.size), _GREY))
    if labels:
        # Small items have the fewest positions for a label near them: they choose first.
        draw_labels(image, wanted[::-1], style)


def _draw_item(image: Image.Image, item: Mapping[str, Any], color: Color, style: Style) -> float | None:
    """Draw one item; return the x of an outline's highest point."""
    if "x" in item:
        draw_dot(image, _dot_centre(item, image, style), _dot_radius(style), color, style)
    elif "bbox" in item:
        rings = segment_rings(item, *image.size)
        draw_outline(image, rings, fill_mask(rings, *image.size), color, style)
        return min((point for ring in rings for point in ring), key=lambda point: point[1], default=(None, 0))[0]
    else:
        draw_box(image, box_of(item), color, style)
    return None


def _texts(item: Mapping[str, Any], scores: bool) -> tuple[str, ...]:
    """Texts of the label: the whole one first, then shorter ones."""
    label = one_line(label_of(item))
    score = f"{item['score']:.2f}" if scores and "score" in item else ""
    return tuple(text for text in dict.fromkeys((f"{label} {score}".strip(), label, score)) if text)


def _label_target(item: Mapping[str, Any], image: Image.Image, style: Style) -> PixelBox:
    """What the label is placed at: the visible part of a box or of a segment's box, the whole of a dot."""
    if "x" in item:
        (x, y), reach = _dot_centre(item, image, style), _dot_radius(style) + 3 * style.halo
        return x - reach, y - reach, x + reach, y + reach
    x0, y0, x1, y1 = box_of(item)
    return max(x0, 0), max(y0, 0), min(x1, image.width), min(y1, image.height)


def _area(item: Mapping[str, Any]) -> float:
    x0, y0, x1, y1 = box_of(item)
    return float((x1 - x0) * (y1 - y0))


def _dot_centre(item: Mapping[str, Any], image: Image.Image, style: Style) -> tuple[float, float]:
    """The point, moved inside the image until the whole disc is visible."""
    radius = _dot_radius(style)
    x, y = (min(max(item[key], radius), side - radius) for key, side in zip("xy", image.size, strict=True))
    return x, y


def _dot_radius(style: Style) -> float:
    return 2.0 * style.line + 1
