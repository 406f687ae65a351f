"""Pillow's Lanczos resize in bands that several threads can compute, with the same pixels to the last bit.

Nearly all of its time is Pillow's multiply-adds, one channel at a time and on one thread. It resizes in two passes, one
across (it changes the width) and one down (the height), and rounds to 8 bits in between. No row of the pass across
depends on another row, no column of the pass down on another column, and Pillow leaves out a pass that changes no
length. So each pass is done in bands, each band as a resize of its own along one axis:

```
image ── across, bands of rows ──> [height, new width] ── down, bands of columns ──> [new height, new width]
```

Pillow holds Python's global lock in neither pass. Pillow's `box` argument cannot replace bands: its edges would move
the filter's windows by rounding, and would bring the other pass back.

The order of the passes matters for the last bits: see `down_first`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from photonlite.images.parallel import SERIAL, ParallelTasks, Task

Size: TypeAlias = tuple[int, int]
"""Width and height in pixels."""

StoreBlock: TypeAlias = Callable[[int, int, npt.NDArray[np.uint8]], None]
"""Called with the left and the top of a block, and its pixels: uint8 ``[rows, columns, 3]``."""

_BANDS_PER_THREAD: Final = 2  # with two, a delayed thread keeps the others waiting for at most half of its share


@dataclass(frozen=True, slots=True)
class ResizeTarget:
    """A size, and a function that gets all pixels once, in any number of blocks, on any thread."""

    size: Size
    store: StoreBlock


def down_first(size: Size, new_size: Size) -> bool:
    """Whether the pass down comes before the pass across: where the height loses over twice what the width does.

    This is the rule of Pillow 13.0, with which the golden crops were made; up to 12.2 it was never so. As the passes
    are requested one by one here, the pixels do not depend on Pillow's version.
    """
    lost_width, lost_height = size[0] - new_size[0], size[1] - new_size[1]
    return lost_height > max(0, 2 * lost_width)


def resize(image: Image.Image, targets: Sequence[ResizeTarget], parallel: ParallelTasks = SERIAL) -> None:
    """Resize a decoded RGB image to several sizes at once; returns when everything has been stored."""
    down = [down_first(image.size, target.size) for target in targets]
    between = [
        (image.width, target.size[1]) if first else (target.size[0], image.height)
        for target, first in zip(targets, down, strict=True)
    ]
    if parallel.size == 1:
        for target, size in zip(targets, between, strict=True):
            target.store(0, 0, np.asarray(_lanczos(_lanczos(image, size), target.size)))
        return
    count = _BANDS_PER_THREAD * parallel.size
    halves = [Image.new("RGB", size) for size in between]
    first_pass, second_pass = [], []
    for target, half, first in zip(targets, halves, down, strict=True):
        first_pass += _bands(image, half.size, first, count, _paste_into(half))
        second_pass += _bands(half, target.size, not first, count, _store_in(target))
    parallel.run_all(first_pass)
    parallel.run_all(second_pass)


def _lanczos(image: Image.Image, size: Size) -> Image.Image:
    return image.resize(size, Image.Resampling.LANCZOS)


def _bands(
    image: Image.Image, size: Size, down: bool, count: int, put: Callable[[int, int, Image.Image], None]
) -> list[Task]:
    """One pass, to `size`, as tasks of one band each: of columns down, of rows across."""

    def make_task(start: int, end: int) -> Task:
        def resize_band() -> None:
            if down:
                columns = image.crop((start, 0, end, image.height))
                put(start, 0, _lanczos(columns, (end - start, size[1])))
            else:
                rows = image.crop((0, start, image.width, end))
                put(0, start, _lanczos(rows, (size[0], end - start)))

        return resize_band

    length = image.width if down else image.height
    count = min(count, length)
    edges = [length * index // count for index in range(count + 1)]
    return [make_task(start, end) for start, end in pairwise(edges)]


def _paste_into(whole: Image.Image) -> Callable[[int, int, Image.Image], None]:
    return lambda left, top, band: whole.paste(band, (left, top))


def _store_in(target: ResizeTarget) -> Callable[[int, int, Image.Image], None]:
    return lambda left, top, band: target.store(left, top, np.asarray(band))
