"""Small images of scenes with shapes on them."""

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFilter

from bench.nano.evaluation.failures.panels import Role, Shape
from bench.nano.scenes.held_out.scene import Scene

SIDE = 400
"""Longer side of an image on the page, in pixels."""
COLOURS: dict[Role, str] = {
    "found": "#2fbf5b",
    "missed": "#ffb300",
    "right": "#2f8bff",
    "wrong": "#ff2d55",
    "reference": "#c04dff",
}
_DARK = "#101014"
_FINER = 2  # shapes are drawn at this multiple of the size, and come out smooth
_THIN, _THICK = 5, 6
_TINT = 0.3  # of an object's pixels


def thumbnail(scene: Scene, shapes: Sequence[Shape] = ()) -> Image.Image:
    """Draw shapes on a scene's image, `SIDE` pixels on its longer side."""
    scale = SIDE / max(scene.image.size)
    width, height = (max(1, round(side * scale)) for side in scene.image.size)
    large = scene.image.resize((_FINER * width, _FINER * height), Image.Resampling.BICUBIC)
    for shape in shapes:
        if shape.object is not None:
            large = _tinted(large, scene, shape)
    draw = ImageDraw.Draw(large)
    for shape in shapes:
        _draw(draw, shape, large.size)
    return large.resize((width, height), Image.Resampling.LANCZOS)


def jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=76, optimize=True)
    return file.getvalue()


def _tinted(image: Image.Image, scene: Scene, shape: Shape) -> Image.Image:
    """Tint the visible pixels of an object, and draw their edge."""
    mask = scene.mask(-1 if shape.object is None else shape.object)
    whole = Image.fromarray((mask * 255).astype(np.uint8)).resize(image.size, Image.Resampling.NEAREST)
    inner = whole.filter(ImageFilter.MinFilter(2 * _THIN - 1))
    cover = Image.composite(inner.point([round(_TINT * level) for level in range(256)]), whole, inner)
    return Image.composite(Image.new("RGB", image.size, ImageColor.getrgb(COLOURS[shape.role])), image, cover)


def _draw(draw: ImageDraw.ImageDraw, shape: Shape, size: tuple[int, int]) -> None:
    colour = COLOURS[shape.role]
    width = _THIN if shape.role in ("found", "missed") else _THICK
    places = [(x * size[0], y * size[1]) for x, y in (shape.outline or _corners(shape.place))]
    if len(places) == 1:
        (x, y), radius = places[0], 15
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour, outline=_DARK, width=_THIN)
        draw.ellipse((x - 5, y - 5, x + 5, y + 5), fill="white")
    elif places:
        closed = [*places, *places[:2]]  # twice the first edge, so that the last corner is joined
        draw.line(closed, fill=_DARK, width=width + 3, joint="curve")
        draw.line(closed, fill=colour, width=width, joint="curve")


def _corners(place: Sequence[float]) -> list[tuple[float, float]]:
    if len(place) < 4:
        return [(place[0], place[1])] if place else []
    x0, y0, x1, y1 = place
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
