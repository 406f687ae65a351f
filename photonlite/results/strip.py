"""Text in a strip below an image."""

from collections.abc import Iterator
from os import PathLike

from PIL import Image, ImageDraw

from photonlite.results.style import Color, Font, Style

_PAPER: Color = (246, 246, 244)
_INK: Color = (28, 28, 30)
# In a narrower strip words would fall apart.
_NARROWEST = 240


def with_strip(
    image: Image.Image, text: str, font_size: int | None = None, font: str | PathLike[str] | None = None
) -> Image.Image:
    """A new image: the old one, and below it the text, wrapped, dark on light.

    Args:
        image: Mode RGB; centred where it is narrower than the strip can be.
        text: Its line breaks are kept.
        font_size: In pixels; follows the image's size by default.
        font: A font file, for scripts that Pillow's own font lacks.

    Raises:
        InputError: The font size is not positive or the font cannot be read.
    """
    width = max(image.width, _NARROWEST)
    style = Style.of((width, image.height), font_size=font_size, font=font)
    margin = max(style.font_size * 3 // 4, 6)
    lines = list(wrap(text, style.font, width - 2 * margin))
    line_height = round(style.font_size * 1.35)
    page = Image.new("RGB", (width, image.height + len(lines) * line_height + 2 * margin), _PAPER)
    page.paste(image, ((width - image.width) // 2, 0))
    draw = ImageDraw.Draw(page)
    for row, line in enumerate(lines):
        draw.text((margin, image.height + margin + row * line_height), line, fill=_INK, font=style.font)
    return page


def wrap(text: str, font: Font, width: float) -> Iterator[str]:
    """Breaks a text into lines of at most that width in pixels, between words where that is possible.

    Args:
        text: Its own line breaks are kept; other control characters become spaces.
        font: Measures the lines.
        width: In pixels; a line has at least one character, whatever the width.
    """
    for paragraph in text.splitlines() or [""]:
        line = ""
        for word in "".join(c if c.isprintable() else " " for c in paragraph).split():
            longer = f"{line} {word}" if line else word
            if font.getlength(longer) <= width:
                line = longer
                continue
            if line:
                yield line
            *whole, line = _pieces(word, font, width)
            yield from whole
        yield line


def _pieces(word: str, font: Font, width: float) -> Iterator[str]:
    """A word in pieces of at most that width."""
    start = 0
    for end in range(1, len(word) + 1):
        if end - start > 1 and font.getlength(word[start:end]) > width:
            yield word[start : end - 1]
            start = end - 1
    yield word[start:]
