"""Decoding: any image source to upright 8-bit RGB.

The order protects the process from hostile files: bytes are counted, the first bytes are compared with `_FORMATS`, the
size in the header is checked, and only then are pixels decoded, once. Pillow's readers are called directly:
`PIL.Image.open` tries every plugin (one starts ghostscript), and warns or raises at a pixel count of its own.
"""

from __future__ import annotations

import io
import os
import re
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

import numpy as np
from PIL import ExifTags, Image, ImageFile
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from photonlite.config import DEFAULT_IMAGE_LIMITS, ImageLimits
from photonlite.errors import ImageDecodeError, ImageError, ImageShapeError, ImageTooLargeError
from photonlite.images.rgb import array_to_rgb, image_to_rgb
from photonlite.images.source import (
    DecodedImage,
    ImageSource,
    check_bytes,
    first_line,
    opened_source,
)

# Name, first bytes, reader. The list is closed: other files never reach a decoder.
_FORMATS: Final[tuple[tuple[str, re.Pattern[bytes], type[ImageFile.ImageFile]], ...]] = (
    ("JPEG", re.compile(rb"\xff\xd8\xff"), JpegImageFile),
    ("PNG", re.compile(rb"\x89PNG\r\n\x1a\n"), PngImageFile),
    ("WebP", re.compile(rb"RIFF....WEBP", re.DOTALL), WebPImageFile),
    ("GIF", re.compile(rb"GIF8[79]a"), GifImageFile),
    ("BMP", re.compile(rb"BM"), BmpImageFile),
    ("TIFF", re.compile(rb"II[*+]\0|MM\0[*+]"), TiffImageFile),
    ("PPM", re.compile(rb"P[1-6][\s#]"), PpmImageFile),
    ("AVIF", re.compile(rb"....ftyp(avif|avis|mif1|msf1)", re.DOTALL), AvifImageFile),
)
_NAMES: Final = ", ".join(name for name, _, _ in _FORMATS)
_LONGEST_SIGNATURE: Final = 16
_HEADER: Final = 1 << 20  # bytes of a file object that are read for its size

# Bytes a pixel: upper bounds of measurements (`VmHWM` of a worker, by format, mode and size). The kernel refuses memory
# to a worker that takes more.
_RGB_BYTES: Final = 3
_UPRIGHT_BYTES: Final = 4
_STORED: Final = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # in Pillow; other modes 4
_CONVERSION: Final = {"RGB": 0, "I": 10, "F": 10, "I;16": 8, "I;16L": 8, "I;16B": 8, "I;16N": 8}  # other modes 4
_UNTIL_CLOSED: Final = {"WEBP": 12, "AVIF": 16, "GIF": 4}  # frames and planes, held as long as the image exists
_UNTIL_DECODED: Final = {"TIFF": 8, "BMP": 4, "PPM": 8, "PNG": 1}  # strips and rows, held until it is decoded

WEBP_HEADER: Final = 30  # bytes of a WebP file that `webp_size` reads

# EXIF orientation, and what turns such an image upright.
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Pillow reads pixels and EXIF of an opened file on first use, into the object and without a lock. One image always
# gets the same of these locks; two images rarely share one.
_LAZY_LOCKS: Final = tuple(threading.Lock() for _ in range(61))


def load_image(source: ImageSource, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> Image.Image:
    """Decode an image into a new upright RGB image that has no metadata and shares no memory with `source`.

    The EXIF orientation is applied, whatever the source; an animation gives its first frame (a Pillow image its
    current frame); alpha is dropped; 16-bit and float pixels are scaled, see `photonlite.images.rgb`. A `str` is always
    a path, a file object is read from its start, and all other sources may be passed to several threads at once.
    Raises an ImageError; the limit of pixels is checked against the header, before decoding.
    """
    if isinstance(source, DecodedImage):
        check_pixels("the image", *source.size, limits)
        return source.image
    if isinstance(source, Image.Image):
        return _from_pillow(source, limits)
    if isinstance(source, np.ndarray):
        if source.ndim >= 2:
            check_pixels("the array", source.shape[1], source.shape[0], limits)
        return array_to_rgb(source)
    with opened_source(source, limits) as (name, stream):
        return decode_opened(name, open_image(name, stream, limits))


def file_bytes(source: ImageSource, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> bytes | None:
    """Read the bytes of an image file without parsing them; None for a source that holds pixels."""
    if isinstance(source, (Image.Image, DecodedImage, np.ndarray)):
        return None
    if isinstance(source, bytes):
        check_bytes("the image", len(source), limits)
        return source
    with opened_source(source, limits) as (name, stream), decoder_errors(name, "an image"):
        return stream.read()


def decoded_bytes(source: ImageSource, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> int:
    """Return an image's bytes in RGB, from its header; 0 where that cannot be read, or is over a limit."""
    try:
        width, height = _header_size(source, limits)
    except Exception:  # a caller's file object may raise anything, and raises it again when the image is loaded
        return 0
    return 3 * width * height if width * height <= limits.max_pixels else 0


def needed_bytes(data: bytes, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> int:
    """Return the peak memory of decoding an image file, from its header; 0 where that is unreadable or over a limit."""
    try:
        return working_bytes(open_image("the image", io.BytesIO(data), limits)) + 2 * len(data)
    except ImageError:
        return 0


def _header_size(source: ImageSource, limits: ImageLimits) -> tuple[int, int]:
    if isinstance(source, (Image.Image, DecodedImage)):
        return source.size
    if isinstance(source, np.ndarray):
        return source.shape[1], source.shape[0]
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _file_size(io.BytesIO(source))
    if isinstance(source, (str, os.PathLike)):
        if not stat.S_ISREG(os.stat(source).st_mode):
            return 0, 0
        with opened_source(source, limits) as (_, stream):
            return _file_size(stream)
    if source.seekable():
        source.seek(0)
        return _file_size(io.BytesIO(source.read(_HEADER)))
    return 0, 0


def _file_size(stream: IO[bytes]) -> tuple[int, int]:
    head = stream.read(_LONGEST_SIGNATURE)
    stream.seek(0)
    size: tuple[int, int] = _find_reader("the image", head)[1](stream).size
    return size


def open_image(name: str, stream: IO[bytes], limits: ImageLimits) -> ImageFile.ImageFile:
    """Read the header of an image file, from the start of a stream that can seek, and check its size."""
    with decoder_errors(name, "an image"):
        head = stream.read(_LONGEST_SIGNATURE)
        stream.seek(0)
    if not head:
        raise ImageDecodeError(f"{name} is empty (0 bytes): hand in a whole {_NAMES} file")
    format_name, reader = _find_reader(name, head)
    with decoder_errors(name, format_name):
        image = reader(stream)
    check_pixels(name, *image.size, limits)
    return image


def decode_opened(name: str, image: ImageFile.ImageFile) -> Image.Image:
    """Decode the pixels of an image from `open_image`, of which this holds the only reference, into upright RGB."""
    with decoder_errors(name, image.format or "an image"):
        image.load()
        orientation = _orientation(image)
        if image.mode != "RGB" or "transparency" in image.info:
            return _upright(image_to_rgb(image), orientation)
        rgb = image._new(image.im)  # a plain image around the same pixels, which nothing else changes
        rgb.info = {}
        return _upright(rgb, orientation)


def check_pixels(name: str, width: int, height: int, limits: ImageLimits) -> None:
    if width * height > limits.max_pixels:
        raise ImageTooLargeError(
            f"{name} is {width}x{height}, {width * height} pixels, over the limit of {limits.max_pixels}: "
            "shrink it, or raise max_pixels (PHOTONLITE_MAX_PIXELS)"
        )


def _find_reader(name: str, head: bytes) -> tuple[str, type[ImageFile.ImageFile]]:
    for format_name, signature, reader in _FORMATS:
        if signature.match(head):
            return format_name, reader
    raise ImageDecodeError(f"{name} is in no supported image format: convert it to one of {_NAMES}")


def _from_pillow(image: Image.Image, limits: ImageLimits) -> Image.Image:
    if 0 in image.size:
        raise ImageShapeError(f"the image has no pixels ({image.width}x{image.height}): both sides must be at least 1")
    check_pixels("the image", *image.size, limits)
    with decoder_errors("the image", image.format or f"mode {image.mode}"):
        with _LAZY_LOCKS[id(image) % len(_LAZY_LOCKS)]:
            image.load()
            orientation = _orientation(image)
        return _upright(image_to_rgb(image), orientation)


def _upright(rgb: Image.Image, orientation: int) -> Image.Image:
    return rgb.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else rgb


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation of a loaded image, 1 (upright) where it has none or its EXIF block is damaged."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # the pixels are sound, and viewers show such an image as it is stored
        return 1


def working_bytes(image: ImageFile.ImageFile) -> int:
    """Return the peak memory of decoding an opened image, without copies of the file."""
    # The pixels in Pillow, the RGB result, and the larger of the codec's buffers and those of conversion and turning.
    later = _CONVERSION.get(image.mode, 4) + _UPRIGHT_BYTES
    if isinstance(image, JpegImageFile):
        beside = max(_coefficient_bytes(image.layer), later)
    elif image.format in _UNTIL_DECODED:
        beside = max(_UNTIL_DECODED[image.format], later)
    else:
        beside = _UNTIL_CLOSED.get(image.format or "", 16) + later
    return image.width * image.height * (_STORED.get(image.mode, 4) + beside + _RGB_BYTES)


def webp_bytes(size: tuple[int, int]) -> int:
    """Return the peak memory of opening and decoding a WebP of a size."""
    return size[0] * size[1] * (4 + _UNTIL_CLOSED["WEBP"] + 4 + _UPRIGHT_BYTES + _RGB_BYTES)


def webp_size(head: bytes) -> tuple[int, int] | None:
    """Return width and height of a WebP's canvas, which libwebp allocates on opening; None for other files."""
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP":
        return None
    match head[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    return None


def _coefficient_bytes(layers: list[Any]) -> int:
    """Coefficients of a JPEG with several scans, which libjpeg keeps for the whole image."""
    areas = [max(1, across * down) for _, across, down, _ in layers]
    return -(-2 * sum(areas) // max(areas, default=1)) if areas else 8


@contextmanager
def decoder_errors(name: str, format_name: str) -> Iterator[None]:
    """Turn any exception of a decoder into an `ImageError` of one line."""
    try:
        yield
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageTooLargeError(
            f"{name} has a frame or tile over Pillow's own limit: raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        ) from error
    except MemoryError as error:
        raise ImageTooLargeError(
            f"{name} takes more memory to decode than there is for an image of its size: shrink it, or save it again"
        ) from error
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, zlib.error and more
        raise ImageDecodeError(
            f"{name} cannot be decoded as {format_name} ({first_line(error)}): "
            "it may be truncated or damaged, copy or save it again"
        ) from error


def ignore_pillow_warnings() -> None:
    """Suppress Pillow's warnings in this process; only programs call this, at their start.

    The warnings contain numbers of the file, and Python remembers every text it has shown, so each damaged image would
    add to stderr and to memory. `warnings.catch_warnings` would undo what other threads have set.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
