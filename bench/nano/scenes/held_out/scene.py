"""Held-out scenes: images with known contents on which the checkpoint is judged.

Drawn at full image resolution on the CPU with numpy and Pillow, by code that shares nothing with the training
generator but the sprites: other layouts, other backgrounds, real rotation and resampling, real JPEG files.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from contourpy import LineType, contour_generator
from PIL import Image, ImageFilter

from bench.nano.scenes.held_out.arrangement import Arrangement
from bench.nano.scenes.held_out.backgrounds import HELD_OUT_BACKGROUNDS, TRAINED_BACKGROUNDS, paint_background
from bench.nano.scenes.held_out.clutter import draw_clutter, sprinkle
from bench.nano.scenes.objects import SceneObject
from bench.nano.scenes.sprites import Sprites
from photonlite.results.rings import signed_area

CROWDS = ((10, 0.5), (25, 0.25), (50, 0.25))  # most objects of a crowd, and the share of such scenes
MAX_KINDS = 10
MIN_SIDE, MAX_SIDE = 160, 1600  # of an image, pixels
MIN_SHARE, MAX_SHARE = 0.04, 0.9  # of the image's short side
MIN_PIXELS = 16
MAX_OVERLAP = 0.3
MAX_HEAPED_OVERLAP = 0.5
MAX_ANGLE = 25.0
_ANY_ANGLE = 0.2  # of the scenes turn objects by any angle
_CLUTTERED = 0.4  # of the scenes hold words and drawings
_LEAST_VISIBLE = 0.25  # of each object's pixels
_FILL = 1.2  # longer side at most, times the root of the number of objects

# Of an object, at least this share of pixels must differ this much (of 255) from what is behind, or it cannot be seen.
_MIN_CONTRAST, _MIN_DISTINCT = 20, 0.5
_TRIES = 40
_SHRINKS = 4
_COLOUR_WORDS = frozenset(["red", "orange", "yellow", "green", "blue", "purple", "brown", "black", "white"])

Box = tuple[float, float, float, float]
Outline = npt.NDArray[np.float64]
"""Vertices x and y, [n, 2]."""


@dataclass(frozen=True)
class PlacedObject:
    index: int  # Class index: its place in the list of objects
    box: Box  # (x_min, y_min, x_max, y_max) of the pixels that can be seen, in fractions of the image
    extent: Box  # The same for all of its pixels, before anything covers it
    visible: float  # Share of its pixels that can be seen


@dataclass
class Canvas:
    """An image under construction and the object at each of its pixels."""

    image: Image.Image  # RGB
    owner: npt.NDArray[np.int8]  # Int8 [height, width], -1 where nothing was pasted
    items: list[tuple[int, Image.Image, int, int]]  # What was pasted so far: class index, tile, left, top
    clutter: int = 0  # How many things were pasted that are no objects

    @classmethod
    def on(cls, background: Image.Image) -> "Canvas":
        return cls(background, np.full((background.height, background.width), -1, np.int8), [])

    def paste(self, index: int | None, tile: Image.Image, left: int, top: int) -> None:
        """Paint a straight RGBA tile with its upper left corner at (left, top), wholly inside the image; None for what
        is no object.
        """
        alpha = tile.getchannel("A")
        self.image.paste(tile.convert("RGB"), (left, top), alpha)
        region = self.owner[top : top + tile.height, left : left + tile.width]
        region[np.asarray(alpha) > 127] = -1 if index is None else len(self.items)
        if index is None:
            self.clutter += 1
        else:
            self.items.append((index, tile, left, top))

    def leaves_all_visible(self, tile: Image.Image, left: int, top: int) -> bool:
        """Whether enough of each object would stay visible under a tile."""
        region = self.owner[top : top + tile.height, left : left + tile.width]
        for place in np.unique(region[np.asarray(tile.getchannel("A")) > 127]):
            if place >= 0:
                _, below, x, y = self.items[place]
                seen = self.owner[y : y + below.height, x : x + below.width] == place
                hidden = (region == place) & (np.asarray(tile.getchannel("A")) > 127)
                whole = (np.asarray(below.getchannel("A")) > 127).sum()
                if seen.sum() - hidden.sum() < _LEAST_VISIBLE * whole:
                    return False
        return True

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
    """Turn a sprite, cut it to its visible pixels and scale it to a longer side of `side` pixels, straight RGBA."""
    image = Image.fromarray(sprite)
    if mirror:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    turned = image.rotate(angle, Image.Resampling.BICUBIC, expand=True)
    x0, y0, x1, y1 = visible_bounds(turned)
    scale = side / max(x1 - x0, y1 - y0)
    size = (max(1, round((x1 - x0) * scale)), max(1, round((y1 - y0) * scale)))
    kernel = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    return turned.resize(size, kernel, box=(x0, y0, x1, y1))


@dataclass(frozen=True)
class Scene:
    image: Image.Image  # RGB, decoded from `jpeg`
    objects: tuple[PlacedObject, ...]  # In the order in which they were painted; later ones cover earlier ones
    background: str  # A key of `BACKGROUNDS`
    jpeg: bytes  # The image's file
    owner: npt.NDArray[np.int8]  # Which of `objects` each pixel shows, -1 for the background; int8 [height, width]
    tiles: tuple[tuple[Image.Image, int, int], ...] = ()  # Of each object: straight RGBA, left, top
    arrangement: str = "free"  # One of `arrangement.ARRANGEMENTS`
    turned: bool = False  # Whether objects are turned by any angle
    cluttered: bool = False  # Whether there are words and drawings

    def silhouette(self, place: int) -> list[Outline]:
        """Return closed lines around `objects[place]` as far as its visible box goes, in pixels.

        They go over what covers the object and over its holes.
        """
        tile, left, top = self.tiles[place]
        height, width = self.owner.shape
        sides = (width, height, width, height)
        x0, y0, x1, y1 = (round(edge * side) for edge, side in zip(self.objects[place].box, sides, strict=True))
        alpha = np.pad(np.asarray(tile.getchannel("A"), np.float64)[y0 - top : y1 - top, x0 - left : x1 - left], 1)
        lines = contour_generator(z=alpha, line_type=LineType.Separate).lines(127.5)
        # Outer lines run one way and holes the other.
        closed = [np.asarray(line)[:-1] + np.array([x0 - 0.5, y0 - 0.5]) for line in lines]
        return [line for line in closed if signed_area([(x, y) for x, y in line.tolist()]) > 0]

    def mask(self, place: int) -> npt.NDArray[np.bool_]:
        """Return the visible pixels of `objects[place]`, bool [height, width]."""
        return np.equal(self.owner, place)


def make_scene(
    seed: int,
    objects: Sequence[SceneObject],
    sprites: Sprites,
    *,
    background: str | None = None,
    size: tuple[int, int] | None = None,
    count: int | None = None,
) -> Scene:
    """Compose one scene; the same arguments give the same scene.

    Args:
        seed: Of everything that is not given.
        objects: Objects to choose from.
        sprites: Their sprites, straight RGBA, uint8 [n, s, s, 4].
        background: A key of `BACKGROUNDS`; by default a held-out kind in half of the scenes.
        size: Width and height in pixels.
        count: Number of objects, by default 1 to 50; fewer are placed where no more fit.
    """
    if len(objects) != len(sprites):
        raise ValueError(f"{len(objects)} objects, but {len(sprites)} sprites")
    rng = np.random.default_rng(seed)
    width, height = size or _picture_size(rng)
    kind = background or _background_kind(rng)
    canvas = Canvas.on(Image.fromarray(paint_background(kind, rng, width, height)))
    wanted = count or _crowd(rng)
    layout = _Layout(width, height, Arrangement.drawn(rng, wanted, width, height))
    turned, cluttered = bool(rng.random() < _ANY_ANGLE), bool(rng.random() < _CLUTTERED)
    most = 180.0 if turned else MAX_ANGLE * float(rng.random() < 0.8)
    if cluttered:
        sprinkle(rng, canvas.image)
    for place, index in enumerate(_kinds(rng, len(objects), wanted)):
        steady = not _COLOUR_WORDS.isdisjoint(objects[index].name.split())
        _add(rng, canvas, layout, place, index, _jitter(rng, sprites[index], steady), most)
        if cluttered and rng.random() < 3 / wanted:
            _add(rng, canvas, layout, None, None, draw_clutter(rng), most / 2)
    while not canvas.items:  # nothing stood out against this background: try other kinds
        index = int(rng.integers(len(objects)))
        _add(rng, canvas, layout, None, index, sprites[index], most)
    jpeg = _photograph(rng, canvas.image)
    with Image.open(io.BytesIO(jpeg)) as file:
        image = file.convert("RGB")
    tiles = tuple((tile, left, top) for _, tile, left, top in canvas.items)
    shown = layout.arrangement.name, turned, bool(canvas.clutter)
    return Scene(image, canvas.placed(), kind, jpeg, canvas.owner, tiles, *shown)


def _picture_size(rng: np.random.Generator) -> tuple[int, int]:
    """Choose a size: the longer side log-uniform, half of the images with a common aspect."""
    common = (1.0, 4 / 3, 3 / 2, 16 / 9)
    aspect = float(rng.choice(common)) if rng.random() < 0.5 else float(2 ** rng.uniform(0, 1))
    longer = math.exp(rng.uniform(math.log(MIN_SIDE * aspect), math.log(MAX_SIDE)))
    sides = min(MAX_SIDE, round(longer)), max(MIN_SIDE, math.ceil(longer / aspect))
    return sides if rng.random() < 0.6 else sides[::-1]


def _background_kind(rng: np.random.Generator) -> str:
    kinds = [*(HELD_OUT_BACKGROUNDS if rng.random() < 0.5 else TRAINED_BACKGROUNDS)]
    return kinds[rng.integers(len(kinds))]


def _crowd(rng: np.random.Generator) -> int:
    """Choose how many objects there are."""
    crowd = int(rng.choice(len(CROWDS), p=[share for _, share in CROWDS]))
    return int(rng.integers(CROWDS[crowd - 1][0] + 1 if crowd else 1, CROWDS[crowd][0] + 1))


def _kinds(rng: np.random.Generator, classes: int, count: int) -> list[int]:
    """Choose a class for each object; about half of the scenes repeat one or two of them, and all crowds do."""
    distinct = rng.choice(classes, min(count, MAX_KINDS, classes), replace=False).tolist()
    if count > MAX_KINDS:
        odds = rng.dirichlet(np.full(len(distinct), rng.choice([0.15, 0.5, 3.0])))
        return [int(index) for index in rng.choice(distinct, count, p=odds)]
    if count == 1 or rng.random() > 0.62:
        return [int(index) for index in distinct]
    repeated = distinct[: 1 if rng.random() < 0.7 else 2]
    copies = int(rng.integers(2, count + 1))
    chosen = [repeated[i % len(repeated)] for i in range(copies)] + distinct[len(repeated) :]
    return [int(index) for index in rng.permutation(chosen[:count])]


class _Layout:
    """Finds free places; keeps the boxes (left, top, right, bottom in pixels) that are taken."""

    def __init__(self, width: int, height: int, arrangement: Arrangement) -> None:
        self.width, self.height, self.arrangement = width, height, arrangement
        self.limit = MAX_HEAPED_OVERLAP if arrangement.name == "heap" else MAX_OVERLAP
        self.boxes = np.zeros((0, 4))
        self.covered = np.zeros(0)  # share of each box that later boxes cover

    def smallest(self) -> int:
        return math.ceil(max(MIN_PIXELS, MIN_SHARE * min(self.width, self.height))) + 2

    def largest(self) -> int:
        share = min(MAX_SHARE, _FILL / math.sqrt(self.arrangement.count))
        return max(self.smallest(), math.floor(share * min(self.width, self.height)) - 1)

    def draw_side(self, rng: np.random.Generator) -> float:
        """Choose a longer side: half of them evenly, half by ratio: small ones are neither rare nor the rule."""
        smallest, largest = self.smallest(), self.largest()
        if self.arrangement.pitch:
            return float(np.clip(self.arrangement.pitch * rng.uniform(0.6, 0.95), smallest, largest))
        share = rng.random()
        return (
            smallest + share * (largest - smallest) if rng.random() < 0.5 else smallest * (largest / smallest) ** share
        )

    def fits(self, box: npt.NDArray[np.float64]) -> bool:
        """Whether a box overlaps no other too much, and leaves enough of each uncovered."""
        cover = self._cover(box)
        area = np.prod(self.boxes[:, 2:] - self.boxes[:, :2], axis=1)
        smaller = np.minimum(area, (box[2] - box[0]) * (box[3] - box[1]))
        return bool(np.all(cover <= self.limit * smaller) and np.all(self.covered + cover / area <= self.limit))

    def take(self, box: npt.NDArray[np.float64]) -> None:
        area = np.prod(self.boxes[:, 2:] - self.boxes[:, :2], axis=1)
        self.covered = np.append(self.covered + self._cover(box) / area, 0.0)
        self.boxes = np.vstack([self.boxes, box])

    def _cover(self, box: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        sides = np.minimum(self.boxes[:, 2:], box[2:]) - np.maximum(self.boxes[:, :2], box[:2])
        shared: npt.NDArray[np.float64] = np.prod(np.maximum(sides, 0), axis=1)
        return shared


def _add(
    rng: np.random.Generator,
    canvas: Canvas,
    layout: _Layout,
    place: int | None,
    index: int | None,
    sprite: Sprites,
    most: float,
) -> None:
    """Place one thing, turned by up to `most` degrees, where it fits and stands out, smaller and smaller; leave it out
    where it never does. `place`: of the arrangement, None for anywhere; `index`: its class, None for clutter.
    """
    side, angle, mirror = (
        layout.draw_side(rng),
        rng.uniform(-most, most),
        index is not None and bool(rng.random() < 0.5),
    )
    for _ in range(_SHRINKS):
        tile = make_tile(sprite, round(side), angle, mirror)
        if tile.width < layout.width and tile.height < layout.height:
            for left, top in layout.arrangement.corners(rng, place, tile.width, tile.height, _TRIES):
                box = np.array([left, top, left + tile.width, top + tile.height], np.float64)
                if (
                    layout.fits(box)
                    and _distinct(canvas.image, tile, left, top) >= _MIN_DISTINCT
                    and canvas.leaves_all_visible(tile, left, top)
                ):
                    layout.take(box)
                    canvas.paste(index, tile, left, top)
                    return
        side = max(layout.smallest(), side * 0.65)


def _distinct(image: Image.Image, tile: Image.Image, left: int, top: int) -> float:
    """Return the share of a tile's pixels that stand out, in some channel, from what they would cover."""
    behind = np.asarray(image.crop((left, top, left + tile.width, top + tile.height)), np.int16)
    step = max(1, max(tile.size) // 64)
    front = np.asarray(tile, np.int16)[::step, ::step]
    difference = np.abs(front[..., :3] - behind[::step, ::step]).max(axis=2)
    opaque = front[..., 3] > 127
    return float((difference[opaque] >= _MIN_CONTRAST).mean()) if opaque.any() else 0.0


def _jitter(rng: np.random.Generator, sprite: Sprites, steady_hue: bool) -> Sprites:
    """Vary saturation, contrast, brightness and a little hue of one sprite."""
    colour = sprite[..., :3].astype(np.float32)
    if not steady_hue:
        colour = colour @ _hue_matrix(math.radians(rng.uniform(-8, 8)))
    grey = colour @ np.array([[0.299], [0.587], [0.114]], np.float32)
    colour = grey + (colour - grey) * rng.uniform(0.75, 1.25)
    colour = 128 + (colour - 128) * rng.uniform(0.85, 1.15)
    colour *= rng.uniform(0.8, 1.2)
    return np.dstack([np.clip(colour, 0, 255).astype(np.uint8), sprite[..., 3:]])


def _hue_matrix(angle: float) -> npt.NDArray[np.float32]:
    """Rotate colours around the grey axis (Rodrigues' formula), for rows of RGB."""
    cos, sin = math.cos(angle), math.sin(angle)
    third, skew = (1 - cos) / 3, sin / math.sqrt(3)
    return np.array(
        [
            [cos + third, third + skew, third - skew],
            [third - skew, cos + third, third + skew],
            [third + skew, third - skew, cos + third],
        ],
        np.float32,
    )


def _photograph(rng: np.random.Generator, image: Image.Image) -> bytes:
    """Degrade an image as a camera and a file do (light, tint, blur, noise); return a JPEG file."""
    ramp = (np.arange(256) / 255) ** (2 ** rng.uniform(-0.35, 0.35))
    gains = rng.uniform(0.85, 1.12) * rng.uniform(0.94, 1.06, 3)
    curves = np.clip(ramp * gains[:, None] * 255, 0, 255).round().astype(int)
    image = image.point(curves.ravel().tolist())
    if rng.random() < 0.35:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.0028 * min(image.size) + 0.3)))
    if rng.random() < 0.35:
        pixels = np.asarray(image, np.float32)
        pixels = pixels + rng.standard_normal(pixels.shape, np.float32) * np.float32(rng.uniform(1, 13))
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=int(rng.integers(40, 101)), subsampling=int(rng.choice([0, 2])))
    return file.getvalue()
