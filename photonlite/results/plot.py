"""What was found, drawn on an image: shapes first, the largest below, then labels above all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from photonlite.results.convert import box_of, segment_rings
from photonlite.results.labels import Label, draw_labels, one_line
from photonlite.results.rings import fill_mask
from photonlite.results.shapes import Box, draw_box, draw_dot, draw_outline
from photonlite.results.style import Color, Style, label_colors

_NOTHING: Color = (70, 70, 74)


def draw_items(
    image: Image.Image,
    items: Sequence[Mapping[str, Any]],
    style: Style,
    *,
    labels: bool,
    scores: bool,
    colors: str | Mapping[str, str] | None,
) -> None:
    """Draws objects, points and segments with their labels.

    Args:
        image: Drawn upon; mode RGB.
        items: With coordinates in pixels.
        style: Sizes and font.
        labels: Whether to write labels.
        scores: Whether to write the score behind the label.
        colors: One colour for all, or the colours of labels that shall not come from the palette.

    Raises:
        InputError: A colour is unknown or a path is not SVG path data.
    """
    palette = label_colors((str(item.get("label", "")) for item in items), colors)
    wanted = []
    for item in sorted(items, key=_area, reverse=True):
        color = palette[str(item.get("label", ""))]
        top = _draw_item(image, item, color, style)
        texts = _texts(item, scores)
        if texts:
            wanted.append(Label(texts, _place(item, image, style), color, beside="x" in item, top=top))
    if not items:
        wanted.append(Label(("nothing found",), (0, 0, *image.size), _NOTHING))
    if labels:
        # Small things have the fewest places for a label near them: they choose first.
        draw_labels(image, wanted[::-1], style)


def _draw_item(image: Image.Image, item: Mapping[str, Any], color: Color, style: Style) -> float | None:
    """Draws one thing; says where across the image an outline's highest point is."""
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
    """The label's text, whole and shorter."""
    label = one_line(str(item.get("label", "")))
    score = f"{item['score']:.2f}" if scores and "score" in item else ""
    return tuple(text for text in dict.fromkeys((f"{label} {score}".strip(), label, score)) if text)


def _place(item: Mapping[str, Any], image: Image.Image, style: Style) -> Box:
    """Where the label belongs: the visible part of a box, a segment's outline, the whole of a dot."""
    if "x" in item:
        (x, y), reach = _dot_centre(item, image, style), _dot_radius(style) + 3 * style.halo
        return x - reach, y - reach, x + reach, y + reach
    x0, y0, x1, y1 = box_of(item)
    return max(x0, 0), max(y0, 0), min(x1, image.width), min(y1, image.height)


def _area(item: Mapping[str, Any]) -> float:
    x0, y0, x1, y1 = box_of(item)
    return float((x1 - x0) * (y1 - y0))


def _dot_centre(item: Mapping[str, Any], image: Image.Image, style: Style) -> tuple[float, float]:
    """The point, moved so far inside the image that the whole disc can be seen."""
    radius = _dot_radius(style)
    x, y = (min(max(item[key], radius), side - radius) for key, side in zip("xy", image.size, strict=True))
    return x, y


def _dot_radius(style: Style) -> float:
    return 2.0 * style.line + 1
