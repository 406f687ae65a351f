"""Objects as images: emoji drawn once with Noto Color Emoji, and a sheet for machines without fonts."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from bench.nano import ROOT
from bench.nano.scenes.distractors import COUNT, draw_distractors
from bench.nano.scenes.objects import SceneObject, load_objects

FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
SHEET = ROOT / ".nano" / "sprites.png"
# The font holds bitmaps of this size only.
_STRIKE = 109
_CANVAS = 160
_BORDER = 1

STRANGERS = (
    "🦷🦴👄👂🦶💪👍🧠🧵🧶🪥🧴🧻🧽🪒🪞🪟🛁🚿🚽🪠🛒🏺📿💈🔭💊💉🧬🧫🧪🌡🎿🛷🥌🔫🎰🪅🪆♟"
    "🃏🀄🎴🖼🦺👘👙🩰💄🪗🔌💽📼🎞🏮🪔📜📰🏷💳🧾📁📈📐📏🪃🏹🛡🪚🔩🗜⚖🔗⛓🪝🦙🐪🦏🦛🐿"
    "🦇🦚🦎🦂🦟🦐🪼🎍🌾🌿⛩🗽🗿⛲🎢🛴🛶🚠⛽🚧🪈🦽🛼🪖⛑🍱🍜🥗🍤🍡🥠🍬🧊🥢🦪"
)
"""Things that are no objects of the vocabulary, and look like none: further distractors, since a model that knows of no
other things takes whatever is one for what it is asked for."""

PEOPLE = "🧍🚶🏃🕺🧎🤸🏋🤺🏌🏄🏊🚣👷💂👰🙋🤷🙇🧘🧗👶"
"""Most photographs show people, so these are distractors too, each drawn a second time as a dark shape. What they wear
does not count as an object."""

Sprites = npt.NDArray[np.uint8]


def render_sprites(objects: Sequence[SceneObject], size: int = 128) -> Sprites:
    """Draw every object centred in a square that its longer side fills: straight RGBA, uint8 [n, size, size, 4]."""
    # The variation selector is left out: this layout engine would draw it as a glyph of its own.
    return _render_all([item.emoji[0] for item in objects], size)


def _render_all(emoji: Iterable[str], size: int) -> Sprites:
    if not FONT.exists():
        raise FileNotFoundError(f"{FONT} is missing; install the Debian package fonts-noto-color-emoji")
    font = ImageFont.truetype(str(FONT), _STRIKE, layout_engine=ImageFont.Layout.BASIC)
    return np.stack([_render(one, font, size) for one in emoji])


def _render(emoji: str, font: ImageFont.FreeTypeFont, size: int) -> Sprites:
    canvas = Image.new("RGBA", (_CANVAS, _CANVAS))
    ImageDraw.Draw(canvas).text((8, 8), emoji, font=font, embedded_color=True)
    bounds = canvas.getchannel("A").getbbox()
    if bounds is None:
        raise ValueError(f"{emoji} (U+{ord(emoji):04X}) has no picture in {FONT.name}")
    glyph = canvas.crop(bounds)
    scale = (size - 2 * _BORDER) / max(glyph.size)
    width, height = (max(1, round(side * scale)) for side in glyph.size)
    # Drawing on a transparent canvas blends colours with its black, which is what premultiplying does: scaled as such,
    # and only then made straight, edges keep their colour.
    premultiplied = Image.frombytes("RGBa", glyph.size, glyph.tobytes()).resize(
        (width, height), Image.Resampling.LANCZOS
    )
    sprite = Image.new("RGBa", (size, size))
    sprite.paste(premultiplied, ((size - width) // 2, (size - height) // 2))
    return np.asarray(sprite.convert("RGBA"))


def _darkened(sprites: Sprites) -> Sprites:
    dark = sprites.copy()
    dark[..., :3] //= 6
    return dark


def save_sheet(path: Path = SHEET, size: int = 128) -> None:
    """Draw all objects and distractors and write them as one square-ish PNG, row by row, objects in class order."""
    people = _render_all(PEOPLE, size)
    strangers = _render_all(STRANGERS, size), people, _darkened(people)
    sprites = np.concatenate((render_sprites(load_objects(), size), draw_distractors(size), *strangers))
    columns = math.isqrt(len(sprites) - 1) + 1
    rows = -(-len(sprites) // columns)
    sheet = np.zeros((rows * columns, size, size, 4), np.uint8)
    sheet[: len(sprites)] = sprites
    pixels = sheet.reshape(rows, columns, size, size, 4).swapaxes(1, 2).reshape(rows * size, columns * size, 4)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, optimize=True)


def load_sheet(path: Path = SHEET, size: int = 128) -> tuple[Sprites, Sprites]:
    """Read `save_sheet`'s file back: the objects in class order, and all that they may be mistaken for."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: `python -m bench.nano.scenes.sprites` draws it where {FONT.name} is"
        )
    objects = len(load_objects())
    count = objects + COUNT + len(STRANGERS) + 2 * len(PEOPLE)
    columns = math.isqrt(count - 1) + 1
    rows = -(-count // columns)
    with Image.open(path) as image:
        pixels = np.asarray(image)
    if pixels.shape != (rows * size, columns * size, 4):
        raise ValueError(
            f"{path} is {pixels.shape}, not {rows}x{columns} sprites of {size}; make it anew with save_sheet"
        )
    sprites = pixels.reshape(rows, size, columns, size, 4).swapaxes(1, 2).reshape(-1, size, size, 4)
    return sprites[:objects].copy(), sprites[objects:count].copy()


if __name__ == "__main__":
    save_sheet()
