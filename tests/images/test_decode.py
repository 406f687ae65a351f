import base64
import io
import os
import random
import signal
import struct
import textwrap
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from photonlite.config import ImageLimits
from photonlite.errors import (
    ImageDecodeError,
    ImageError,
    ImageNotFoundError,
    ImageShapeError,
    ImageTooLargeError,
    ImageUrlError,
)
from photonlite.images import decode
from photonlite.images.decode import file_bytes, image_size, load_image, rgb_bands, rgb_bytes
from photonlite.images.source import DecodedImage
from tests.guard import GUARD

ORIENTATION = 0x0112
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")


def gradient(width: int = 24, height: int = 16) -> Image.Image:
    """An RGB image without symmetry, so that every flip and rotation shows."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = 255 * x // max(1, width - 1), 255 * y // max(1, height - 1)
    return Image.fromarray(np.stack([red, green, np.full_like(x, 40)], -1).astype(np.uint8))


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that promises grey pixels of this size and breaks off after a few bytes of them."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0" * 50)[:20]),
    ]
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


def same(a: Image.Image, b: Image.Image) -> bool:
    return a.mode == b.mode and a.size == b.size and a.tobytes() == b.tobytes()


# --- what an image can be handed in as


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image.png"
    gradient().save(path)
    return path


@pytest.mark.parametrize(
    "source_of",
    [
        str,
        lambda path: path,
        lambda path: path.read_bytes(),
        lambda path: bytearray(path.read_bytes()),
        lambda path: memoryview(path.read_bytes()),
        lambda path: io.BytesIO(path.read_bytes()),
        Image.open,
        lambda path: np.asarray(Image.open(path)),
    ],
    ids=["str", "path", "bytes", "bytearray", "memoryview", "file", "pillow", "array"],
)
def test_every_kind_of_source_gives_the_same_pixels(image: Path, source_of: Callable[[Path], Any]) -> None:
    assert same(load_image(source_of(image)), gradient())


def test_an_open_file_is_read_from_its_start_every_time(image: Path) -> None:
    with open(image, "rb") as file:
        file.seek(11)
        assert same(load_image(file), load_image(file))


def test_a_raw_file_that_returns_little_at_a_time_is_read_to_its_end(image: Path) -> None:
    class Trickle(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(7)

    assert same(load_image(Trickle(image.read_bytes())), gradient())


def test_a_pipe_is_read(image: Path) -> None:
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as reader:
        os.write(write_end, image.read_bytes())
        os.close(write_end)
        assert same(load_image(f"/dev/fd/{reader.fileno()}"), gradient())


@pytest.mark.parametrize("format", FORMATS)
def test_the_common_formats_are_read(format: str) -> None:
    options = {"quality": 95} if format in ("JPEG", "AVIF", "WEBP") else {}
    found = np.asarray(load_image(encoded(gradient(), format, **options)), np.int16)
    assert np.abs(found - np.asarray(gradient(), np.int16)).mean() < 8


def test_uncommon_formats_never_reach_their_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    eps = encoded(gradient(), "EPS")
    monkeypatch.setattr("PIL.EpsImagePlugin.EpsImageFile._open", lambda self: pytest.fail("the EPS reader was called"))
    with pytest.raises(ImageDecodeError, match="no supported image format: convert it to one of JPEG, PNG"):
        load_image(eps)


# --- the result belongs to the caller


def test_the_result_shares_nothing_with_the_image_handed_in() -> None:
    image = gradient()
    load_image(image).paste((0, 0, 0), (0, 0, 24, 16))
    assert same(image, gradient())


def test_the_result_shares_nothing_with_the_array_handed_in() -> None:
    array = np.asarray(gradient()).copy()
    loaded = load_image(array)
    array[:] = 0
    assert same(loaded, gradient())


def test_loading_twice_does_not_rotate_twice() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    once = load_image(encoded(gradient(), "PNG", exif=exif))
    assert same(load_image(once), once)
    assert once.info == {}


# --- orientation and animation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied(format: str, orientation: int) -> None:
    # What each value does to rows and columns, by the EXIF standard's "0th row, 0th column" table.
    stored = np.asarray(gradient())
    upright = {
        1: stored,
        2: stored[:, ::-1],
        3: stored[::-1, ::-1],
        4: stored[::-1],
        5: stored.transpose(1, 0, 2),
        6: stored[::-1].transpose(1, 0, 2),
        7: stored[::-1, ::-1].transpose(1, 0, 2),
        8: stored[:, ::-1].transpose(1, 0, 2),
    }[orientation]
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encoded(gradient(), format, exif=exif, **({"lossless": True} if format == "WEBP" else {}))
    np.testing.assert_array_equal(np.asarray(load_image(data)), upright)
    np.testing.assert_array_equal(np.asarray(load_image(Image.open(io.BytesIO(data)))), upright)


def test_jpeg_orientation_turns_the_sides() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 8
    assert load_image(encoded(gradient(24, 16), "JPEG", exif=exif)).size == (16, 24)


def test_a_damaged_exif_block_leaves_the_image_as_stored() -> None:
    data = encoded(gradient(), "PNG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert same(load_image(data), gradient())


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF", "AVIF"])
def test_an_animation_gives_its_first_frame(format: str) -> None:
    red, blue = Image.new("RGB", (16, 16), (255, 0, 0)), Image.new("RGB", (16, 16), (0, 0, 255))
    data = encoded(red, format, save_all=True, append_images=[blue])
    red_mean, _, blue_mean = np.asarray(load_image(data)).mean((0, 1))
    assert red_mean > 240
    assert blue_mean < 15


# --- odd but sound images


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1)])
def test_tiny_and_thin_images_are_read(size: tuple[int, int]) -> None:
    assert load_image(encoded(Image.new("RGB", size, (9, 8, 7)), "PNG")).size == size


def test_adobe_cmyk_jpeg_is_not_a_negative() -> None:
    paper_and_ink = Image.new("CMYK", (32, 16), (0, 0, 0, 0))
    paper_and_ink.paste((0, 255, 255, 0), (16, 0, 32, 16))
    data = encoded(paper_and_ink, "JPEG", quality=95)
    assert b"Adobe" in data
    loaded = load_image(data)
    assert min(loaded.getpixel((4, 8))) > 245  # type: ignore[arg-type]
    red, green, blue = loaded.getpixel((28, 8))  # type: ignore[misc]
    assert red > 245
    assert max(green, blue) < 10


def test_cmyk_tiff_without_adobe_inversion_is_not_a_negative() -> None:
    loaded = load_image(encoded(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "TIFF"))
    assert loaded.getpixel((1, 1)) == (255, 0, 0)


def test_sixteen_bit_png_is_scaled_and_not_clipped() -> None:
    levels = np.array([[0, 128, 129, 256, 257, 32896, 65535]], np.uint16)
    found = np.asarray(load_image(encoded(Image.fromarray(levels), "PNG")))
    assert found[0, :, 0].tolist() == [0, 0, 1, 1, 1, 128, 255]
    assert (found == found[..., :1]).all()


def test_a_dark_sixteen_bit_pgm_stays_dark() -> None:
    data = b"P5 2 1 65535\n" + bytes([0, 200, 0, 255])
    assert np.asarray(load_image(data)).max() <= 1


# --- bad input, one test each


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ImageNotFoundError, match=r"nothing\.png.*check the path"):
        load_image(tmp_path / "nothing.png")


def test_a_path_through_a_file(image: Path) -> None:
    with pytest.raises(ImageNotFoundError, match="check the path"):
        load_image(image / "inside.png")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(ImageNotFoundError, match="is a folder: name an image file"):
        load_image(tmp_path)


def test_file_without_permission(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # a superuser may read whatever the file's mode says
    with pytest.raises(ImageDecodeError, match="permission denied"):
        load_image(image)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("ftp://example.org/cat.jpg", "a path, a data URI or, where that is allowed, an https URL"),
        ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ" * 200, "if this is base64"),
        ("file:///home/me/cat.jpg", "give the path itself, without file://"),
        ("with a NUL\0 inside", "check the path"),
        ("", "check the path"),
    ],
    ids=["url", "base64", "file", "nul", "empty"],
)
def test_a_string_that_is_no_path_says_what_to_do(text: str, hint: str) -> None:
    with pytest.raises(ImageNotFoundError, match=hint) as caught:
        load_image(text)
    assert len(str(caught.value)) < 400


def test_not_an_image(tmp_path: Path) -> None:
    path = tmp_path / "notes.png"
    path.write_text("a shopping list")
    with pytest.raises(ImageDecodeError, match=r"notes\.png.* is in no supported image format"):
        load_image(path)


@pytest.mark.parametrize("source", [b"", bytearray(), io.BytesIO()], ids=["bytes", "bytearray", "file"])
def test_zero_bytes(source: Any) -> None:
    with pytest.raises(ImageDecodeError, match=r"empty \(0 bytes\)"):
        load_image(source)


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.jpg"
    path.touch()
    with pytest.raises(ImageDecodeError, match=r"empty\.jpg.* is empty \(0 bytes\)"):
        load_image(path)


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.9])
@pytest.mark.parametrize("format", FORMATS)
def test_truncated(format: str, kept: float) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    data = encoded(noise, format)
    with pytest.raises(ImageDecodeError) as caught:
        load_image(data[: int(len(data) * kept)])
    assert "\n" not in str(caught.value)


def container(*brands: bytes) -> bytes:
    """Return the beginning of a file of the AVIF and HEIC kind: its major brand, a version and compatible brands."""
    box = b"ftyp" + brands[0] + bytes(4) + b"".join(brands[1:])
    return (4 + len(box)).to_bytes(4, "big") + box + bytes(99)


@pytest.mark.parametrize(
    "brands", [(b"mif1", b"mif1", b"heic"), (b"heic",), (b"heix", b"mif1"), (b"hevc",), (b"msf1",)]
)
def test_heic_is_called_by_its_name(brands: tuple[bytes, ...]) -> None:
    with pytest.raises(ImageDecodeError, match="HEIC, which is not supported: convert it to one of JPEG"):
        load_image(container(*brands))


@pytest.mark.parametrize("major", [b"avif", b"mif1", b"msf1"])
def test_avif_is_known_by_any_of_its_brands(major: bytes) -> None:
    file = encoded(gradient(), "AVIF")
    assert file[8:12] == b"avif"
    assert load_image(file[:8] + major + file[12:]).size == gradient().size
    with pytest.raises(ImageDecodeError, match="cannot be decoded as AVIF"):
        load_image(container(major, b"miaf", b"avif"))


def test_truncated_pillow_image(image: Path) -> None:
    lazy = Image.open(io.BytesIO(image.read_bytes()[:-30]))
    with pytest.raises(ImageDecodeError, match="truncated or damaged"):
        load_image(lazy)


@pytest.mark.parametrize("read", [False, True])
def test_closed_pillow_image(image: Path, read: bool) -> None:
    with Image.open(image) as closed:
        if read:
            closed.load()
    if read:
        assert same(load_image(closed), gradient())  # its pixels are still there
        closed.close()
    with pytest.raises(ImageDecodeError, match="the image is closed: hand it in while it is open"):
        load_image(closed)


@pytest.mark.parametrize("format", FORMATS)
def test_over_the_pixel_limit_is_refused_from_the_header(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(gradient(64, 32), format)
    reader = type(Image.open(io.BytesIO(data)))
    monkeypatch.setattr(reader, "load", lambda self: pytest.fail("pixels were decoded"))
    with pytest.raises(ImageTooLargeError, match=r"64x32, 2048 pixels, over the limit of 2047.*PHOTONLITE_MAX_PIXELS"):
        load_image(data, ImageLimits(max_pixels=2047))


def test_a_pillow_image_over_the_limit_is_refused_before_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.open(io.BytesIO(encoded(gradient(), "PNG")))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("pixels were decoded"))
    with pytest.raises(ImageTooLargeError, match="over the limit of 10"):
        load_image(image, ImageLimits(max_pixels=10))


def test_an_array_over_the_limit() -> None:
    with pytest.raises(ImageTooLargeError, match="8000x8001"):
        load_image(np.broadcast_to(np.uint8(0), (8001, 8000, 3)))


SOURCES: dict[str, Callable[[bytes, Path], Any]] = {
    "path": lambda data, path: path,
    "bytes": lambda data, path: data,
    "bytearray": lambda data, path: bytearray(data),
    "memoryview": lambda data, path: memoryview(data),
    "file object": lambda data, path: io.BytesIO(data),
    "data URI": lambda data, path: as_uri(data),
    "Pillow": lambda data, path: Image.open(io.BytesIO(data)),
    "decoded": lambda data, path: DecodedImage(load_image(data)),
    "array": lambda data, path: np.asarray(load_image(data)),
    "tensor": lambda data, path: torch.from_numpy(np.asarray(load_image(data)).copy()),
}
"""Every kind of source, of an image file and its path."""


@pytest.mark.parametrize("size", [(30, 2), (2, 30)])
@pytest.mark.parametrize("source", SOURCES)
def test_each_side_has_a_limit_whatever_the_image_comes_from(
    source: str, size: tuple[int, int], tmp_path: Path
) -> None:
    (path := tmp_path / "strip.png").write_bytes(data := encoded(gradient(*size), "PNG"))
    limits = ImageLimits(max_side=29)
    with pytest.raises(
        ImageTooLargeError, match=rf"{size[0]}x{size[1]}, over the limit of 29 pixels a side: .* max_side"
    ):
        load_image(SOURCES[source](data, path), limits)
    assert load_image(SOURCES[source](data, path), ImageLimits(max_side=30)).size == size
    assert image_size(SOURCES[source](data, path), limits) is None


def test_no_jpeg_is_too_long_by_default_but_a_longer_strip_is() -> None:
    assert image_size(png_header(65_535, 900)) == (65_535, 900)
    for size in ((65_536, 1), (1, 65_536), (32_000_000, 1), (16_000_000, 3)):
        with pytest.raises(ImageTooLargeError, match="over the limit of 65535 pixels a side"):
            load_image(png_header(*size))


@pytest.mark.parametrize("size", [(9_500, 9_500), (20_000, 20_000)])
def test_pillows_own_bomb_check_stays_silent(size: tuple[int, int], recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(ImageTooLargeError, match="over the limit of 64000000"):
        load_image(png_header(*size))
    assert not recwarn.list


def test_the_limit_may_be_raised_above_pillows_own() -> None:
    # Past the size check the truncated pixels are what stops it.
    with pytest.raises(ImageDecodeError, match="PNG"):
        load_image(png_header(9_500, 9_500), ImageLimits(max_pixels=100_000_000))


def test_a_gif_frame_beyond_its_canvas_is_an_error() -> None:
    data = bytearray(encoded(Image.new("P", (8, 8)), "GIF"))
    descriptor = data.rindex(b",\0\0\0\0\x08\0\x08\0")
    data[descriptor + 5 : descriptor + 9] = b"\xff\xff\xff\xff"
    with pytest.raises(ImageTooLargeError):
        load_image(bytes(data))


@pytest.mark.parametrize("wrap", [bytes, memoryview, io.BytesIO])
def test_over_the_byte_limit(wrap: Callable[[bytes], Any]) -> None:
    data = encoded(gradient(), "PNG")
    with pytest.raises(ImageTooLargeError, match="max_bytes"):
        load_image(wrap(data), ImageLimits(max_bytes=len(data) - 1))
    assert load_image(wrap(data), ImageLimits(max_bytes=len(data))).size == (24, 16)


def test_a_file_over_the_byte_limit(image: Path) -> None:
    with pytest.raises(ImageTooLargeError, match="max_bytes"):
        load_image(image, ImageLimits(max_bytes=20))


def test_an_endless_device_is_read_no_further_than_the_limit() -> None:
    with pytest.raises(ImageTooLargeError, match="max_bytes"):
        load_image("/dev/zero", ImageLimits(max_bytes=3_000_000))


@pytest.mark.parametrize("content", ["plain words", "caf\xe9"], ids=["readable", "undecodable"])
def test_text_mode_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content.encode("latin-1"))
    with open(path, encoding="utf-8") as file, pytest.raises(ImageDecodeError, match="open it in binary mode"):
        load_image(file)  # type: ignore[arg-type]


def test_closed_file() -> None:
    file = io.BytesIO(encoded(gradient(), "PNG"))
    file.close()
    with pytest.raises(ImageDecodeError, match="is closed"):
        load_image(file)


def test_write_only_file(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as file, pytest.raises(ImageDecodeError, match="cannot be read"):
        load_image(file)


def as_uri(data: bytes, head: str = "data:image/png;base64,") -> str:
    return head + base64.b64encode(data).decode()


@pytest.mark.parametrize("head", ["data:image/png;base64,", "DATA:;BASE64,", "data:image/jpeg;name=a.png;base64,"])
def test_a_data_uri_is_the_file_in_it(image: Path, head: str) -> None:
    uri = as_uri(image.read_bytes(), head)
    lines = head + "\r\n".join(textwrap.wrap(uri[len(head) :], 76))

    for text in (uri, lines):
        assert load_image(text).tobytes() == load_image(image).tobytes()
        assert file_bytes(text) == image.read_bytes()
    assert image_size(uri) == load_image(image).size


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("data:image/png;base64,iVBOR*", "base64 of the data URI is damaged"),
        ("data:image/png;base64,iVBO Rw0\N{GRINNING FACE}", "base64 of the data URI is damaged"),
        ("data:image/png;base64,iVBO=Rw0", "base64 of the data URI is damaged"),
        ("data:image/svg+xml,<svg/>", "not a data URI in base64"),
        ("data:" + "x" * 1000, "not a data URI in base64"),
        ("data:image/png;base64,", r"the image of the data URI is empty \(0 bytes\)"),
        ("data:text/plain;base64,aGVsbG8gd29ybGQ=", "is in no supported image format"),
    ],
)
def test_a_data_uri_without_an_image_is_refused(uri: str, reason: str) -> None:
    with pytest.raises(ImageDecodeError, match=reason) as caught:
        load_image(uri)
    assert len(str(caught.value)) < 400


def test_a_data_uri_over_the_limit_is_not_decoded(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("photonlite.images.source.read_data_uri", None)
    with pytest.raises(ImageTooLargeError, match="the image of the data URI has more than 100 bytes"):
        load_image(as_uri(b"x" * 1000), ImageLimits(max_bytes=100))


@pytest.mark.parametrize("url", ["https://example.org/cat.jpg", "HTTP://example.org/cat.jpg?" + "x" * 1000])
def test_a_url_is_not_fetched_but_says_how(url: str) -> None:
    for read in (load_image, file_bytes):
        with pytest.raises(ImageUrlError, match=r"photonlite\.load\(allow_urls=True\), or --allow-urls") as caught:
            read(url)
        assert len(str(caught.value)) < 400
    assert image_size(url) is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [([[0, 1]], ImageShapeError), (np.uint8(3), ImageShapeError), (None, ImageError), (7, ImageError)],
)
def test_other_objects(source: Any, expected: type[ImageError]) -> None:
    with pytest.raises(expected, match="hand in"):
        load_image(source)


@pytest.mark.parametrize("size", [(700, 1500), (400_000, 2), (2, 400_000)])
def test_pixels_are_packed_in_small_bands(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, (1, 2, 3))
    assert max(map(len, rgb_bands(image))) <= max(2**20, 3 * size[0])
    assert rgb_bytes(image) == image.tobytes()


def test_pillow_image_without_pixels() -> None:
    with pytest.raises(ImageShapeError, match="0x5"):
        load_image(Image.new("RGB", (0, 5)))


# --- hostile bytes and threads


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's remarks on metadata that the flips have damaged
@pytest.mark.parametrize("format", FORMATS)
def test_damaged_files_give_an_image_or_a_typed_error(format: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = encoded(gradient(40, 30), format, **({} if format in ("GIF", "BMP", "PPM") else {"exif": exif}))
    rng = random.Random(format)
    refused = 0
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 3, 20])):
            # Half of the flips fall into the header, where they do most harm.
            damaged[rng.randrange(4, rng.choice([64, len(data)]))] = rng.randrange(256)
        try:
            load_image(bytes(damaged), ImageLimits(max_pixels=100_000))
        except ImageError:
            refused += 1
    assert refused


def test_one_lazy_pillow_image_in_many_threads() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = encoded(gradient(300, 200), "PNG", exif=exif)
    expected = load_image(data)
    for _ in range(10):
        lazy, barrier = Image.open(io.BytesIO(data)), threading.Barrier(8)

        def load(_: int, lazy: Image.Image = lazy, barrier: threading.Barrier = barrier) -> Image.Image:
            barrier.wait()
            return load_image(lazy)

        with ThreadPoolExecutor(8) as pool:
            assert all(same(image, expected) for image in pool.map(load, range(8)))


@pytest.mark.parametrize("format", FORMATS)
def test_the_bytes_of_a_decoded_image_are_known_from_its_header(format: str, tmp_path: Path) -> None:
    data = encoded(gradient(), format)
    (tmp_path / "image").write_bytes(data)
    file = io.BytesIO(data)
    sources = [data, bytearray(data), memoryview(data), tmp_path / "image", str(tmp_path / "image"), file]

    assert [image_size(source) for source in sources] == [(24, 16)] * len(sources)
    assert load_image(file).size == (24, 16)  # it may have been read before


def test_the_bytes_of_an_image_in_memory_are_known_too() -> None:
    assert image_size(gradient()) == image_size(np.asarray(gradient())) == (24, 16)
    assert image_size(np.zeros((16, 24), np.uint8)) == (24, 16)


def test_the_header_alone_is_enough_and_what_has_none_or_is_too_large_counts_nothing(tmp_path: Path) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    assert image_size(png_header(1000, 500)) == (1000, 500)
    assert image_size(png_header(1000, 500), ImageLimits(max_pixels=499_999)) is None
    pipe = Pipe(encoded(gradient(), "PNG"))
    os.mkfifo(tmp_path / "fifo")
    for source in (b"no image", b"", tmp_path / "nowhere", tmp_path / "fifo", tmp_path, object(), None, [1], pipe):
        assert image_size(source) is None  # type: ignore[arg-type]
    assert load_image(pipe).size == (24, 16)  # nothing has been read from it


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_decodes_although_a_thread_was_decoding_at_the_fork() -> None:
    image = gradient()
    with decode._LAZY_LOCKS[id(image) % len(decode._LAZY_LOCKS)]:
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(int(GUARD))
                load_image(image)
                os._exit(7)
            finally:
                os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
