"""Frames of objects that move on a desk, seen by a camera that sways, with the true boxes of each frame."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from bench.nano.demo.backdrops import DESK_EDGE, desk_backdrop
from bench.nano.demo.light import crisp_sprites, shade_standing
from bench.nano.scenes.held_out.scene import MIN_PIXELS, Box, Canvas, visible_bounds

# The backdrop reaches this far beyond the frame on both sides, as a share of its width.
_MARGIN = 0.08
# How far the camera sways, and how much of that the wall moves: it is farther away than the desk's front edge.
_SWAY, _FAR = 0.028, 0.35
_LEAN = (0.55, -0.2)


@dataclass(frozen=True)
class Pose:
    """Where an object is: x of its middle and y of its foot in fractions, degrees anticlockwise, whether it flies."""

    x: float
    foot: float
    angle: float = 0.0
    flies: bool = False


@dataclass(frozen=True)
class Actor:
    name: str  # of the vocabulary
    size: float  # longer side of its visible pixels, as a share of the frame's height
    pose: Callable[[float], Pose]  # by time, from 0 to 1 of the clip; it may be outside the frame
    mirror: bool = False  # whether left and right are swapped


@dataclass(frozen=True)
class VisibleObject:
    id: int  # place of the actor
    name: str
    box: Box  # (x_min, y_min, x_max, y_max) of its visible pixels, in fractions of the frame
    visible: float  # share of its pixels that can be seen; the others are covered or outside the frame


@dataclass(frozen=True)
class Frame:
    image: Image.Image
    seen: tuple[VisibleObject, ...]
    owner: npt.NDArray[np.int8]  # index into `seen` of the object that each pixel shows, -1: none; [height, width]


def draw_frames(cast: Sequence[Actor], size: tuple[int, int], count: int) -> Iterator[Frame]:
    """Draw a clip of frames of `size` (width, height) pixels in which the camera sways once; needs the font."""
    sprites = crisp_sprites([actor.name for actor in cast])
    width, height = size
    backdrop = desk_backdrop(round(width * (1 + 2 * _MARGIN)) * 2, height * 2, seed=3)
    for number in range(count):
        yield _draw(cast, sprites, backdrop, number / count, size)


def _draw(
    cast: Sequence[Actor], sprites: Sequence[Image.Image], backdrop: Image.Image, time: float, size: tuple[int, int]
) -> Frame:
    width, height = size
    sway = _SWAY * math.sin(2 * math.pi * time)
    canvas = Canvas.on(_look(backdrop, sway, size))
    whole = []
    for place, (actor, sprite) in enumerate(zip(cast, sprites, strict=True)):
        pose = actor.pose(time)
        x = (pose.x + sway * _nearness(pose.foot)) * width
        tile, left, top = _tile(sprite, actor, pose.angle, (x, pose.foot * height), height)
        whole.append(int((np.asarray(tile.getchannel("A")) > 127).sum()))
        if not pose.flies:
            shade_standing(canvas.image, tile, left, top, _LEAN)
        _paste(canvas, place, tile, left, top)
    seen, owner = list[VisibleObject](), np.full_like(canvas.owner, -1)
    for pasted, (place, *_) in enumerate(canvas.items):
        mask = canvas.owner == pasted
        bounds, pixels = Image.fromarray(mask).getbbox(), int(mask.sum())
        if bounds and pixels >= MIN_PIXELS:
            owner[mask] = len(seen)
            box = (bounds[0] / width, bounds[1] / height, bounds[2] / width, bounds[3] / height)
            seen.append(VisibleObject(place, cast[place].name, box, pixels / whole[place]))
    return Frame(canvas.image, tuple(seen), owner)


def _nearness(foot: float) -> float:
    """Return the share of the camera's movement that a place shows; on the desk it grows evenly down the image."""
    return _FAR + (1 - _FAR) * max(foot - DESK_EDGE, 0) / (1 - DESK_EDGE)


def _look(backdrop: Image.Image, sway: float, size: tuple[int, int]) -> Image.Image:
    """Return the part of the backdrop that the camera sees: the wall moved, the desk sheared, reduced by two."""
    width, height = (2 * side for side in size)
    margin = (backdrop.width - width) / 2
    edge = round(height * DESK_EDGE)
    view = Image.new("RGB", (width, height))
    for top, bottom in ((0, edge), (edge, height)):
        near, far = _nearness(top / height), _nearness((bottom if bottom > edge else top) / height)
        slope = -sway * width * (far - near) / (bottom - top)
        matrix = (1.0, slope, margin - sway * width * near, 0.0, 1.0, float(top))
        part = backdrop.transform((width, bottom - top), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
        view.paste(part, (0, top))
    return view.reduce(2)


def _tile(
    sprite: Image.Image, actor: Actor, angle: float, foot: tuple[float, float], height: int
) -> tuple[Image.Image, int, int]:
    """Turn, scale and place an object to fractions of a pixel, so that slow movement is smooth.

    Returns straight RGBA and the whole pixels of its left and upper edges.
    """
    image = sprite.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if actor.mirror else sprite
    x0, y0, x1, y1 = visible_bounds(image)
    scale = actor.size * height / max(x1 - x0, y1 - y0)
    # It turns about the middle of its visible pixels, and stands on its own lower edge whatever its angle.
    middle = ((x0 + x1) / 2, (y0 + y1) / 2)
    room = math.ceil(math.hypot(x1 - x0, y1 - y0) / 2 + 2 / scale)
    square = Image.new("RGBA", (2 * room, 2 * room))
    square.paste(image.crop((x0, y0, x1, y1)), (round(room + x0 - middle[0]), round(room + y0 - middle[1])))
    if angle:
        square = square.rotate(angle, Image.Resampling.BICUBIC)
    centre = foot[1] - (visible_bounds(square)[3] - room) * scale
    reach = math.floor(room * scale) - 1
    left, top = math.floor(foot[0]) - reach, math.floor(centre) - reach
    # The part of the enlarged square that the whole pixels of the tile show.
    start = (room + (left - foot[0]) / scale, room + (top - centre) / scale)
    span = 2 * reach / scale
    window = (max(start[0], 0), max(start[1], 0), min(start[0] + span, 2 * room), min(start[1] + span, 2 * room))
    tile = square.resize((2 * reach, 2 * reach), Image.Resampling.LANCZOS, box=window)
    inside = visible_bounds(tile)
    return tile.crop(inside), left + inside[0], top + inside[1]


def _paste(canvas: Canvas, place: int, tile: Image.Image, left: int, top: int) -> None:
    """Paste the part of a tile that lies inside the image."""
    x0, y0 = max(left, 0), max(top, 0)
    x1, y1 = min(left + tile.width, canvas.image.width), min(top + tile.height, canvas.image.height)
    if x0 < x1 and y0 < y1:
        canvas.paste(place, tile.crop((x0 - left, y0 - top, x1 - left, y1 - top)), x0, y0)
