"""Items of a result on an image: boxes, outlines and dots, in coloured lines with a dark side and a white side.

Whatever the background, one of the three stands out against it. Lines that are not upright are drawn several times
too large and scaled down, because Pillow's own lines are not smooth.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw

from photonlite.results.drawing.labels import Label, draw_labels, one_line
from photonlite.results.drawing.style import BLACK, WHITE, Color, PixelBox, Style
from photonlite.results.export import box_of, label_of, segment_rings
from photonlite.results.rings import XY, Ring, fill_mask

_DARK_OPACITY = 0.6
_FILL_OPACITY = 0.38
# Bytes of the enlarged drawing of one shape; larger shapes are smoothed less.
_MAX_DRAWING = 64 * 2**20

_GREY: Color = (70, 70, 74)


def draw_items(
    image: Image.Image,
    items: Sequence[Mapping[str, Any]],
    style: Style,
    colors: Mapping[str, Color],
    *,
    labels: bool,
    scores: bool,
) -> None:
    """Draw items with coordinates in pixels: shapes first, the largest below, then labels above all of them."""
    wanted = []
    for item in sorted(items, key=_area, reverse=True):
        color = colors[label_of(item)]
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
    number = item.get("track_id")
    label = one_line(label_of(item) if number is None else f"{label_of(item)} #{number}".strip())
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


def draw_box(image: Image.Image, box: PixelBox, color: Color, style: Style) -> None:
    """Draw a rectangle whose line is centred on the box; at the image's border the line moves inside."""
    left, top, right, bottom = (round(side) for side in _clamp(box, image.size, style.line))
    # The larger half of an odd line lies inside the box.
    outside = style.line // 2
    inside = outside - style.line
    if style.halo:
        _frame(image, (left, top, right, bottom), outside + style.halo, outside, BLACK, _DARK_OPACITY)
        _frame(image, (left, top, right, bottom), inside, inside - style.halo, WHITE, 1.0)
    _frame(image, (left, top, right, bottom), outside, inside, color, 1.0)


def draw_outline(
    image: Image.Image, rings: Sequence[Ring], mask: NDArray[np.bool_], color: Color, style: Style
) -> None:
    """Draw closed outlines (in pixels) smoothly, with a translucent colour over `mask`, the pixels they enclose."""
    if not rings:
        return
    enclosed = Image.fromarray(mask.astype(np.uint8) * 255)
    image.paste(color, (0, 0), _dimmed(enclosed, _FILL_OPACITY))
    xs, ys = ([point[axis] for ring in rings for point in ring] for axis in (0, 1))
    drawing = _SmoothDrawing(image, (min(xs), min(ys), max(xs), max(ys)), style.line + 2 * style.halo + 2)

    def stroke(width: int) -> Image.Image:
        def paint(draw: ImageDraw.ImageDraw) -> None:
            for ring in rings:
                points = [drawing.enlarge(x, y) for x, y in ring]
                draw.line([*points, *points[:2]], fill=255, width=width * drawing.scale, joint="curve")

        return drawing.alpha(paint)

    if style.halo:
        wide = stroke(style.line + 2 * style.halo)
        drawing.paste(BLACK, _dimmed(wide, _DARK_OPACITY))
        drawing.paste(WHITE, ImageChops.multiply(wide, enclosed.crop(drawing.region)))
    drawing.paste(color, stroke(style.line))


def draw_dot(image: Image.Image, centre: XY, radius: float, color: Color, style: Style) -> None:
    """Draw a disc (in pixels) in a white ring with a dark edge, smoothly."""
    drawing = _SmoothDrawing(image, (*centre, *centre), radius + 3 * style.halo + 2)

    def disc(reach: float) -> Image.Image:
        (x, y), reach = drawing.enlarge(*centre), reach * drawing.scale
        return drawing.alpha(lambda draw: draw.ellipse((x - reach, y - reach, x + reach - 1, y + reach - 1), fill=255))

    if style.halo:
        drawing.paste(BLACK, _dimmed(disc(radius + 3 * style.halo), _DARK_OPACITY))
        drawing.paste(WHITE, disc(radius + 1.5 * style.halo))
    drawing.paste(color, disc(radius))


class _SmoothDrawing:
    """The part of an image within `margin` of `bounds`, painted through enlarged and reduced alpha masks."""

    def __init__(self, image: Image.Image, bounds: PixelBox, margin: float) -> None:
        near = [max(math.floor(side - margin), 0) for side in bounds[:2]]
        far = [math.ceil(side + margin) for side in bounds[2:]]
        left, top = map(min, near, image.size)
        right, bottom = map(min, far, image.size)
        self.region = (left, top, max(right, left), max(bottom, top))
        self.size = (self.region[2] - left, self.region[3] - top)
        area = self.size[0] * self.size[1]
        self.scale = next((scale for scale in (4, 3, 2) if scale * scale * area <= _MAX_DRAWING), 1)
        self._image = image

    def enlarge(self, x: float, y: float) -> XY:
        return (x - self.region[0]) * self.scale, (y - self.region[1]) * self.scale

    def alpha(self, paint: Callable[[ImageDraw.ImageDraw], None]) -> Image.Image:
        """Return what `paint` draws with the value 255 at the enlarged size, as a mask of the region's size."""
        if not all(self.size):
            return Image.new("L", self.size)
        large = Image.new("L", (self.size[0] * self.scale, self.size[1] * self.scale))
        paint(ImageDraw.Draw(large))
        return large.reduce(self.scale)

    def paste(self, color: Color, alpha: Image.Image) -> None:
        self._image.paste(color, self.region[:2], alpha)


def _frame(
    image: Image.Image, box: tuple[int, int, int, int], outer: int, inner: int, color: Color, opacity: float
) -> None:
    """Colour what lies between the box grown by `outer` and the box grown by `inner` pixels."""
    left, top, right, bottom = box[0] - outer, box[1] - outer, box[2] + outer, box[3] + outer
    if left >= right or top >= bottom:
        return
    across = min(outer - inner, (right - left + 1) // 2)
    down = min(outer - inner, (bottom - top + 1) // 2)
    for strip in (
        (left, top, right, top + down),
        (left, bottom - down, right, bottom),
        (left, top + down, left + across, bottom - down),
        (right - across, top + down, right, bottom - down),
    ):
        x0, y0 = max(strip[0], 0), max(strip[1], 0)
        x1, y1 = min(strip[2], image.width), min(strip[3], image.height)
        if x0 < x1 and y0 < y1:
            image.paste(color, (x0, y0), Image.new("L", (x1 - x0, y1 - y0), round(255 * opacity)))


def _clamp(box: PixelBox, size: tuple[int, int], line: int) -> PixelBox:
    """Move a box's sides inside the image, so far from its border that the whole line is visible."""
    near, far = line // 2, line - line // 2
    left, right = (min(max(x, near), max(size[0] - near, near)) for x in (box[0], box[2]))
    top, bottom = (min(max(y, near), max(size[1] - near, near)) for y in (box[1], box[3]))
    return left, top, max(right, left + far), max(bottom, top + far)


def _dimmed(alpha: Image.Image, opacity: float) -> Image.Image:
    return alpha.point(lambda value: round(value * opacity))
