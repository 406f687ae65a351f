import io
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from photonlite.errors import ImageDecodeError, ImageNotFoundError, ImageShapeError, ImageTooLargeError, InputError
from photonlite.results.drawing import style
from photonlite.results.drawing.style import (
    BLACK,
    PALETTE,
    WHITE,
    Style,
    label_colors,
    luminance,
    open_image,
    text_color,
)

# Matrices of Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency" (2009), severity 1.0, applied to linear RGB.
DEFICIENCIES = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
}


def _linear(color):
    return [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]


@pytest.mark.parametrize("name", DEFICIENCIES)
def test_palette_stays_apart_for_colour_blind_people(name):
    seen = []
    for color in PALETTE:
        linear = _linear(color)
        mixed = [sum(m * c for m, c in zip(row, linear, strict=True)) for row in DEFICIENCIES[name]]
        seen.append([max(c, 0.0) ** (1 / 2.2) for c in mixed])
    assert min(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) ** 0.5 for x, y in combinations(seen, 2)) > 0.1


def test_twenty_one_labels_differ_and_equal_labels_agree():
    colors = label_colors([f"label {i}" for i in range(21)] * 2)
    assert len(set(colors.values())) == 21
    assert colors == label_colors([f"label {i}" for i in range(21)])


def test_chosen_colours_win_and_unknown_ones_are_refused():
    assert label_colors(["mug", "pen"], {"pen": "#010203"})["pen"] == (1, 2, 3)
    with pytest.raises(InputError, match="'mauvish'"):
        label_colors(["mug"], {"mug": "mauvish"})


def test_one_colour_may_be_for_everything():
    assert label_colors(["mug", "pen"], "red") == {"mug": (255, 0, 0), "pen": (255, 0, 0)}
    with pytest.raises(InputError, match="'mauvish' is not a colour"):
        label_colors(["mug"], "mauvish")
    with pytest.raises(InputError, match="is not a colour"):
        label_colors(["mug"], {"mug": (1, 2, 3)})
    with pytest.raises(InputError, match="colors is of type list"):
        label_colors(["mug"], ["red"])


def test_text_is_readable_on_every_colour_of_the_palette():
    for color in label_colors(map(str, range(21))).values():
        bright, dark = sorted((luminance(color), luminance(text_color(color))), reverse=True)
        # WCAG 2.2 asks 4.5 of small text.
        assert (bright + 0.05) / (dark + 0.05) >= 4.5
    assert (text_color(WHITE), text_color(BLACK)) == (BLACK, WHITE)


def test_sizes_follow_the_image_and_shrink_in_a_crowd():
    small, large = Style.of((320, 240)), Style.of((4000, 3000))
    assert large.line > 4 * small.line
    assert large.font_size > 4 * small.font_size
    assert Style.of((4000, 3000), count=60).font_size < large.font_size
    assert Style.of((16, 16)).halo == 0


def test_given_sizes_are_taken_and_impossible_ones_refused(tmp_path):
    style = Style.of((640, 480), line_width=7, font_size=33)
    assert (style.line, style.font_size) == (7, 33)
    with pytest.raises(InputError, match="line_width 0"):
        Style.of((640, 480), line_width=0)
    (tmp_path / "no.ttf").write_bytes(b"no font")
    with pytest.raises(InputError, match=r"no\.ttf"):
        Style.of((640, 480), font=tmp_path / "no.ttf")


NOISE = np.random.default_rng(1).integers(0, 256, (6, 9, 3), dtype=np.uint8)


def png(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


def test_every_kind_of_source_shows_the_same_image(tmp_path):
    data = png(Image.fromarray(NOISE))
    (tmp_path / "image.png").write_bytes(data)
    used = io.BytesIO(data)
    used.read()
    sources = [
        NOISE,
        Image.fromarray(NOISE),
        NOISE / 255,
        (NOISE / 255).astype(np.float32),
        data,
        bytearray(data),
        memoryview(data),
        io.BytesIO(data),
        used,
        tmp_path / "image.png",
        str(tmp_path / "image.png"),
    ]
    for source in sources:
        opened = open_image(source)
        assert opened.mode == "RGB"
        assert np.array_equal(np.asarray(opened), NOISE)


def test_orientation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter: shown with its left side up
    data = png(Image.fromarray(NOISE), exif=exif)
    assert np.array_equal(np.asarray(open_image(data)), np.rot90(NOISE, -1))
    assert np.array_equal(np.asarray(open_image(Image.open(io.BytesIO(data)))), np.rot90(NOISE, -1))


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("RGBA", (2, 2), (10, 20, 30, 0)), (10, 20, 30)),  # as the model sees it
        (Image.new("RGBA", (2, 2), (10, 20, 30, 255)), (10, 20, 30)),
        (Image.new("LA", (2, 2), (7, 255)), (7, 7, 7)),
        (Image.fromarray(np.full((2, 2), 40000, np.uint16)), (156, 156, 156)),
        (Image.new("1", (2, 2), 1), (255, 255, 255)),
        (Image.new("CMYK", (2, 2), (0, 0, 0, 0)), (255, 255, 255)),
    ],
)
def test_pillow_modes_are_converted_as_for_the_model(image, expected):
    assert open_image(image).getpixel((0, 0)) == expected


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 4)])
def test_arrays_of_grey_and_alpha_are_images(shape):
    assert open_image(np.full(shape, 255, np.uint8)).size == (5, 4)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 5, 2), np.uint8),
        np.full((4, 5, 3), 1.5),
        np.full((4, 5, 3), np.nan),
        np.zeros((4, 5, 3), np.int32),
        np.zeros((0, 5, 3), np.uint8),
        np.zeros(5, np.uint8),
    ],
)
def test_other_arrays_are_refused(array):
    with pytest.raises(ImageShapeError, match=r"uint8|NaN|no pixels"):
        open_image(array)


def test_bad_files_are_typed_errors(tmp_path, monkeypatch):
    data = png(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)))
    with pytest.raises(ImageNotFoundError, match="nowhere"):
        open_image(tmp_path / "nowhere.png")
    with pytest.raises(ImageDecodeError):
        open_image(b"no image")
    with pytest.raises(ImageDecodeError):
        open_image(data[: len(data) // 2])
    monkeypatch.setattr(style, "_MAX_PIXELS", 100)
    monkeypatch.setenv("PHOTONLITE_MAX_PIXELS", "50")
    with pytest.raises(ImageTooLargeError):
        open_image(data)
    monkeypatch.setenv("PHOTONLITE_MAX_PIXELS", "4096")
    assert open_image(data).size == (64, 64)
