"""Sprites on images: turned, scaled and pasted, with the visible box of each."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from bench.nano.scenes.sprites import Sprites

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class PlacedObject:
    index: int  # Class index: its place in the list of objects
    box: Box  # (x_min, y_min, x_max, y_max) of the pixels that can be seen, in fractions of the image
    extent: Box  # The same for all of its pixels, before anything covers it
    visible: float  # Share of its pixels that can be seen


@dataclass
class Canvas:
    """An image under construction: what is painted, and who owns each pixel."""

    image: Image.Image  # RGB
    owner: npt.NDArray[np.int8]  # Int8 [height, width], -1 where nothing was pasted
    items: list[tuple[int, Image.Image, int, int]]  # What was pasted so far: class index, tile, left, top

    @classmethod
    def on(cls, background: Image.Image) -> "Canvas":
        return cls(background, np.full((background.height, background.width), -1, np.int8), [])

    def paste(self, index: int, tile: Image.Image, left: int, top: int) -> None:
        """Paint a straight RGBA tile with its upper left corner at (left, top), wholly inside the image."""
        alpha = tile.getchannel("A")
        self.image.paste(tile.convert("RGB"), (left, top), alpha)
        region = self.owner[top : top + tile.height, left : left + tile.width]
        region[np.asarray(alpha) > 127] = len(self.items)
        self.items.append((index, tile, left, top))

    def placed(self) -> tuple[PlacedObject, ...]:
        """Measure what of each object can be seen."""
        return tuple(self._measure(place) for place in range(len(self.items)))

    def _measure(self, place: int) -> PlacedObject:
        index, tile, left, top = self.items[place]
        seen = self.owner[top : top + tile.height, left : left + tile.width] == place
        rows, columns = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
        if not len(rows):
            raise ValueError(f"object {place} (class {index}) is wholly covered")
        box = self._fractions(left, top, (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
        extent = self._fractions(left, top, visible_bounds(tile))
        pixels = int((np.asarray(tile.getchannel("A")) > 127).sum())
        return PlacedObject(index, box, extent, float(seen.sum()) / pixels)

    def _fractions(self, left: int, top: int, bounds: tuple[int, int, int, int]) -> Box:
        x0, y0, x1, y1 = (int(bound) for bound in bounds)
        height, width = self.owner.shape
        return (left + x0) / width, (top + y0) / height, (left + x1) / width, (top + y1) / height


def visible_bounds(tile: Image.Image) -> tuple[int, int, int, int]:
    """Bound the pixels of an RGBA tile with alpha above one half: left, top, right, bottom (exclusive)."""
    bounds = tile.getchannel("A").point([0] * 128 + [255] * 128).getbbox()
    if bounds is None:
        raise ValueError("the sprite has no visible pixel")
    return bounds


def make_tile(sprite: Sprites, side: int, angle: float, mirror: bool) -> Image.Image:
    """Turn a sprite and scale it so that the longer side of what is visible of it measures `side` pixels. `sprite`:
    straight RGBA, uint8 [s, s, 4]. Returns straight RGBA, cut to its visible pixels with a soft rim of at most a few
    pixels.
    """
    image = Image.fromarray(sprite)
    if mirror:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    turned = image.rotate(angle, Image.Resampling.BICUBIC, expand=True)
    x0, y0, x1, y1 = visible_bounds(turned)
    scale = side / max(x1 - x0, y1 - y0)
    size = (max(1, round((x1 - x0) * scale)), max(1, round((y1 - y0) * scale)))
    kernel = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    return turned.resize(size, kernel, box=(x0, y0, x1, y1))
