"""Images as the vision tower reads them: resized to one square, whatever their shape, and cut into patches.

```
image ── bicubic ──> [S, S, 3] ── patches row by row, the numbers of each channel-major ──> uint8 [g * g, 3 * p * p]
```

Pixels stay whole numbers here: they are normalised where the tower runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from photonlite.errors import ImageShapeError, ImageTooLargeError
from photonlite.image_inputs import PatchImage
from photonlite.images.crops import Allocator, allocate_array
from photonlite.images.resize import RunTasks
from photonlite.models.paligemma.config import VisionConfig
from photonlite.models.processors import check_processor

MEAN = STD = 0.5  # of every channel


@dataclass(frozen=True)
class SquareImages:
    """How images are cut, see `models.base.PatchSpec`: all of them have the same number of positions."""

    side: int  # of the resized image, in pixels
    patch: int  # side of a patch, in pixels
    merge: ClassVar[int] = 1
    position_patches: ClassVar[int] = 1
    on_white: ClassVar = False

    @property
    def grid(self) -> int:
        return self.side // self.patch

    @property
    def positions(self) -> int:
        return self.grid**2

    @property
    def patch_bytes(self) -> int:
        return 3 * self.patch**2

    @property
    def most_patches(self) -> int:
        return self.positions

    @property
    def sight(self) -> int:
        return self.side

    def positions_of(self, size: tuple[int, int]) -> tuple[int, int]:
        return self.grid, self.grid

    def cut(self, image: Image.Image, *, threads: int, run_tasks: RunTasks, buffer: Allocator) -> PatchImage:
        """Cut an RGB image into patches, in memory from `buffer`; see `cut_patches`."""
        return cut_patches(image, self, buffer)

    def check(self, raw: Mapping[str, Any]) -> None:
        """Raise ConfigError if a preprocessor_config.json asks for something else than this module does."""
        size = {"height": self.side, "width": self.side}
        check_processor(raw, {"size": size, "image_mean": [MEAN] * 3, "image_std": [STD] * 3})

    @classmethod
    def of(cls, vision: VisionConfig) -> "SquareImages":
        return cls(vision.side, vision.patch)


def cut_patches(image: Image.Image, spec: SquareImages, buffer: Allocator = allocate_array) -> PatchImage:
    """Resize an RGB image and cut it into patches; ImageShapeError or ImageTooLargeError if it cannot be resized."""
    if image.mode != "RGB":
        raise ImageShapeError(f"patches are cut from RGB, not from mode {image.mode}: open the image with load_image")
    grid, patch = spec.grid, spec.patch
    try:
        resized = np.asarray(image.resize((spec.side, spec.side), Image.Resampling.BICUBIC))
    except MemoryError as cause:  # of a strip, whose longer side stays as it is at first
        raise ImageTooLargeError(
            f"resizing an image of {image.width} x {image.height} pixels does not fit the memory: crop it"
        ) from cause
    pixels = resized.reshape(grid, patch, grid, patch, 3).transpose(0, 2, 4, 1, 3)
    patches = buffer((spec.positions, spec.patch_bytes))
    patches.reshape(pixels.shape)[...] = pixels
    return PatchImage(patches, (grid, grid))
