import io

import numpy as np
import pytest
from PIL import Image

from photonlite.errors import ImageDecodeError, ImageNotFoundError, ImageShapeError, ImageTooLargeError
from photonlite.results.drawing import style
from photonlite.results.drawing.style import open_image

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
