"""Images as the vision tower reads them: resized to whole embeddings, cut into patches.

```
image ── smart_size ── bicubic ──> [H, W, 3] ── patches in merge-major order ──> uint8 [gh * gw, 3 * patch * patch]
```

The patches of one embedding (`merge` x `merge`) follow each other, embeddings go row by row, and the numbers of a patch
are channel-major. Pixels stay whole numbers here: they are normalised where the tower runs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from photonlite.errors import ConfigError, ImageShapeError, ImageTooLargeError
from photonlite.image_inputs import PatchImage
from photonlite.images.crops import Allocator, allocate_array
from photonlite.images.resize import RunTasks
from photonlite.models.processors import check_processor
from photonlite.models.qwen.config import VisionConfig
from photonlite.models.sections import Section

_MOST_PIXELS = 2**31  # that a limit of pixels may be
MAX_RATIO = 200  # of the longer to the shorter side, as the public image processor has it


@dataclass(frozen=True)
class ImageSettings:
    """A checkpoint's preprocessor_config.json, checked against its vision tower; ConfigError if it does not fit."""

    on_white: ClassVar = True  # as the makers' own client, qwen_vl_utils, draws transparent images
    patch: int
    merge: int
    min_pixels: int  # of a resized image
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def factor(self) -> int:
        return self.patch * self.merge

    @property
    def patch_bytes(self) -> int:
        return 3 * self.patch**2

    @property
    def position_patches(self) -> int:
        return self.merge**2

    @property
    def most_patches(self) -> int:
        """Patches of the largest image."""
        return self.max_pixels // self.patch**2

    @property
    def sight(self) -> int:
        """Pixels along a side of a square image that is read without being shrunk."""
        return math.isqrt(self.max_pixels) // self.factor * self.factor

    @property
    def least_positions(self) -> int:
        """Positions that an image takes at least; rounding down what is shrunk leaves a quarter of the most."""
        return max(1, min(-(-self.min_pixels // self.factor**2), self.max_pixels // (4 * self.factor**2)))

    def positions_of(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of positions that an image of a width and height takes; may raise ImageError."""
        height, width = smart_size(size[1], size[0], self)
        return height // self.factor, width // self.factor

    def cut(self, image: Image.Image, *, threads: int, run_tasks: RunTasks, buffer: Allocator) -> PatchImage:
        """Cut an RGB image into patches, in memory from `buffer`; see `cut_patches`."""
        return cut_patches(image, self, buffer)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], vision: VisionConfig) -> "ImageSettings":
        sizes = {"patch_size": vision.patch, "merge_size": vision.merge, "temporal_patch_size": vision.frames}
        check_processor(raw, sizes)
        least = _pixels(raw, "min_pixels", "shortest_edge")
        most = _pixels(raw, "max_pixels", "longest_edge")
        if not vision.factor**2 <= most or least > most:
            raise ConfigError(
                f"the image processor resizes to {least} to {most} pixels: the upper limit must be at least "
                f"{vision.factor**2}, one embedding, and not below the lower one"
            )
        std = _channels(raw, "image_std")
        if min(std) <= 0:
            raise ConfigError(f"image_std of the image processor is {list(std)}: each number must be above 0")
        return cls(vision.patch, vision.merge, least, most, _channels(raw, "image_mean"), std)


def smart_size(height: int, width: int, settings: ImageSettings) -> tuple[int, int]:
    """Return height and width of the resized image: multiples of one embedding, within the limits of pixels.

    The rule and its roundings are the public image processor's. Raises an ImageShapeError for a strip of more than
    `MAX_RATIO` to 1.
    """
    if max(height, width) > MAX_RATIO * min(height, width):
        raise ImageShapeError(
            f"the image has {width} x {height} pixels: this model takes sides of at most {MAX_RATIO} to 1; "
            "pad or crop the image"
        )
    factor = settings.factor
    rows, columns = round(height / factor), round(width / factor)  # half to even
    if rows * columns * factor**2 > settings.max_pixels:
        shrink = math.sqrt(height * width / settings.max_pixels)
        rows, columns = (max(1, math.floor(side / shrink / factor)) for side in (height, width))
    elif rows * columns * factor**2 < settings.min_pixels:
        grow = math.sqrt(settings.min_pixels / (height * width))
        rows, columns = (math.ceil(side * grow / factor) for side in (height, width))
    return rows * factor, columns * factor


def cut_patches(image: Image.Image, settings: ImageSettings, buffer: Allocator = allocate_array) -> PatchImage:
    """Resize an RGB image and cut it into patches; ImageShapeError or ImageTooLargeError if it cannot be resized."""
    if image.mode != "RGB":
        raise ImageShapeError(f"patches are cut from RGB, not from mode {image.mode}: open the image with load_image")
    height, width = smart_size(image.height, image.width, settings)
    try:
        resized = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    except MemoryError as cause:
        raise ImageTooLargeError(f"an image of {width} x {height} pixels does not fit the memory") from cause
    patch, merge = settings.patch, settings.merge
    rows, columns = height // patch, width // patch
    split = resized.reshape(rows // merge, merge, patch, columns // merge, merge, patch, 3)
    pixels = split.transpose(0, 3, 1, 4, 6, 2, 5)
    patches = buffer((rows * columns, settings.patch_bytes))
    patches.reshape(pixels.shape)[...] = pixels
    return PatchImage(patches, (rows, columns))


def _pixels(raw: Mapping[str, Any], name: str, edge: str) -> int:
    """Read a number of pixels by its own name, or, as newer libraries write it, as an edge in `size`."""
    sizes = raw.get("size")
    value = sizes.get(edge) if raw.get(name) is None and isinstance(sizes, Mapping) else raw.get(name)
    if value is None:
        raise ConfigError(f"the image processor has neither {name} nor size.{edge}: use the file of this checkpoint")
    return Section("image processor", {name: value}).whole(name, most=_MOST_PIXELS)


def _channels(raw: Mapping[str, Any], name: str) -> tuple[float, float, float]:
    value = raw.get(name)
    if (
        not isinstance(value, list | tuple)
        or len(value) != 3
        or any(isinstance(one, bool) or not isinstance(one, int | float) or not math.isfinite(one) for one in value)
    ):
        raise ConfigError(f"{name} of the image processor is {value!r:.60}: it must be a list of three numbers")
    return float(value[0]), float(value[1]), float(value[2])
