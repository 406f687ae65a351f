"""Pillow's Lanczos resize in pieces that several threads can do, with the same pixels to the last bit.

Nearly all of its time is Pillow's multiply-adds, one channel at a time and on one thread. It resizes in two passes, one
across (it changes the width) and one down (the height), and rounds to 8 bits in between. No row of the pass across
depends on another row, no column of the pass down on another column, and Pillow leaves out a pass that changes no
length. So each pass is done in bands, each band as a resize of its own along one axis:

```
image ── across, bands of rows ──> [height, new width] ── down, bands of columns ──> [new height, new width]
```

Pillow holds Python's global lock in neither pass. A box in the place of a band would not do: its edges would move the
filter's windows by rounding, and would bring the other pass back.

The order of the passes shows in the last bits: see `down_first`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from photonlite.images.crew import ALONE, Crew, Piece

Size: TypeAlias = tuple[int, int]
"""Width and height in pixels."""

Place: TypeAlias = Callable[[int, int, npt.NDArray[np.uint8]], None]
"""Takes the left and the top of a block, and its pixels: uint8 ``[rows, columns, 3]``."""


_BANDS_EACH: Final = 2
"""Bands of a pass for each thread: one that is held up keeps the others waiting for half of its share at most."""


@dataclass(frozen=True, slots=True)
class Target:
    """A size to which an image is resized, and what becomes of the pixels.

    Attributes:
        size: Width and height.
        place: Is given all pixels once, in any number of blocks, on any thread of the crew.
    """

    size: Size
    place: Place


def down_first(size: Size, new_size: Size) -> bool:
    """Whether the pass down comes before the pass across: where the height loses over twice what the width does.

    This is the rule of Pillow 13.0, with which the golden crops were made; up to 12.2 it was never so. As each pass is
    asked for by itself here, the pixels do not depend on Pillow's version.
    """
    lost_width, lost_height = size[0] - new_size[0], size[1] - new_size[1]
    return lost_height > max(0, 2 * lost_width)


def resize(image: Image.Image, targets: Sequence[Target], crew: Crew = ALONE) -> None:
    """Resize an image to several sizes at once; returns when everything has been placed.

    Args:
        image: RGB and decoded; left as it is.
        targets: What is wanted.
        crew: Who does it.
    """
    firsts = [down_first(image.size, target.size) for target in targets]
    between = [
        (image.width, target.size[1]) if down else (target.size[0], image.height)
        for target, down in zip(targets, firsts, strict=True)
    ]
    if crew.size == 1:
        for target, size in zip(targets, between, strict=True):
            target.place(0, 0, np.asarray(_lanczos(_lanczos(image, size), target.size)))
        return
    bands = _BANDS_EACH * crew.size
    halves = [Image.new("RGB", size) for size in between]
    crew.run(
        [
            piece
            for half, down in zip(halves, firsts, strict=True)
            for piece in _pieces(image, half.size, down, bands, _paste_into(half))
        ]
    )
    crew.run(
        [
            piece
            for half, down, target in zip(halves, firsts, targets, strict=True)
            for piece in _pieces(half, target.size, not down, bands, _place_into(target))
        ]
    )


def _lanczos(image: Image.Image, size: Size) -> Image.Image:
    return image.resize(size, Image.Resampling.LANCZOS)


def _pieces(
    image: Image.Image, size: Size, down: bool, count: int, put: Callable[[int, int, Image.Image], None]
) -> list[Piece]:
    """One pass, to `size`, in `count` bands: of columns down, of rows across."""

    def piece(start: int, end: int) -> Piece:
        def resize_band() -> None:
            if down:
                columns = image.crop((start, 0, end, image.height))
                put(start, 0, _lanczos(columns, (end - start, size[1])))
            else:
                rows = image.crop((0, start, image.width, end))
                put(0, start, _lanczos(rows, (size[0], end - start)))

        return resize_band

    return [piece(start, end) for start, end in _cut(image.width if down else image.height, count)]


def _paste_into(whole: Image.Image) -> Callable[[int, int, Image.Image], None]:
    return lambda left, top, band: whole.paste(band, (left, top))


def _place_into(target: Target) -> Callable[[int, int, Image.Image], None]:
    return lambda left, top, band: target.place(left, top, np.asarray(band))


def _cut(length: int, count: int) -> list[tuple[int, int]]:
    """Intervals that cover a length, as equal as can be; fewer than asked for where the length is less."""
    count = min(count, length)
    return list(pairwise(length * index // count for index in range(count + 1)))
