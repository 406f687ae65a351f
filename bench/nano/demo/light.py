"""Light and shadow of the demo images: objects enlarged with crisp edges, shadows on table and ground, a lit corner."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from bench.nano.scenes.objects import index_of, load_objects
from bench.nano.scenes.sprites import Sprites, render_sprites

_INK = (30, 20, 30)
_SPRITE = 111  # the font's own resolution, pixels
_ENLARGED = 4
# The difference of two blurs (radii in enlarged pixels) sharpens an enlarged sprite; this much of it is added.
_NARROW, _WIDE, _SHARPEN = 1.2, 4.5, 0.9
_WARM, _DARK = 0.05, 0.1


def crisp_sprites(names: Sequence[str]) -> list[Image.Image]:
    """Draw objects by name, each as straight RGBA of 444 x 444 pixels; needs the font."""
    places = [index_of(name) for name in names]
    if None in places:
        raise ValueError(f"no object is called {names[places.index(None)]!r}")
    objects = [load_objects()[place] for place in places if place is not None]
    return [crisp(sprite) for sprite in render_sprites(objects, _SPRITE)]


def crisp(sprite: Sprites) -> Image.Image:
    """Enlarge straight RGBA, uint8 [s, s, 4], fourfold with sharp edges."""
    side = sprite.shape[0] * _ENLARGED
    # Kernels that overshoot would brighten the rim: alpha is cut at its maximum and colours are not.
    large = Image.fromarray(sprite).resize((side, side), Image.Resampling.BILINEAR)
    narrow, cover = _blurred(large, _NARROW)
    wide, _ = _blurred(large, _WIDE)
    colour = np.clip(narrow + _SHARPEN * (narrow - wide), 0, 255)
    # The steps of the font's pixels become a straight edge of one to two pixels.
    alpha = np.clip((cover - 0.5) * 3 + 0.5, 0, 1) * 255
    return Image.fromarray(np.dstack((colour, alpha)).round().astype(np.uint8))


def _blurred(image: Image.Image, radius: float) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    """Blur straight RGBA by coverage: colours [h, w, 3] in 0..255 and coverage [h, w] in 0..1."""
    weighted = Image.frombytes("RGBA", image.size, image.convert("RGBa").tobytes())
    soft = np.asarray(weighted.filter(ImageFilter.GaussianBlur(radius))).astype(np.float32)
    cover = soft[..., 3] / 255
    # Avoid a division by zero far outside, where colours are invisible.
    return soft[..., :3] / np.maximum(cover, 1 / 255)[..., None], cover


def shade_flat(image: Image.Image, tile: Image.Image, left: int, top: int) -> None:
    """Draw the shadow of an object that lies on a table seen from above, lit from the upper left."""
    height = max(tile.size)
    for share, offset, blur in ((0.34, 0.02, 3.0), (0.30, 0.06, 10.0)):
        rim = round(3 * blur)
        shade = Image.new("L", (tile.width + 2 * rim, tile.height + 2 * rim))
        shade.paste(tile.getchannel("A").point([round(alpha * share) for alpha in range(256)]), (rim, rim))
        move = round(offset * height)
        image.paste(_INK, (left - rim + move, top - rim + round(1.3 * move)), _soft(shade, blur))


def shade_standing(image: Image.Image, tile: Image.Image, left: int, top: int, lean: tuple[float, float]) -> None:
    """Draw the shadow that a standing object throws on the ground, and the dark line on which it stands.

    `lean`: where the shadow of a point one pixel above the foot falls, pixels to the right and down.
    """
    across, down = lean
    far = round(abs(across) * tile.height) + 1
    deep, rim = max(1, round(abs(down) * tile.height)), 16
    size = (tile.width + 2 * (far + rim), deep + 2 * rim)
    # The foot lies on the shadow's near edge: its upper one where the light comes from behind.
    foot = rim if down > 0 else rim + deep
    slope = across / down
    # Source x = X - across / down * (Y - foot), source y = height - (Y - foot) / down.
    turn = (1.0, -slope, slope * foot - far - rim, 0.0, -1 / down, tile.height + foot / down)
    shade = tile.getchannel("A").transform(size, Image.Transform.AFFINE, turn, Image.Resampling.BILINEAR)
    distance = np.abs(np.arange(size[1]) - foot)[:, None] / deep
    fading = np.asarray(shade) * 0.36 * np.clip(1 - 0.55 * distance, 0, 1)
    shade = Image.fromarray(fading.round().astype(np.uint8))
    image.paste(_INK, (left - far - rim, top + tile.height - foot), _soft(shade, 4))
    _shade_foot(image, tile, left, top)


def _shade_foot(image: Image.Image, tile: Image.Image, left: int, top: int) -> None:
    # The foot is as wide as the lowest tenth of the visible pixels.
    foot = np.flatnonzero((np.asarray(tile.getchannel("A"))[-max(2, tile.height // 10) :] > 127).any(axis=0))
    if not len(foot):
        return
    rim = 24
    shade = Image.new("L", (tile.width + 2 * rim, 3 * rim))
    start, end, depth = rim + int(foot[0]), rim + int(foot[-1]), max(3, int(foot[-1] - foot[0]) // 22)
    ImageDraw.Draw(shade).ellipse((start - 2, rim - 2 * depth, end + 4, rim + depth), fill=150)
    image.paste(_INK, (left - rim, top + tile.height - rim), _soft(shade, max(2, depth * 0.7)))


def light_corner(image: Image.Image, corner: tuple[float, float]) -> Image.Image:
    """Make an image warmer and brighter near a place (in fractions of the image), and darker far from it."""
    rows, columns = (np.linspace(0, 1, side, dtype=np.float32) for side in (image.height, image.width))
    distance = np.hypot((columns - corner[0])[None], (rows - corner[1])[:, None])
    nearness = np.clip(1 - distance / distance.max(), 0, 1)
    nearness = nearness * nearness * (3 - 2 * nearness)
    gain = 1 - _DARK + (_DARK + _WARM * np.array((1, 0.85, 0.33), np.float32)) * nearness[..., None]
    return Image.fromarray(np.clip(np.asarray(image) * gain, 0, 255).astype(np.uint8))


def _soft(shade: Image.Image, radius: float) -> Image.Image:
    return shade.filter(ImageFilter.GaussianBlur(radius))
