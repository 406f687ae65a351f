"""What stands behind the objects of the demo pictures: a wall with a desk, a tablecloth, a street under hills."""

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from bench.nano.scene_drawing import fractal

Colour = tuple[int, int, int]


def desk_backdrop(width: int, height: int) -> Image.Image:
    """Draw a wooden desk before a wall with light from a window."""
    rng = np.random.default_rng(7)
    edge = round(height * 0.58)
    wall = _vertical((216, 229, 227), (192, 211, 208), width, height)
    wall = _window_light(wall)
    wall.paste(_boards(rng, width, height - edge), (0, edge))
    shade = Image.new("L", (width, height))
    draw = ImageDraw.Draw(shade)
    draw.rectangle((0, edge - 3, width, edge + 2), fill=120)
    wall.paste((60, 38, 26), (0, 0), shade.filter(ImageFilter.GaussianBlur(2)))
    return wall


def _window_light(wall: Image.Image) -> Image.Image:
    """Lay four slanted panes of sunlight on the wall."""
    width, height = wall.size
    light = Image.new("L", wall.size)
    draw = ImageDraw.Draw(light)
    for column in range(2):
        for row in range(2):
            x, y = width * (0.52 + 0.15 * column - 0.035 * row), height * (0.05 + 0.235 * row)
            wide, high, slant = width * 0.14, height * 0.22, width * 0.03
            draw.polygon([(x, y), (x + wide, y), (x + wide - slant, y + high), (x - slant, y + high)], fill=110)
    glow = Image.new("RGB", wall.size, (255, 247, 222))
    return Image.composite(glow, wall, light.filter(ImageFilter.GaussianBlur(7)))


def _boards(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Draw boards that get wider towards the viewer."""
    fibre = fractal(rng, height, width, 40, 3, stretch=30)
    flow = fractal(rng, height, width, 3, 3, stretch=6)
    depth = np.linspace(0, 1, height)[:, None]
    board = np.minimum((depth**0.8 * 4).astype(int), 3)
    tint = rng.uniform(-0.05, 0.05, 4)[board]
    light = 0.9 + 0.12 * depth + tint + 0.13 * (fibre - 0.5) + 0.05 * np.sin((flow + board * 0.37) * 40)
    light[1:][board[1:, 0] != board[:-1, 0]] *= 0.72
    return _image(np.array((190, 132, 84)) * light[..., None])


def market_backdrop(width: int, height: int) -> Image.Image:
    """Draw a checked tablecloth with soft folds."""
    rng = np.random.default_rng(11)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    folds = fractal(rng, height, width, 2.2, 2)
    # The folds bend the bands, too; their edges are one pixel soft.
    side = width / 16
    bands = sum(np.clip((abs((axis + 14 * folds) / side % 2 - 1) - 0.5) * side + 0.5, 0, 1) for axis in (x, y)) / 2
    light, dark = np.array((250, 245, 234)), np.array((104, 152, 190))
    mix = (0.72 * bands)[..., None]
    weave = 1 + 0.02 * np.sin(x * 2.1) * np.sin(y * 2.1)
    return _image((light + mix * (dark - light)) * ((0.9 + 0.16 * folds) * weave)[..., None])


def street_backdrop(width: int, height: int) -> Image.Image:
    """Draw sky, hills, a lawn and a road."""
    rng = np.random.default_rng(5)
    picture = _vertical((120, 186, 232), (226, 241, 246), width, height)
    mist = fractal(rng, height, width, 3, 5, stretch=2.5)
    fade = np.linspace(1, 0, height)[:, None] ** 0.5
    veil = Image.fromarray((np.clip((mist - 0.58) * 4, 0, 1) * fade * 190).astype(np.uint8))
    picture.paste((255, 255, 255), (0, 0), veil)
    large = picture.resize((width * 2, height * 2))
    draw = ImageDraw.Draw(large)
    along = np.linspace(0, 2 * width, 200)
    hills: tuple[tuple[Colour, float, float, float], ...] = (
        ((158, 196, 190), 0.47, 0.050, 2.3),
        ((128, 182, 140), 0.53, 0.035, 3.4),
    )
    for colour, base, swing, waves in hills:
        ridge = 2 * height * (base - swing * np.sin(along / width * waves + base * 20))
        draw.polygon([(0, 2 * height), *zip(along, ridge, strict=True), (2 * width, 2 * height)], fill=colour)
    _ground(draw, 2 * width, 2 * height)
    return large.resize((width, height), Image.Resampling.LANCZOS)


def _ground(draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
    """Draw lawn, pavement, and a road with a broken line."""
    stripes: tuple[tuple[float, Colour], ...] = (
        (0.61, (138, 190, 104)),
        (0.695, (214, 208, 196)),
        (0.725, (176, 170, 160)),
        (0.735, (98, 102, 112)),
        (0.905, (176, 170, 160)),
        (0.912, (214, 208, 196)),
    )
    for top, colour in stripes:
        draw.rectangle((0, round(top * height), width, height), fill=colour)
    for start in range(-width // 20, width, width // 8):
        draw.rectangle((start, round(0.865 * height), start + width // 16, round(0.873 * height)), fill=(236, 232, 214))


def _vertical(top: Colour, bottom: Colour, width: int, height: int) -> Image.Image:
    t = np.linspace(0, 1, height)[:, None, None]
    return _image(np.broadcast_to(np.array(top) * (1 - t) + np.array(bottom) * t, (height, width, 3)))


def _image(values: npt.NDArray[np.floating]) -> Image.Image:
    return Image.fromarray(np.clip(values + 0.5, 0, 255).astype(np.uint8))
