"""The README's pictures: a desk, a market table and a street, laid out by hand from the objects of the vocabulary.

`python -m bench.nano.demo` writes assets/desk.png, assets/market.png and assets/street.png, and in assets/stills.json
what is where in them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from bench.nano.demo_backdrops import desk_backdrop, market_backdrop, street_backdrop
from bench.nano.objects import SceneObject, index_of, load_objects
from bench.nano.pasting import Canvas, Placed, make_tile
from bench.nano.sprites import Sprites, render_sprites

ASSETS = Path(__file__).parents[2] / "assets"
SIZE = (960, 640)
# Just above the font's own resolution: the one enlargement to the final size is done by `make_tile`.
_SPRITE = 136


@dataclass(frozen=True)
class Item:
    """An object of a picture: x of its middle and y of its foot in fractions, longer side as a share of the height."""

    name: str
    x: float
    foot: float
    size: float
    angle: float = 0.0
    mirror: bool = False


@dataclass(frozen=True)
class Still:
    """A picture: its backdrop, its objects from back to front, and whether they lie flat or stand."""

    name: str
    backdrop: Callable[[int, int], Image.Image]
    items: tuple[Item, ...]
    flat: bool = False


DESK = Still(
    "desk",
    desk_backdrop,
    (
        Item("books", 0.155, 0.715, 0.33),
        Item("laptop", 0.44, 0.735, 0.45),
        Item("light bulb", 0.665, 0.685, 0.23),
        Item("clock", 0.85, 0.70, 0.27),
        Item("cup", 0.69, 0.90, 0.25),
        Item("camera", 0.19, 0.925, 0.23, angle=4),
        Item("scissors", 0.37, 0.955, 0.18, angle=-20),
        Item("banana", 0.53, 0.95, 0.22),
        Item("red apple", 0.91, 0.90, 0.20),
        Item("banana", 0.815, 0.965, 0.19, angle=14, mirror=True),
    ),
)

MARKET = Still(
    "market",
    market_backdrop,
    (
        Item("pineapple", 0.13, 0.53, 0.45, angle=8),
        Item("watermelon", 0.37, 0.47, 0.36, angle=-6),
        Item("grapes", 0.62, 0.50, 0.36),
        Item("broccoli", 0.86, 0.48, 0.34),
        Item("tangerine", 0.30, 0.74, 0.21),
        Item("tangerine", 0.44, 0.76, 0.20, angle=-14),
        Item("tangerine", 0.36, 0.92, 0.21, angle=10),
        Item("carrot", 0.62, 0.87, 0.31),
        Item("carrot", 0.76, 0.93, 0.29, angle=-12),
        Item("strawberry", 0.12, 0.87, 0.24, angle=-8),
    ),
    flat=True,
)

STREET = Still(
    "street",
    street_backdrop,
    (
        Item("sun", 0.86, 0.27, 0.22),
        Item("house", 0.335, 0.655, 0.36),
        Item("tree", 0.14, 0.67, 0.41),
        Item("tree", 0.56, 0.65, 0.34, mirror=True),
        Item("balloon", 0.69, 0.34, 0.19, angle=-8),
        Item("bus", 0.25, 0.855, 0.36),
        Item("car", 0.575, 0.85, 0.22),
        Item("bicycle", 0.81, 0.67, 0.24),
        Item("car", 0.83, 0.955, 0.26, mirror=True),
        Item("dog", 0.44, 0.965, 0.17),
    ),
)

STILLS = (DESK, MARKET, STREET)


def compose(still: Still, objects: Sequence[SceneObject], sprites: Sprites) -> tuple[Image.Image, tuple[Placed, ...]]:
    """Draw a picture.

    Args:
        still: What to draw.
        objects: The classes.
        sprites: Straight RGBA in the order of `objects`, uint8 [n, s, s, 4].

    Returns:
        RGB of `SIZE`, and where each item can be seen.

    Raises:
        ValueError: An item is in no list of objects, or not wholly inside the picture.
    """
    width, height = SIZE
    canvas = Canvas.on(still.backdrop(width, height))
    for item in still.items:
        index = index_of(item.name, objects)
        if index is None:
            raise ValueError(f"{still.name}: no object is called {item.name!r}")
        tile = make_tile(sprites[index], round(item.size * height), item.angle, item.mirror)
        left, top = round(item.x * width - tile.width / 2), round(item.foot * height - tile.height)
        if left < 0 or top < 0 or left + tile.width > width or top + tile.height > height:
            raise ValueError(f"{still.name}: {item.name} at {item.x}, {item.foot} reaches beyond the picture")
        shade = _flat_shadow(tile) if still.flat else _standing_shadow(tile)
        if still.flat or item.foot > _HORIZON:
            _darken(canvas.image, shade, left, top)
        canvas.paste(index, tile, left, top)
    return canvas.image, canvas.placed()


# Above it things hang in the air and cast no shadow.
_HORIZON = 0.5
_RIM = 40


def _flat_shadow(tile: Image.Image) -> Image.Image:
    """Give the shadow of a thing seen from above, lit from the upper left: L, `_RIM` wider on every side."""
    shade = Image.new("L", (tile.width + 2 * _RIM, tile.height + 2 * _RIM))
    shade.paste(tile.getchannel("A").point([alpha * 2 // 5 for alpha in range(256)]), (_RIM + 7, _RIM + 10))
    return shade.filter(ImageFilter.GaussianBlur(9))


def _standing_shadow(tile: Image.Image) -> Image.Image:
    """Give the shadow at the foot of a thing that stands: L, `_RIM` wider on every side."""
    # The foot is as wide as the lowest tenth of what is visible.
    foot = np.flatnonzero((np.asarray(tile.getchannel("A"))[-max(2, tile.height // 10) :] > 127).any(axis=0))
    shade = Image.new("L", (tile.width + 2 * _RIM, tile.height + 2 * _RIM))
    left, right, ground = _RIM + int(foot[0]) - 4, _RIM + int(foot[-1]) + 10, _RIM + tile.height
    depth = max(5, (right - left) // 16)
    draw = ImageDraw.Draw(shade)
    draw.ellipse((left - depth, ground - 2 * depth, right + depth, ground + depth), fill=95)
    draw.ellipse((left, ground - depth, right, ground + depth // 2), fill=150)
    return shade.filter(ImageFilter.GaussianBlur(5))


def _darken(image: Image.Image, shade: Image.Image, left: int, top: int) -> None:
    image.paste((28, 20, 24), (left - _RIM, top - _RIM), shade)


def write_stills(folder: Path = ASSETS) -> None:
    """Write all pictures and the boxes of what can be seen in them; needs the font."""
    objects = load_objects()
    sprites = render_sprites(objects, _SPRITE)
    truth = {}
    for still in STILLS:
        image, placed = compose(still, objects, sprites)
        image.save(folder / f"{still.name}.png", optimize=True)
        truth[still.name] = [
            {"name": objects[item.index].name, "box": item.box, "extent": item.extent} for item in placed
        ]
    (folder / "stills.json").write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_stills()
