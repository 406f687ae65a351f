import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import ImageShapeError
from photonlite.images.decode import array_to_rgb, image_to_rgb, load_image


def pixel(image: Image.Image) -> Any:
    return image.getpixel((0, 0))


def one(mode: str, color: Any) -> Image.Image:
    return Image.new(mode, (2, 2), color)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (one("RGB", (1, 2, 3)), (1, 2, 3)),
        (one("RGBA", (10, 20, 30, 0)), (10, 20, 30)),
        (one("RGBX", (10, 20, 30, 0)), (10, 20, 30)),
        (one("RGBA", (100, 100, 100, 255)).convert("RGBa"), (100, 100, 100)),
        (one("L", 77), (77, 77, 77)),
        (one("LA", (77, 0)), (77, 77, 77)),
        (one("LA", (77, 255)).convert("La"), (77, 77, 77)),
        (one("1", 1), (255, 255, 255)),
        (one("CMYK", (0, 255, 255, 0)), (255, 0, 0)),
        (one("YCbCr", (128, 128, 128)), (128, 128, 128)),
        (one("HSV", (0, 255, 255)), (255, 0, 0)),
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else "",
)
def test_every_mode_becomes_rgb_and_alpha_is_dropped(image: Image.Image, expected: tuple[int, int, int]) -> None:
    converted = image_to_rgb(image)
    assert converted.mode == "RGB"
    assert pixel(converted) == expected


@pytest.mark.parametrize("transparency", [None, 0, b"\0\x80"], ids=["opaque", "index", "bytes"])
def test_palette_is_looked_up_and_its_transparency_ignored(transparency: int | bytes | None) -> None:
    image = one("P", 0)
    image.putpalette([200, 100, 50, 0, 0, 0])
    if transparency is not None:
        image.info["transparency"] = transparency
    before = dict(image.info)
    assert pixel(image_to_rgb(image)) == (200, 100, 50)
    assert image.info == before


def pillow(mode: str, *colors: Any, **info: Any) -> Image.Image:
    """A transparent pixel, then opaque ones."""
    image = Image.new(mode, (len(colors), 1))
    for place, color in enumerate(colors):
        image.putpixel((place, 0), color)
    image.info.update(info)
    return image


def palette(mode: str, *entries: int, **info: Any) -> Image.Image:
    image = Image.new("P", (2, 1))
    image.putpalette([9, 9, 9, 10, 20, 30], "RGB")
    image.putpixel((1, 0), 1)
    image.info.update(info)
    return image.convert(mode)


def sixteen_bits() -> Image.Image:
    Image.fromarray(np.array([[7, 0x2020]], np.uint16)).save(file := io.BytesIO(), "PNG", transparency=7)
    return Image.open(file)


TRANSPARENT: dict[str, tuple[Any, tuple[int, ...]]] = {
    "RGBA": (pillow("RGBA", (9, 9, 9, 0), (10, 20, 30, 255)), (10, 20, 30)),
    "RGBa": (pillow("RGBA", (9, 9, 9, 0), (10, 20, 30, 255)).convert("RGBa"), (10, 20, 30)),
    "LA": (pillow("LA", (9, 0), (10, 255)), (10, 10, 10)),
    "La": (pillow("LA", (9, 0), (10, 255)).convert("La"), (10, 10, 10)),
    "PA": (palette("PA", transparency=0), (10, 20, 30)),
    "P with an index": (palette("P", transparency=0), (10, 20, 30)),
    "P with bytes": (palette("P", transparency=b"\0\xff"), (10, 20, 30)),
    "RGB with a colour": (pillow("RGB", (9, 9, 9), (10, 20, 30), transparency=(9, 9, 9)), (10, 20, 30)),
    "L with a grey": (pillow("L", 9, 10, transparency=9), (10, 10, 10)),
    "I;16 with a grey": (sixteen_bits(), (32, 32, 32)),
    "bytes": (np.array([[[9, 9, 9, 0], [10, 20, 30, 255]]], np.uint8), (10, 20, 30)),
    "floats": (np.array([[[0.1, 0.1, 0.1, 0], [1, 0, 0, 1]]]), (255, 0, 0)),
    "16 bits": (np.array([[[9, 9, 9, 0], [65535, 0, 0, 65535]]], np.uint16), (255, 0, 0)),
    "tensor": (torch.tensor([[[9, 10]], [[9, 20]], [[9, 30]], [[0, 255]]], dtype=torch.uint8), (10, 20, 30)),
}


@pytest.mark.parametrize("kind", TRANSPARENT)
def test_what_is_transparent_is_white_where_a_model_wants_that(kind: str) -> None:
    source, opaque = TRANSPARENT[kind]
    found = load_image(source, ImageLimits(on_white=True))
    assert (found.mode, found.info) == ("RGB", {})
    assert [found.getpixel((place, 0)) for place in (0, 1)] == [(255, 255, 255), opaque]
    below = load_image(source)
    assert below.getpixel((0, 0)) != (255, 255, 255)
    assert below.getpixel((1, 0)) == opaque


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF", "AVIF"])
def test_half_transparent_pixels_are_mixed_as_the_makers_client_does(format: str) -> None:
    values = np.random.default_rng(0).integers(0, 256, (20, 30, 4), np.uint8)
    Image.fromarray(values).save(file := io.BytesIO(), format, lossless=True)
    opened = Image.open(file).convert("RGBA")
    white = Image.new("RGB", opened.size, (255, 255, 255))
    white.paste(opened, mask=opened.split()[3])
    assert load_image(file.getvalue(), ImageLimits(on_white=True)).tobytes() == white.tobytes()


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "CMYK", "YCbCr", "I", "F", "I;16"])
def test_what_is_not_transparent_is_the_same_on_white(mode: str) -> None:
    image = Image.new("L", (3, 2), 1).convert(mode) if mode != "I;16" else Image.fromarray(np.ones((2, 3), np.uint16))
    assert load_image(image, ImageLimits(on_white=True)).tobytes() == load_image(image).tobytes()


def test_the_converted_image_has_no_metadata() -> None:
    image = one("L", 5)
    image.info.update(dpi=(72, 72), transparency=5)
    assert image_to_rgb(image).info == {}


@pytest.mark.parametrize(
    ("array", "mode", "expected"),
    [
        (np.array([[0, 65535, 257]], np.uint16), "I;16", [0, 255, 1]),
        (np.array([[0, 65535, 32896]], np.int32), "I", [0, 255, 128]),
        (np.array([[0, 255, 100]], np.int32), "I", [0, 255, 100]),
        (np.array([[0, 1, 0.5]], np.float32), "F", [0, 255, 128]),
        (np.array([[0, 255, 100]], np.float32), "F", [0, 255, 100]),
    ],
)
def test_wide_modes_are_scaled(array: np.ndarray[Any, Any], mode: str, expected: list[int]) -> None:
    image = Image.fromarray(array)
    assert image.mode == mode
    assert np.asarray(image_to_rgb(image))[0, :, 0].tolist() == expected


@pytest.mark.parametrize(
    "array",
    [
        np.array([[0, 70_000]], np.int32),
        np.array([[-4, 100]], np.int32),
        np.array([[0, 300]], np.float32),
        np.array([[0, np.nan]], np.float32),
    ],
)
def test_wide_modes_out_of_every_scale_are_refused(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ImageShapeError, match=r"mode [IF] holds"):
        image_to_rgb(Image.fromarray(array))


RGB = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)


@pytest.mark.parametrize(
    "array",
    [
        RGB,
        np.asfortranarray(RGB),
        RGB[..., ::-1].copy()[..., ::-1],
        np.repeat(RGB, 2, axis=1)[:, ::2],
        np.concatenate([RGB, RGB[..., :1]], -1),
        RGB / 255,
        (RGB / 255).astype(np.float16),
        RGB.astype(np.uint16) * 257,
        (RGB.astype(np.uint16) * 257).astype(">u2"),
    ],
    ids=["plain", "fortran", "reversed-channels", "strided", "alpha", "float64", "float16", "uint16", "big-endian"],
)
def test_arrays_become_the_same_image(array: np.ndarray[Any, Any]) -> None:
    image = array_to_rgb(array)
    assert image.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(image), RGB)


@pytest.mark.parametrize("array", [RGB[..., 0], RGB[..., :1]], ids=["flat", "one-channel"])
def test_grey_arrays_are_repeated_over_the_channels(array: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(np.asarray(array_to_rgb(array)), np.repeat(RGB[..., :1], 3, -1))


def test_masks_are_black_and_white() -> None:
    mask = RGB[..., 0] > 100
    np.testing.assert_array_equal(np.asarray(array_to_rgb(mask))[..., 1], mask * 255)


def test_16_bits_are_scaled_to_8() -> None:
    array = np.array([[0, 128, 129, 385, 386, 65406, 65407, 65535]], np.uint16)
    assert np.asarray(array_to_rgb(array))[0, :, 0].tolist() == [0, 0, 1, 1, 2, 254, 255, 255]


def test_a_read_only_array_is_taken() -> None:
    array = RGB.copy()
    array.flags.writeable = False
    np.testing.assert_array_equal(np.asarray(array_to_rgb(array)), RGB)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(bad: float) -> None:
    array = np.full((4, 4, 3), 0.5)
    array[1, 2, 0] = bad
    with pytest.raises(ImageShapeError, match=r"float64 array holds NaN or infinity.*nan_to_num"):
        array_to_rgb(array)


def test_a_rounding_error_beyond_the_range_is_forgiven() -> None:
    image = array_to_rgb(np.array([[-1e-6, 1 + 1e-6]]))
    assert np.asarray(image)[0, :, 0].tolist() == [0, 255]


@pytest.mark.parametrize("value", [-0.1, 1.1, 255.0])
def test_floats_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(ImageShapeError, match=r"outside 0 to 1.*uint8"):
        array_to_rgb(np.full((4, 4, 3), value, np.float32))


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((), ""),
        ((12,), ""),
        ((4, 4, 2), ""),
        ((4, 4, 5), ""),
        ((3, 6, 8), r"array\.transpose\(1, 2, 0\)"),
        ((1, 4, 4, 3), r"array\[0\]"),
    ],
)
def test_wrong_shapes_are_refused(shape: tuple[int, ...], hint: str) -> None:
    with pytest.raises(ImageShapeError, match=rf"shape \[.*\[height, width, 3\].*{hint}"):
        array_to_rgb(np.zeros(shape, np.uint8))


@pytest.mark.parametrize(
    "dtype", [np.int64, np.uint32, np.int16, np.int8, np.complex64, np.object_, "U3", "datetime64[s]"]
)
def test_wrong_dtypes_are_refused(dtype: Any) -> None:
    with pytest.raises(ImageShapeError, match=r"dtype .* is not an image.*uint8"):
        array_to_rgb(np.zeros((4, 4, 3), dtype))


@pytest.mark.parametrize("shape", [(0, 4, 3), (4, 0, 3), (0, 0)])
def test_arrays_without_pixels_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ImageShapeError, match="no pixels"):
        array_to_rgb(np.zeros(shape, np.uint8))
