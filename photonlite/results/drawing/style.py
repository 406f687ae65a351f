"""Opening images, sizes that follow the image, fonts, and colours that are distinct under any colour vision."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike

from PIL import Image, ImageColor, ImageFont

from photonlite.config import ImageLimits
from photonlite.errors import InputError
from photonlite.images.decode import load_image
from photonlite.images.source import ImageSource

Color = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

PixelBox = tuple[float, float, float, float]
"""x_min, y_min, x_max, y_max in pixels."""

BLACK: Color = (0, 0, 0)
WHITE: Color = (255, 255, 255)

# The palette of M. Okabe and K. Ito, "Color Universal Design" (2008), without black: distinct under the common forms
# of colour vision. Ordered so that the first ones differ most.
PALETTE: tuple[Color, ...] = (
    (213, 94, 0),
    (0, 114, 178),
    (0, 158, 115),
    (240, 228, 66),
    (204, 121, 167),
    (86, 180, 233),
    (230, 159, 0),
)
# Further labels get the palette again, mixed with white, then with black.
_ROUNDS: tuple[tuple[Color, float], ...] = ((WHITE, 0.0), (WHITE, 0.55), (BLACK, 0.5))

# Up to this many items have room for full-sized labels.
_CROWD = 12
# In images with a smaller diagonal, in pixels, halos would hide the image.
_TINY = 100


# Twice Pillow's bound against decompression bombs: the model may have been loaded with wider limits than the defaults.
_MAX_PIXELS = 178_956_970


def open_image(image: ImageSource) -> Image.Image:
    """Return a new upright RGB image; raises an ImageError.

    It may have more pixels than the model takes by default; PHOTONLITE_MAX_PIXELS raises that limit too.
    """
    max_pixels = max(_MAX_PIXELS, ImageLimits.from_env().max_pixels)
    return load_image(image, ImageLimits(max_pixels=max_pixels, max_side=max_pixels, max_bytes=2**40))


@dataclass(frozen=True)
class Style:
    """Sizes in pixels, and the font. `halo` is the width of the white and of the dark line beside a coloured line."""

    line: int
    halo: int
    font: Font
    font_size: int

    @classmethod
    def of(
        cls,
        size: tuple[int, int],
        *,
        count: int = 1,
        line_width: int | None = None,
        font_size: int | None = None,
        font: str | PathLike[str] | None = None,
    ) -> "Style":
        """Return the style of an image of `size`: what is not given follows its diagonal and the number of items."""
        diagonal = math.hypot(*size)
        crowding = min(max((_CROWD / max(count, 1)) ** 0.5, 0.65), 1.0)
        line = line_width if line_width is not None else round(1 + crowding * diagonal / 400)
        points = font_size if font_size is not None else max(10, round(crowding * diagonal / 46))
        if line < 1 or points < 1:
            raise InputError(f"line_width {line} and font_size {points} must be at least 1 pixel.")
        halo = max(round(line / 3), 1) if diagonal >= _TINY else 0
        return cls(line, halo, load_font(points, font), points)


def load_font(size: int, font: str | PathLike[str] | None) -> Font:
    if font is None:
        return ImageFont.load_default(size)
    try:
        return ImageFont.truetype(font, size)
    except OSError as error:
        raise InputError(f"The font {font!r} cannot be read: {error}. Give a TrueType or OpenType file.") from error


def label_colors(labels: Iterable[str], chosen: str | Mapping[str, str] | None = None) -> dict[str, Color]:
    """Return one colour per label; after 21 they repeat. `chosen` is one colour for all labels, or those of some."""
    if isinstance(chosen, str):
        return dict.fromkeys(labels, _color(chosen))
    if chosen is not None and not isinstance(chosen, Mapping):
        raise InputError(
            f"colors is of type {type(chosen).__name__}. Give a colour such as 'red', or a dict of labels and colours."
        )
    colors: dict[str, Color] = {}
    for index, label in enumerate(dict.fromkeys(labels)):
        mixed_with, share = _ROUNDS[index // len(PALETTE) % len(_ROUNDS)]
        base = PALETTE[index % len(PALETTE)]
        red, green, blue = (round(c * (1 - share) + m * share) for c, m in zip(base, mixed_with, strict=True))
        colors[label] = (red, green, blue)
    return colors | {label: _color(name) for label, name in (chosen or {}).items()}


def _color(name: object) -> Color:
    try:
        return ImageColor.getrgb(name)[:3]
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{name!r:.60} is not a colour. Give a name such as 'red' or '#d55e00'.") from error


def luminance(color: Color) -> float:
    """Relative luminance in [0, 1] (WCAG 2.2, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance)."""
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def text_color(background: Color) -> Color:
    """Black or white, whichever has the higher WCAG contrast with the background."""
    light = luminance(background) + 0.05
    return BLACK if light / 0.05 >= 1.05 / light else WHITE
