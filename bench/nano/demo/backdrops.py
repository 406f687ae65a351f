"""Backdrops of the demo images: a wall with a desk, a market table, a street under hills."""

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from bench.nano.scenes.held_out.drawing import fractal

Colour = tuple[int, int, int]
DESK_EDGE = 0.52


def desk_backdrop(width: int, height: int, seed: int = 7) -> Image.Image:
    """Draw a wooden desk before a wall with the light of a window; `seed` varies the wood and the leaves."""
    rng = np.random.default_rng(seed)
    edge = round(height * DESK_EDGE)
    wall = _window_light(rng, _vertical((146, 182, 180), (178, 204, 196), width, height))
    wall.paste(_boards(rng, width, height - edge), (0, edge))
    shade = Image.new("L", (width, height))
    ImageDraw.Draw(shade).rectangle((0, edge - height // 160, width, edge + height // 200), fill=150)
    wall.paste((60, 38, 26), (0, 0), shade.filter(ImageFilter.GaussianBlur(height / 200)))
    return wall


def _window_light(rng: np.random.Generator, wall: Image.Image) -> Image.Image:
    """Lay six slanted panes of sunlight on the wall, with the shadow of a branch in them."""
    width, height = wall.size
    light, branch = Image.new("L", wall.size), Image.new("L", wall.size)
    draw = ImageDraw.Draw(light)
    for column in range(3):
        for row in range(2):
            x, y = width * (0.33 + 0.172 * column - 0.04 * row), height * (-0.015 + 0.245 * row)
            wide, high, slant = width * 0.16, height * 0.228, width * 0.036
            draw.polygon([(x, y), (x + wide, y), (x + wide - slant, y + high), (x - slant, y + high)], fill=190)
    for _ in range(3):
        root = np.array((rng.uniform(0.7, 0.95) * width, -0.03 * height))
        _branch(rng, ImageDraw.Draw(branch), root, rng.uniform(2.2, 2.7), height)
    branch = branch.filter(ImageFilter.GaussianBlur(height / 130))
    light = ImageChops.subtract(light.filter(ImageFilter.GaussianBlur(height / 110)), branch)
    return Image.composite(Image.new("RGB", wall.size, (255, 243, 208)), wall, light)


def _branch(
    rng: np.random.Generator, draw: ImageDraw.ImageDraw, root: npt.NDArray[np.float64], angle: float, height: int
) -> None:
    """Draw a bent twig with pairs of leaves."""
    place = root
    for _ in range(int(rng.integers(7, 10))):
        angle += rng.normal(0.03, 0.08)
        end = place + 0.06 * height * np.array((np.cos(angle), np.sin(angle)))
        draw.line([*map(tuple, (place, end))], fill=110, width=max(1, height // 200))
        for side in (-1, 1):
            _leaf(draw, end, angle + side * rng.uniform(0.5, 0.9), height * rng.uniform(0.05, 0.075))
        place = end


def _leaf(draw: ImageDraw.ImageDraw, stem: npt.NDArray[np.float64], angle: float, length: float) -> None:
    along = np.linspace(0, 1, 12)
    bulge = 0.22 * np.sin(np.pi * along)
    x, y = np.concatenate((along, along[::-1])) * length, np.concatenate((bulge, -bulge[::-1])) * length
    cos, sin = np.cos(angle), np.sin(angle)
    draw.polygon([*zip(stem[0] + x * cos - y * sin, stem[1] + x * sin + y * cos, strict=True)], fill=110)


def _boards(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Draw boards that get wider towards the viewer."""
    fibre = fractal(rng, height, width, 40, 3, stretch=30)
    flow = fractal(rng, height, width, 3, 3, stretch=6)
    depth = np.linspace(0, 1, height)[:, None]
    board = np.minimum((depth**0.75 * 5).astype(int), 4)
    tint = rng.uniform(-0.04, 0.04, 5)[board]
    light = 0.92 + 0.10 * depth + tint + 0.12 * (fibre - 0.5) + 0.035 * np.sin((flow + board * 0.37) * 40)
    light[1:][board[1:, 0] != board[:-1, 0]] *= 0.74
    return _image(np.array((206, 150, 100)) * light[..., None])


def market_backdrop(width: int, height: int) -> Image.Image:
    """Draw a checked tablecloth with soft folds, and on it a wooden tray."""
    rng = np.random.default_rng(11)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    folds = fractal(rng, height, width, 2.2, 2)
    # The folds bend the bands, too; their edges are one pixel soft.
    side = width / 16
    bands = sum(np.clip((abs((axis + 14 * folds) / side % 2 - 1) - 0.5) * side + 0.5, 0, 1) for axis in (x, y)) / 2
    light, dark = np.array((252, 247, 236)), np.array((92, 146, 190))
    mix = (0.66 * bands)[..., None]
    cloth = _image((light + mix * (dark - light)) * (0.9 + 0.16 * folds)[..., None])
    left, top, right, bottom = (round(share * side) for share, side in zip(_TRAY, (width, height) * 2, strict=True))
    shade = Image.new("L", cloth.size)
    ImageDraw.Draw(shade).rectangle((left + 8, top + 14, right + 16, bottom + 22), fill=120)
    cloth.paste((30, 24, 40), (0, 0), shade.filter(ImageFilter.GaussianBlur(11)))
    cloth.paste(_tray(rng, right - left, bottom - top), (left, top))
    return cloth


_TRAY = (0.262, 0.475, 0.648, 0.985)


def _tray(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Draw a tray from above: boards, the shadow of its walls on them, the rim of its walls."""
    tray = Image.new("RGB", (width, height))
    boards, rim = 3, 14
    for board in range(boards):
        top, bottom = (round(height * edge / boards) for edge in (board, board + 1))
        tray.paste(_plank(rng, width, bottom - top, (214, 172, 124)), (0, top))
    shade = Image.new("L", (width, height), 170)
    ImageDraw.Draw(shade).rectangle((rim + 16, rim + 20, width - rim - 4, height - rim - 4), fill=0)
    tray.paste((60, 36, 24), (0, 0), shade.filter(ImageFilter.GaussianBlur(12)))
    bar = _plank(rng, width, rim, (228, 188, 138))
    post = _plank(rng, height, rim, (220, 178, 128)).transpose(Image.Transpose.ROTATE_90)
    for place in ((0, 0), (width - rim, 0)):
        tray.paste(post, place)
    for place in ((0, 0), (0, height - rim)):
        tray.paste(bar, place)
    return tray


def _plank(rng: np.random.Generator, width: int, height: int, colour: Colour) -> Image.Image:
    fibre = fractal(rng, height, width, 30, 3, stretch=24)
    light = 1 + rng.uniform(-0.04, 0.04) + 0.16 * (fibre - 0.5)
    light[[0, -1]] *= 0.86
    return _image(np.array(colour) * light[..., None])


def street_backdrop(width: int, height: int) -> Image.Image:
    """Draw sky, hills, a lawn and a road."""
    rng = np.random.default_rng(5)
    image = _vertical((86, 164, 226), (236, 244, 242), width, round(height * 0.62)).crop((0, 0, width, height))
    _haze(rng, image)
    large = image.resize((width * 2, height * 2), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(large)
    along = np.linspace(0, 2 * width, 300)
    hills: tuple[tuple[Colour, float, float, float], ...] = (
        ((176, 206, 212), 0.44, 0.050, 2.3),
        ((146, 190, 172), 0.50, 0.035, 3.4),
        ((122, 178, 126), 0.565, 0.020, 2.6),
    )
    for colour, base, swing, waves in hills:
        ridge = 2 * height * (base - swing * np.sin(along / width * waves + base * 20))
        draw.polygon([(0, 2 * height), *zip(along, ridge, strict=True), (2 * width, 2 * height)], fill=colour)
    _ground(draw, 2 * width, 2 * height)
    street = np.asarray(large.resize((width, height), Image.Resampling.LANCZOS)).astype(np.float32)
    # Grass and asphalt are not quite even; the sky is.
    lawn = round(0.6 * height)
    street[lawn:] *= (1 + 0.07 * (fractal(rng, height - lawn, width, 26, 4, stretch=3) - 0.5))[..., None]
    return _image(street)


def _haze(rng: np.random.Generator, sky: Image.Image) -> None:
    """Draw thin streaks of high cloud; heaped clouds would be objects of the vocabulary."""
    width, height = sky.size
    streaks = fractal(rng, height, width, 5, 6, stretch=4) * (0.6 + 0.4 * fractal(rng, height, width, 3, 2))
    fade = np.clip(1 - np.linspace(0, 1.9, height), 0, 1)[:, None] ** 0.4
    veil = np.clip((streaks - 0.34) * 2.6, 0, 1) * fade * 150
    sky.paste((255, 255, 255), (0, 0), Image.fromarray(veil.astype(np.uint8)))


def _ground(draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
    """Draw lawn, pavements with joints that run towards the viewer, and a road with a broken line."""
    stripes: tuple[tuple[float, Colour], ...] = (
        (0.61, (134, 190, 98)),
        (0.70, (222, 214, 200)),
        (0.738, (186, 178, 168)),
        (0.748, (92, 96, 108)),
        (0.945, (186, 178, 168)),
        (0.955, (222, 214, 200)),
    )
    for top, colour in stripes:
        draw.rectangle((0, round(top * height), width, height), fill=colour)
    for top, bottom in ((0.70, 0.738), (0.955, 1.0)):
        for joint in np.linspace(-2, 2, 41):
            # All joints meet at the horizon, above the middle of the image.
            ends = [(width * (0.5 + joint * (y - 0.5)), height * y) for y in (top, bottom)]
            draw.line(ends, fill=(204, 196, 182), width=max(1, height // 500))
    for dash in range(-1, 9):
        x = dash * 0.125
        corners = ((x, 0.856), (x + 0.064, 0.856), (x + 0.066, 0.866), (x, 0.866))
        draw.polygon([(x * width, y * height) for x, y in corners], fill=(238, 234, 216))


def _vertical(top: Colour, bottom: Colour, width: int, height: int) -> Image.Image:
    t = np.linspace(0, 1, height)[:, None, None]
    return _image(np.broadcast_to(np.array(top) * (1 - t) + np.array(bottom) * t, (height, width, 3)))


def _image(values: npt.NDArray[np.floating]) -> Image.Image:
    return Image.fromarray(np.clip(values + 0.5, 0, 255).astype(np.uint8))
