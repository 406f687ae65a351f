"""Text on images: label chips, shortened to fit and placed off each other, and a strip below an image."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from photonlite.results.drawing.style import BLACK, WHITE, Color, Font, PixelBox, Style, text_color
from photonlite.results.rings import XY

_ELLIPSIS = "..."
# A chip of which others would cover a larger share is left out: overlapping labels are unreadable.
_MAX_COVERED = 0.1
# A chip that would take a larger share of the image is left out, and so is one that takes all chips over a share.
_MAX_SHARE = 0.1
_MAX_SHARES = 0.3
_PAPER: Color = (246, 246, 244)
_INK: Color = (28, 28, 30)
# In a narrower strip words would be broken.
_MIN_STRIP = 240


@dataclass(frozen=True)
class Label:
    texts: tuple[str, ...]  # alternatives, longest first; the first that fits is written
    target: PixelBox  # what is labelled
    color: Color
    beside: bool = False  # the chip prefers the right of the target (points) to its top (boxes)
    top: float | None = None  # x of the highest pixel of a target that does not fill its box


def draw_labels(image: Image.Image, labels: Sequence[Label], style: Style) -> None:
    """Draw as many of the labels as have room, the most important first, off the targets where possible."""
    targets = np.array([label.target for label in labels])
    # A chip hides a whole dot, but only a small part of a box.
    weights = np.array([1.0 if label.beside else 0.1 for label in labels])
    chips: list[PixelBox] = []
    room = _MAX_SHARES * image.width * image.height
    for label in labels:
        for text in _fitting_texts(label.texts, style, image.width):
            size = _chip_size(text, style)
            area = size[0] * size[1]
            if size[1] > image.height or area > min(_MAX_SHARE * image.width * image.height, room):
                continue
            corners, cost = _candidates(label, size, image.size, style)
            hidden = _overlaps(corners, size, np.array(chips)).sum(axis=1)
            best = int((cost + _overlaps(corners, size, targets) @ weights + 4 * hidden).argmin())
            if hidden[best] <= _MAX_COVERED:
                left, top = (int(value) for value in corners[best])
                room -= area
                chips.append((left, top, left + size[0], top + size[1]))
                _draw_chip(image, (left, top), size, text, label.color, style)
                break


def one_line(text: str) -> str:
    """Replace line breaks and control characters, which fonts draw as boxes or not at all, with spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _fitting_texts(texts: Sequence[str], style: Style, image_width: int) -> Iterator[str]:
    """Yield the texts that are not too wide; if only the shortest is left, a shortened name comes before it."""
    width = min(max(image_width / 2, 14 * style.font_size), image_width - 2 * _padding(style)[0])
    names = texts[:-1] or texts
    fitting = [text for text in names if _fits(text, style.font, width)]
    yield from fitting or filter(None, [_shorten(names[-1], style.font, width)])
    if texts[-1] not in fitting and _fits(texts[-1], style.font, width):
        yield texts[-1]


def _shorten(text: str, font: Font, width: float) -> str:
    """The beginning of a text and an ellipsis; empty where fewer than three characters would be left."""
    low, high = 0, min(len(text), max(int(width), 0))
    while low < high:
        middle = (low + high + 1) // 2
        if font.getlength(text[:middle].rstrip() + _ELLIPSIS) <= width:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip() + _ELLIPSIS if low >= 3 else ""


def _fits(text: str, font: Font, width: float) -> bool:
    # Hardly any character is narrower than a pixel: this avoids measuring very long texts.
    return len(text) <= width and font.getlength(text) <= width


def _padding(style: Style) -> tuple[int, int]:
    """Space beside, and above and below the capitals; descenders reach into it."""
    return max(3, round(style.font_size * 0.4)), max(3, round(style.font_size * 0.33))


def _capitals(font: Font) -> tuple[float, float]:
    """Top and bottom of a capital letter, from where text is drawn."""
    _, top, _, bottom = font.getbbox("H")
    return top, bottom


def _chip_size(text: str, style: Style) -> tuple[int, int]:
    across, down = _padding(style)
    top, bottom = _capitals(style.font)
    return math.ceil(style.font.getlength(text)) + 2 * across, math.ceil(bottom - top) + 2 * down


def _candidates(
    label: Label, size: tuple[int, int], image: tuple[int, int], style: Style
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Top-left corners for a chip, clamped to the image [n, 2], and the cost of each [n].

    The cost grows with the order of preference and with the distance, in chip heights, of the clamping.
    """
    corners = np.array(list(_preferred_corners(label, size, style)))
    clamped = np.clip(np.round(corners), 0, np.array(image) - size)
    cost = 0.02 * np.arange(len(corners)) + 0.1 * np.abs(clamped - corners).sum(axis=1) / size[1]
    return clamped, cost


def _preferred_corners(label: Label, size: tuple[int, int], style: Style) -> Iterator[XY]:
    """Top-left corners for a chip, the best first."""
    x_min, y_min, x_max, y_max = label.target
    width, height = size
    gap = style.line // 2 + style.halo
    above, below = y_min - gap - height, y_max + gap
    if label.beside:
        middle, centre = (y_min + y_max - height) / 2, (x_min + x_max - width) / 2
        right, left = x_max + gap, x_min - gap - width
        yield from ((right, middle), (left, middle), (centre, above), (centre, below))
        yield from ((right, above), (right, below), (left, above), (left, below))
        yield from ((side, middle + step * height) for step in (-2, 2, -3, 3) for side in (right, left))
        return
    if label.top is not None:
        yield label.top - width / 2, above
    left, right = x_min - gap, x_max + gap - width
    # At the image's border the whole line lies inside the target.
    inset = style.line + style.halo
    inner_left, inner_right = x_min + inset, x_max - inset - width
    inner_top, inner_bottom = y_min + inset, y_max - inset - height
    yield from ((left, above), (inner_left, inner_top), (right, above), (left, below), (right, below))
    yield from ((inner_left, inner_bottom), (inner_right, inner_top), (inner_right, inner_bottom))
    for step in (1, 2, 3):
        yield from ((left, above - step * height), (inner_left, inner_top + step * height))
        yield from ((left, below + step * height), (right, above - step * height))


def _overlaps(corners: NDArray[np.float64], size: tuple[int, int], boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection of a chip at each corner with each box, as a share of the smaller one: [corners, boxes]."""
    others = boxes.reshape(1, -1, 4)
    near = np.maximum(corners[:, None], others[..., :2])
    far = np.minimum(corners[:, None] + size, others[..., 2:])
    common = np.prod(np.maximum(far - near, 0), axis=2)
    smaller = np.minimum(np.prod(others[..., 2:] - others[..., :2], axis=2), size[0] * size[1])
    shares: NDArray[np.float64] = common / np.maximum(smaller, 1)
    return shares


def _draw_chip(
    image: Image.Image, corner: tuple[int, int], size: tuple[int, int], text: str, color: Color, style: Style
) -> None:
    scale, edge = 4, max(style.halo // 2, 1)
    ink = text_color(color)
    radius = style.font_size * 0.25
    for inset, layer in ((0, WHITE if ink == BLACK else BLACK), (edge, color)):
        drawing = Image.new("L", (size[0] * scale, size[1] * scale))
        near, right, bottom = inset * scale, *((side - inset) * scale - 1 for side in size)
        rounding = max(radius - inset, 0) * scale
        ImageDraw.Draw(drawing).rounded_rectangle((near, near, right, bottom), rounding, fill=255)
        image.paste(layer, corner, drawing.reduce(scale))
    across, down = _padding(style)
    text_top = corner[1] + down - _capitals(style.font)[0]
    ImageDraw.Draw(image).text((corner[0] + across, text_top), text, fill=ink, font=style.font)


def append_text_strip(
    image: Image.Image, text: str, font_size: int | None = None, font: str | PathLike[str] | None = None
) -> Image.Image:
    """Return a new image with the text wrapped below it, dark on light; a narrow image is centred."""
    width = max(image.width, _MIN_STRIP)
    style = Style.of((width, image.height), font_size=font_size, font=font)
    margin = max(style.font_size * 3 // 4, 6)
    lines = list(wrap_text(text, style.font, width - 2 * margin))
    line_height = round(style.font_size * 1.35)
    page = Image.new("RGB", (width, image.height + len(lines) * line_height + 2 * margin), _PAPER)
    page.paste(image, ((width - image.width) // 2, 0))
    draw = ImageDraw.Draw(page)
    for row, line in enumerate(lines):
        draw.text((margin, image.height + margin + row * line_height), line, fill=_INK, font=style.font)
    return page


def wrap_text(text: str, font: Font, width: float) -> Iterator[str]:
    """Break a text into lines of at most `width` pixels, between words where possible; its own line breaks stay."""
    for paragraph in text.splitlines() or [""]:
        line = ""
        for word in one_line(paragraph).split():
            longer = f"{line} {word}" if line else word
            if font.getlength(longer) <= width:
                line = longer
                continue
            if line:
                yield line
            *whole, line = _break_word(word, font, width)
            yield from whole
        yield line


def _break_word(word: str, font: Font, width: float) -> Iterator[str]:
    start = 0
    for end in range(1, len(word) + 1):
        if end - start > 1 and font.getlength(word[start:end]) > width:
            yield word[start : end - 1]
            start = end - 1
    yield word[start:]
