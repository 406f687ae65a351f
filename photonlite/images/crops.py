"""The square crops that the vision encoder reads: one of the whole image, and a grid of overlapping local ones.

All lengths follow from the checkpoint. A crop of `crop_size` pixels has `grid` x `grid` patches. A frame of
`overlap_margin` patches on each side is shared with the neighbours; the window inside it is each crop's own:

```
 |margin|   window   |margin|                crop (i, 0)
              |margin|   window   |margin|   crop (i, 1): one window further, its margins on its neighbours' windows
```

The image is resized to `tiles * window + 2 * margin` on each axis, whatever its aspect, so that the grid covers it
exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from photonlite.errors import ConfigError, ImageShapeError
from photonlite.images.resize import ResizeTarget, RunTasks, resize, run_in_turn
from photonlite.settings import make_plain

Allocator = Callable[[tuple[int, ...]], npt.NDArray[np.uint8]]  # returns contiguous memory of a shape


@dataclass(frozen=True, slots=True)
class CropSpec:
    """Lengths of a checkpoint's crops; raises a ConfigError for values out of range, or that contradict each other."""

    crop_size: int  # side of a crop, in pixels; a multiple of `patch_size`
    patch_size: int  # side of a patch, in pixels
    overlap_margin: int  # patches on each side of a crop that it shares with its neighbours
    on_white: ClassVar = False  # see `ImageLimits`
    max_crops: int  # most local crops of an image (with one exception, see `select_tiling`)

    def __post_init__(self) -> None:
        make_plain(self)
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "overlap_margin" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"vision {field.name} is {value!r}: it must be a whole number of at least {least}")
        if self.crop_size % self.patch_size:
            raise ConfigError(
                f"vision crop_size {self.crop_size} is not a multiple of the patch size {self.patch_size}: correct one"
            )
        if self.window < 1:
            raise ConfigError(
                f"vision overlap_margin {self.overlap_margin} leaves no window in a crop of {self.grid} patches: "
                f"it must be at most {(self.grid - 1) // 2}"
            )

    @property
    def grid(self) -> int:
        """Patches along one side of a crop."""
        return self.crop_size // self.patch_size

    @property
    def margin(self) -> int:
        """Width of the shared frame on each side of a crop, in pixels."""
        return self.overlap_margin * self.patch_size

    @property
    def window(self) -> int:
        """Side of the part of a crop inside its margins, in pixels."""
        return self.crop_size - 2 * self.margin

    @property
    def sight(self) -> int:
        """Pixels along a side of a square image that is read without being shrunk: of its most crops together."""
        return max(self.crop_size, math.isqrt(self.max_crops) * self.window + 2 * self.margin)

    def cut(self, image: Image.Image, *, threads: int, run_tasks: RunTasks, buffer: Allocator) -> ImageCrops:
        """Cut an image; see `cut_crops`."""
        return cut_crops(image, self, threads=threads, run_tasks=run_tasks, buffer=buffer)


@dataclass(frozen=True, slots=True, eq=False)
class ImageCrops:
    """The whole image, then its local crops row by row (none with tiling (1, 1))."""

    pixels: npt.NDArray[np.uint8]  # [n, crop_size, crop_size, 3]
    tiling: tuple[int, int]  # rows and columns of local crops
    picture_size: tuple[int, int] | None = None  # width and height of the image; None where it is not known

    def __post_init__(self) -> None:
        rows, columns = self.tiling
        expected = 1 if rows * columns == 1 else 1 + rows * columns
        if len(self.pixels) != expected:
            raise ValueError(f"tiling {self.tiling} takes {expected} crops, got {len(self.pixels)}")


def select_tiling(height: int, width: int, spec: CropSpec) -> tuple[int, int]:
    """Choose the rows and columns of local crops for an image of this size, in pixels.

    The rule is the Moondream reference's, in floating point like it, because checkpoints were trained on its grids.
    There are at most `max_crops`, with one exception that follows the reference: a strip with r > max_crops times as
    many windows one way as the other gets a single row (or column) of floor(sqrt(max_crops * r)) crops.
    """
    h, w = height - 2 * spec.margin, width - 2 * spec.margin
    if h <= spec.window or w <= spec.window:
        return 1, 1
    least_rows, least_columns = math.ceil(h / spec.window), math.ceil(w / spec.window)
    if least_rows * least_columns > spec.max_crops:
        shrink = math.sqrt(spec.max_crops / (least_rows * least_columns))
        return max(1, math.floor(least_rows * shrink)), max(1, math.floor(least_columns * shrink))
    rows = max(math.floor(math.sqrt(spec.max_crops * h / w)), least_rows)
    columns = max(math.floor(math.sqrt(spec.max_crops * w / h)), least_columns)
    if rows * columns > spec.max_crops:
        if columns > rows:
            columns = spec.max_crops // rows
        else:
            rows = spec.max_crops // columns
    return rows, columns


def allocate_array(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    return np.empty(shape, np.uint8)


def cut_crops(
    image: Image.Image,
    spec: CropSpec,
    *,
    threads: int = 1,
    run_tasks: RunTasks = run_in_turn,
    buffer: Allocator = allocate_array,
) -> ImageCrops:
    """Cut an RGB image, in memory from `buffer`; crops equal those of Pillow's Lanczos filter to the last bit.

    The work is cut into tasks for so many threads, on which `run_tasks` runs them.
    """
    if image.mode != "RGB":
        raise ImageShapeError(f"crops are cut from RGB, not from mode {image.mode}: open the image with load_image")
    size, margins = spec.crop_size, 2 * spec.margin
    rows, columns = tiling = select_tiling(image.height, image.width, spec)
    n_local = 0 if tiling == (1, 1) else rows * columns
    pixels = buffer((1 + n_local, size, size, 3))
    targets: list[ResizeTarget] = [((size, size), partial(_store_whole, pixels[0]))]
    if n_local:
        local = pixels[1:].reshape(rows, columns, size, size, 3)
        sheet = (columns * spec.window + margins, rows * spec.window + margins)
        targets.insert(0, (sheet, partial(_store_local, local, spec.window)))
    resize(image, targets, threads, run_tasks)
    return ImageCrops(pixels, tiling, image.size)


def _store_whole(crop: npt.NDArray[np.uint8], left: int, top: int, block: npt.NDArray[np.uint8]) -> None:
    crop[top : top + block.shape[0], left : left + block.shape[1]] = block


def _store_local(local: npt.NDArray[np.uint8], window: int, left: int, top: int, block: npt.NDArray[np.uint8]) -> None:
    """Copy a block of the resized image into each crop it overlaps: local [rows, columns, size, size, 3]."""
    rows, columns, size, _, _ = local.shape
    bottom, right = top + block.shape[0], left + block.shape[1]
    for row, column in product(range(rows), range(columns)):
        y, x = row * window, column * window  # of the crop, in the resized image
        y0, y1 = max(top, y), min(bottom, y + size)
        x0, x1 = max(left, x), min(right, x + size)
        if y0 < y1 and x0 < x1:
            part = block[y0 - top : y1 - top, x0 - left : x1 - left]
            local[row, column, y0 - y : y1 - y, x0 - x : x1 - x] = part
