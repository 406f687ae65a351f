"""Text in a strip below an image."""

from collections.abc import Iterator
from os import PathLike

from PIL import Image, ImageDraw

from photonlite.results.drawing.style import Color, Font, Style

_PAPER: Color = (246, 246, 244)
_INK: Color = (28, 28, 30)
# In a narrower strip words would be broken.
_MIN_WIDTH = 240


def append_text_strip(
    image: Image.Image, text: str, font_size: int | None = None, font: str | PathLike[str] | None = None
) -> Image.Image:
    """Return a new image with the text wrapped below it, dark on light; a narrow image is centred.

    Raises:
        InputError: The font size is not positive or the font cannot be read.
    """
    width = max(image.width, _MIN_WIDTH)
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
    """Break a text into lines of at most `width` pixels and at least one character, between words where possible.

    Line breaks of the text are kept; other control characters become spaces.
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
