"""Pillow's Lanczos resize in bands that several threads can compute, with the same pixels to the last bit.

Pillow resizes on one thread, in two passes, one across (it changes the width) and one down (the height), and rounds to
8 bits in between. Rows of the pass across, and columns of the pass down, do not depend on one another, and a pass that
changes no length is left out. So each pass is done in bands, each band as a resize of its own along one axis:

```
image ── across, bands of rows ──> [height, new width] ── down, bands of columns ──> [new height, new width]
```

Pillow holds Python's global lock in neither pass, once it has the filter's coefficients. Its `box` argument cannot
replace bands: its edges would move the filter's windows by rounding, and bring the other pass back. The order of the
passes matters: see `down_first`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

Task: TypeAlias = Callable[[], None]
RunTasks: TypeAlias = Callable[[Sequence[Task]], None]  # in any order, on any threads; waits, and raises their error
Size: TypeAlias = tuple[int, int]  # width and height in pixels
StoreBlock: TypeAlias = Callable[[int, int, npt.NDArray[np.uint8]], None]  # left, top, block [rows, columns, 3]

# Sides of all bands of a pass together: Pillow computes the filter's coefficients anew for each band, and holds the
# global lock meanwhile, 13 ms for 65,535 pixels.
_FILTERED: Final = 2**17
_BANDS_PER_THREAD: Final = 2  # with two, a delayed thread keeps the others waiting for at most half of its share
ResizeTarget: TypeAlias = tuple[Size, StoreBlock]  # the function gets all pixels once, in blocks, on any thread


def run_in_turn(tasks: Sequence[Task]) -> None:
    """Run tasks on the calling thread: the `RunTasks` of one thread."""
    for task in tasks:
        task()


def down_first(size: Size, new_size: Size) -> bool:
    """Whether the pass down comes before the pass across: where the height loses over twice what the width does.

    This is the rule of Pillow 13.0, with which the golden crops were made; up to 12.2 it was never so. As the passes
    are requested one by one here, the pixels do not depend on Pillow's version.
    """
    lost_width, lost_height = size[0] - new_size[0], size[1] - new_size[1]
    return lost_height > max(0, 2 * lost_width)


def resize(
    image: Image.Image, targets: Sequence[ResizeTarget], threads: int = 1, run_tasks: RunTasks = run_in_turn
) -> None:
    """Resize a decoded RGB image to several sizes at once, in tasks for so many threads; returns when all is stored."""
    down = [down_first(image.size, size) for size, _ in targets]
    between = [
        (image.width, size[1]) if first else (size[0], image.height)
        for (size, _), first in zip(targets, down, strict=True)
    ]
    if threads == 1:
        for (size, store), half_size in zip(targets, between, strict=True):
            store(0, 0, np.asarray(_lanczos(_lanczos(image, half_size), size)))
        return
    count = _BANDS_PER_THREAD * threads
    halves = [Image.new("RGB", size) for size in between]
    first_pass, second_pass = [], []
    for (size, store), half, first in zip(targets, halves, down, strict=True):
        first_pass += _bands(image, half.size, first, count, partial(_paste, half))
        second_pass += _bands(half, size, not first, count, partial(_store, store))
    run_tasks(first_pass)
    run_tasks(second_pass)


def _lanczos(image: Image.Image, size: Size) -> Image.Image:
    return image.resize(size, Image.Resampling.LANCZOS)


def _bands(
    image: Image.Image, size: Size, down: bool, count: int, put: Callable[[int, int, Image.Image], None]
) -> list[Task]:
    """One pass, to `size`, as tasks of one band each: of columns down, of rows across."""

    def resize_band(start: int, end: int) -> None:
        if down:
            columns = image.crop((start, 0, end, image.height))
            put(start, 0, _lanczos(columns, (end - start, size[1])))
        else:
            rows = image.crop((0, start, image.width, end))
            put(0, start, _lanczos(rows, (size[0], end - start)))

    length = image.width if down else image.height
    filtered = max(image.height, size[1]) if down else max(image.width, size[0])
    count = max(1, min(count, length, _FILTERED // filtered))
    edges = [length * index // count for index in range(count + 1)]
    return [partial(resize_band, start, end) for start, end in pairwise(edges)]


def _paste(whole: Image.Image, left: int, top: int, band: Image.Image) -> None:
    whole.paste(band, (left, top))


def _store(store: StoreBlock, left: int, top: int, band: Image.Image) -> None:
    store(left, top, np.asarray(band))
