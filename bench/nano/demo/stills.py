"""The README's images: a desk, a market table and a street, laid out by hand from the objects of the vocabulary.

`python -m bench.nano.demo` writes assets/desk.png, assets/market.png and assets/street.png, and the boxes of their
objects to assets/stills.json. It needs the font.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from bench.nano import ROOT
from bench.nano.demo.backdrops import desk_backdrop, market_backdrop, street_backdrop
from bench.nano.demo.light import crisp_sprites, light_corner, shade_flat, shade_standing
from bench.nano.scenes.held_out.scene import Canvas, PlacedObject, make_tile

ASSETS = ROOT / "assets"
SIZE = (960, 640)
_HORIZON = 0.5  # objects whose foot is above it hang in the air and cast no shadow


@dataclass(frozen=True)
class Item:
    """An object of an image: x of its middle and y of its foot in fractions, longer side as a share of the height."""

    name: str
    x: float
    foot: float
    size: float
    angle: float = 0.0
    mirror: bool = False


@dataclass(frozen=True)
class Still:
    name: str  # of its file
    backdrop: Callable[[int, int], Image.Image]  # draws what is behind the objects; width and height in pixels
    items: tuple[Item, ...]  # from back to front
    light: tuple[float, float]  # the brightest place, in fractions of the image
    lean: tuple[float, float] | None = None  # of the shadows of standing objects; None where objects lie flat


STILLS = (
    Still(
        "desk",
        desk_backdrop,
        (
            Item("potted plant", 0.125, 0.615, 0.37),
            Item("books", 0.285, 0.685, 0.26),
            Item("laptop", 0.515, 0.685, 0.44),
            Item("light bulb", 0.73, 0.635, 0.22),
            Item("clock", 0.885, 0.66, 0.28),
            Item("camera", 0.17, 0.925, 0.24, angle=4),
            Item("banana", 0.40, 0.955, 0.24, angle=-6),
            Item("cup", 0.60, 0.89, 0.24),
            Item("red apple", 0.885, 0.885, 0.20),
            Item("banana", 0.765, 0.965, 0.21, angle=14, mirror=True),
        ),
        light=(0.55, 0.35),
        lean=(0.55, -0.2),
    ),
    Still(
        "market",
        market_backdrop,
        (
            Item("pineapple", 0.125, 0.60, 0.45, angle=10),
            Item("watermelon", 0.365, 0.405, 0.36, angle=-8),
            Item("grapes", 0.625, 0.44, 0.37, angle=4),
            Item("broccoli", 0.875, 0.43, 0.33, angle=-6),
            Item("strawberry", 0.125, 0.93, 0.25, angle=-10),
            Item("tangerine", 0.37, 0.70, 0.19, angle=6),
            Item("tangerine", 0.545, 0.695, 0.18, angle=-14),
            Item("tangerine", 0.365, 0.94, 0.18, angle=-8),
            Item("tangerine", 0.535, 0.945, 0.19, angle=12),
            Item("carrot", 0.82, 0.88, 0.40, angle=8),
        ),
        light=(0.3, 0.3),
    ),
    Still(
        "street",
        street_backdrop,
        (
            Item("sun", 0.885, 0.25, 0.20),
            Item("balloon", 0.70, 0.36, 0.19, angle=-8),
            Item("house", 0.34, 0.665, 0.40),
            Item("tree", 0.15, 0.675, 0.43),
            Item("tree", 0.575, 0.66, 0.33, mirror=True),
            Item("bicycle", 0.80, 0.685, 0.24),
            Item("bus", 0.30, 0.845, 0.38),
            Item("car", 0.60, 0.835, 0.24),
            Item("mailbox", 0.085, 0.985, 0.21),
            Item("car", 0.835, 0.935, 0.29, mirror=True),
        ),
        light=(0.9, 0.05),
        lean=(-0.5, 0.2),
    ),
)


def compose(still: Still) -> tuple[Image.Image, tuple[PlacedObject, ...]]:
    """Draw an image, RGB of `SIZE`, and measure the visible box of each item."""
    width, height = SIZE
    canvas = Canvas.on(still.backdrop(width, height))
    sprites = crisp_sprites([item.name for item in still.items])
    for place, (item, sprite) in enumerate(zip(still.items, sprites, strict=True)):
        tile = make_tile(np.asarray(sprite), round(item.size * height), item.angle, item.mirror)
        left, top = round(item.x * width - tile.width / 2), round(item.foot * height - tile.height)
        if left < 0 or top < 0 or left + tile.width > width or top + tile.height > height:
            raise ValueError(f"{still.name}: {item.name} at {item.x}, {item.foot} reaches beyond the image; move it")
        if still.lean is None:
            shade_flat(canvas.image, tile, left, top)
        elif item.foot > _HORIZON:
            shade_standing(canvas.image, tile, left, top, still.lean)
        canvas.paste(place, tile, left, top)
    return light_corner(canvas.image, still.light), canvas.placed()


def write_stills(folder: Path = ASSETS) -> None:
    truth = {}
    for still in STILLS:
        image, placed = compose(still)
        image.save(folder / f"{still.name}.png", optimize=True)
        truth[still.name] = [
            {"name": still.items[seen.index].name, "box": seen.box, "extent": seen.extent} for seen in placed
        ]
    (folder / "stills.json").write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")
