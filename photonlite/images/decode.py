"""Decoding: any image source to upright 8-bit RGB.

The order protects the process from hostile files: bytes are counted, the first bytes are compared with `_FORMATS`, the
size in the header is checked, and only then are pixels decoded, once. Pillow's readers are called directly:
`PIL.Image.open` tries every plugin (one starts ghostscript), and warns or raises at a pixel count of its own.

Colour follows Pillow's `convert("RGB")`, as in the reference: alpha is dropped and not composited (with
`ImageLimits.on_white` it is, on white), colour profiles are ignored, palettes are looked up, CMYK is inverted without a
profile. It differs where `convert` would clip: 16-bit and float pixels are scaled to the 8-bit range.

Full scale, the value that becomes 255:

| pixels | full scale |
|---|---|
| mode I;16 (16-bit PNG, TIFF), mode I of a 16-bit PGM | 65535 |
| mode I otherwise | 255 if no value is above it (as `convert("I")` makes them), else 65535 |
| mode F | 1 if no value is above it, else 255 (as `convert("F")` makes them) |
| uint16 array | 65535 |
| float array | 1 |
| bool array | True |
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
from typing import IO, Any, BinaryIO, Final, cast

import numpy as np
import numpy.typing as npt
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
from photonlite.images.source import DecodedImage, ImageSource, check_bytes, first_line, is_data_uri, opened_source
from photonlite.images.tensors import is_tensor, tensor_to_array

# Name, first bytes, reader. The list is closed: other files never reach a decoder.
_FORMATS: Final[tuple[tuple[str, re.Pattern[bytes], type[ImageFile.ImageFile]], ...]] = (
    ("JPEG", re.compile(rb"\xff\xd8\xff"), JpegImageFile),
    ("PNG", re.compile(rb"\x89PNG\r\n\x1a\n"), PngImageFile),
    ("WebP", re.compile(rb"RIFF....WEBP", re.DOTALL), WebPImageFile),
    ("GIF", re.compile(rb"GIF8[79]a"), GifImageFile),
    ("BMP", re.compile(rb"BM"), BmpImageFile),
    ("TIFF", re.compile(rb"II[*+]\0|MM\0[*+]"), TiffImageFile),
    ("PPM", re.compile(rb"P[1-6][\s#]"), PpmImageFile),
    ("AVIF", re.compile(rb"....ftyp(avi[fs]|(mif1|msf1)(....)+?avi[fs])", re.DOTALL), AvifImageFile),
)
_HEIC: Final = re.compile(rb"....ftyp(hei|hev|mif1|msf1)", re.DOTALL)
_NAMES: Final = ", ".join(name for name, _, _ in _FORMATS)
_LONGEST_SIGNATURE: Final = 64
_HEADER: Final = 1 << 20  # bytes of a file object that are read for its size

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

_WANTED_ARRAY: Final = "hand in an array of shape [height, width, 3] and dtype uint8"
_TRANSPARENT: Final = frozenset(("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa"))  # modes that may be
_STRAIGHT: Final = {"La": "LA", "RGBa": "RGBA"}  # modes of premultiplied alpha, and of straight alpha
_SCALED_AT_ONCE: Final = 2**18  # values
_BAND: Final = 2**20  # bytes that are packed at once

# Pillow reads pixels and EXIF of an opened file on first use, into the object and without a lock. One image always
# gets the same of these locks; two images rarely share one.
_LAZY_LOCKS: Final = [threading.Lock() for _ in range(61)]


def _renew_locks() -> None:
    """Replace the locks in a forked process: threads that held some stayed in the parent."""
    _LAZY_LOCKS[:] = [threading.Lock() for _ in _LAZY_LOCKS]


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_renew_locks)


def load_image(source: ImageSource, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> Image.Image:
    """Decode an image into a new upright RGB image that has no metadata and shares no memory with `source`.

    The EXIF orientation is applied, whatever the source; an animation gives its first frame (a Pillow image its
    current frame); alpha is dropped, 16-bit and float pixels are scaled, see the module. A `str` is a path or a data
    URI, a file object is read from its start, and all other sources may be passed to several threads at once. Raises an
    ImageError; the limit of pixels is checked against the header, before decoding.
    """
    if isinstance(source, DecodedImage):
        check_pixels("the image", *source.size, limits)
        return source.image
    if isinstance(source, Image.Image):
        return _from_pillow(source, limits)
    if is_tensor(source):
        source = tensor_to_array(source)
    if isinstance(source, np.ndarray):
        if source.ndim >= 2:
            check_pixels("the array", source.shape[1], source.shape[0], limits)
        return array_to_rgb(source, limits.on_white)
    with opened_source(source, limits) as (name, stream):
        return decode_opened(name, open_image(name, stream, limits), limits.on_white)


def file_bytes(source: ImageSource, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> bytes | None:
    """Read the bytes of an image file without parsing them; None for a source that holds pixels."""
    if isinstance(source, (Image.Image, DecodedImage, np.ndarray)) or is_tensor(source):
        return None
    if isinstance(source, bytes):
        check_bytes("the image", len(source), limits)
        return source
    with opened_source(source, limits) as (name, stream), decoder_errors(name, "an image"):
        return stream.read()


def image_size(source: ImageSource, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> tuple[int, int] | None:
    """Return an image's width and height, from its header; None where that cannot be read, or is over a limit."""
    try:
        width, height = _header_size(source, limits)
        check_pixels("the image", width, height, limits)
    except Exception:  # a caller's file object may raise anything, and raises it again when the image is loaded
        return None
    return (width, height) if width * height > 0 else None


def _header_size(source: ImageSource, limits: ImageLimits) -> tuple[int, int]:
    if isinstance(source, (Image.Image, DecodedImage)):
        return source.size
    if isinstance(source, np.ndarray):
        return source.shape[1], source.shape[0]
    if hasattr(source, "seekable"):
        file = cast(BinaryIO, source)
        return _file_size(io.BytesIO(file.read(_HEADER))) if file.seekable() and not file.seek(0) else (0, 0)
    path = source if isinstance(source, (str, os.PathLike)) and not is_data_uri(str(source)) else None
    if path is not None and not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe would take its bytes away
        return 0, 0
    with opened_source(source, limits) as (_, stream):
        return _file_size(stream)


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


def decode_opened(name: str, image: Image.Image, on_white: bool = False) -> Image.Image:
    """Decode the pixels of an image from `open_image`, of which this holds the only reference, into upright RGB."""
    with decoder_errors(name, image.format or "an image"):
        image.load()
        orientation = exif_orientation(image)
        if image.mode != "RGB" or "transparency" in image.info:
            return _upright(image_to_rgb(image, on_white), orientation)
        rgb = image._new(image.im)  # a plain image around the same pixels, which nothing else changes
        rgb.info = {}
        return _upright(rgb, orientation)


def check_pixels(name: str, width: int, height: int, limits: ImageLimits) -> None:
    if max(width, height) > limits.max_side:
        raise ImageTooLargeError(
            f"{name} is {width}x{height}, over the limit of {limits.max_side} pixels a side: "
            "crop or shrink it, or raise max_side (PHOTONLITE_MAX_SIDE)"
        )
    if width * height > limits.max_pixels:
        raise ImageTooLargeError(
            f"{name} is {width}x{height}, {width * height} pixels, over the limit of {limits.max_pixels}: "
            "shrink it, or raise max_pixels (PHOTONLITE_MAX_PIXELS)"
        )


def _find_reader(name: str, head: bytes) -> tuple[str, type[ImageFile.ImageFile]]:
    for format_name, signature, reader in _FORMATS:
        if signature.match(head):
            return format_name, reader
    kind = "HEIC, which is not supported" if _HEIC.match(head) else "in no supported image format"
    raise ImageDecodeError(f"{name} is {kind}: convert it to one of {_NAMES}")


def _from_pillow(image: Image.Image, limits: ImageLimits) -> Image.Image:
    if 0 in image.size:
        raise ImageShapeError(f"the image has no pixels ({image.width}x{image.height}): both sides must be at least 1")
    check_pixels("the image", *image.size, limits)
    with decoder_errors("the image", image.format or f"mode {image.mode}"):
        with _LAZY_LOCKS[id(image) % len(_LAZY_LOCKS)]:
            try:
                image.load()
            except (AssertionError, ValueError) as cause:  # Pillow raises both for a closed image
                if isinstance(cause, ValueError) and "closed" not in str(cause):
                    raise
                advice = "hand it in while it is open, or a copy() of it"
                raise ImageDecodeError(f"the image is closed: {advice}") from cause
            orientation = exif_orientation(image)
        return _upright(image_to_rgb(image, limits.on_white), orientation)


def _upright(rgb: Image.Image, orientation: int) -> Image.Image:
    return rgb.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else rgb


def exif_orientation(image: Image.Image) -> int:
    """The EXIF orientation of a loaded image, 1 (upright) where it has none or its EXIF block is damaged."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # the pixels are sound, and viewers show such an image as it is stored
        return 1


def image_to_rgb(image: Image.Image, on_white: bool = False) -> Image.Image:
    """Convert a loaded image of any Pillow mode to a new RGB image without metadata or shared memory."""
    if on_white and (opacity := _opacity(image)) is not None:
        white = Image.new("RGB", image.size, "white")
        white.paste(image_to_rgb(image), mask=opacity)
        return white
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        values = np.asarray(image)
        return Image.fromarray(_to_uint8(values, _full_scale(image, values), f"mode {image.mode}")).convert("RGB")
    bare = image._new(image.im)  # the same pixels; Pillow would carry transparency over, and warns where it cannot
    bare.info = {}
    # Premultiplied alpha cannot be converted to RGB directly.
    return (bare.convert(_STRAIGHT[bare.mode]) if bare.mode in _STRAIGHT else bare).convert("RGB")


def _opacity(image: Image.Image) -> Image.Image | None:
    """Return how opaque each pixel is, in mode L; None for an image without transparency."""
    if image.mode.startswith("I;16") and "transparency" in image.info:  # the grey value that is transparent
        return Image.fromarray(255 * (np.asarray(image) != image.info["transparency"]).astype(np.uint8))
    if image.mode not in _TRANSPARENT or not image.has_transparency_data:
        return None
    return image.convert(_STRAIGHT.get(image.mode, "RGBA")).getchannel("A")


def array_to_rgb(array: npt.NDArray[Any], on_white: bool = False) -> Image.Image:
    """Convert [H, W] or [H, W, 1, 3 or 4] to a new RGB image that shares no memory.

    uint8 stays as it is; uint16, bool and floats in [0, 1] are scaled: see the module.
    """
    _check_array(array)
    if array.ndim == 3 and not (on_white and array.shape[2] == 4):
        array = array[..., 0] if array.shape[2] == 1 else array[..., :3]
    if array.dtype != np.uint8:
        array = _to_uint8(array, 65535.0 if _is_uint16(array) else 1.0, f"{array.dtype} array")
    image = Image.fromarray(array)
    # Pillow aliases grey arrays, and copies RGB ones.
    return image if image.mode == "RGB" else image_to_rgb(image, on_white)


def rgb_bytes(image: Image.Image) -> memoryview:
    """Return the pixels of an RGB image, ``[H, W, 3]``, in half the time of `tobytes`, which joins small blocks."""
    pixels, end = np.empty(3 * image.width * image.height, np.uint8).data, 0
    for band in rgb_bands(image):
        start, end = end, end + len(band)
        pixels[start:end] = band
    return pixels


def rgb_bands(image: Image.Image) -> Iterator[bytes]:
    """Yield the pixels of an RGB image in bands of whole rows, of about a megabyte.

    Packing a band holds Python's global lock: packing a whole large image would stop all other threads for 0.2 s.
    """
    rows = max(1, _BAND // (3 * image.width))
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        encoder, size = Image._getencoder(image.mode, "raw", image.mode), 3 * image.width * (bottom - top)
        encoder.setimage(image.im, (0, top, image.width, bottom))
        _, status, data = encoder.encode(size)
        if status < 0 or len(data) != size:
            raise AssertionError(f"packing rows of {image.width} pixels gave {len(data)} bytes, status {status}")
        yield bytes(data)


def _check_array(array: npt.NDArray[Any]) -> None:
    shape = list(array.shape)
    scaled = _is_uint16(array) or array.dtype == np.bool_ or np.issubdtype(array.dtype, np.floating)
    if array.dtype != np.uint8 and not scaled:
        raise ImageShapeError(
            f"an array of dtype {array.dtype} is not an image: {_WANTED_ARRAY}, uint16, bool, or floats in [0, 1]; "
            "scale other integers yourself"
        )
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        hint = ""
        if array.ndim == 3 and array.shape[0] in (1, 3, 4):
            hint = "; channels come last: array.transpose(1, 2, 0)"
        elif array.ndim == 4:
            hint = "; one image at a time: array[0]"
        raise ImageShapeError(f"an array of shape {shape} is not an image: {_WANTED_ARRAY}{hint}")
    if array.size == 0:
        raise ImageShapeError(f"an array of shape {shape} has no pixels: height and width must be at least 1")


def _is_uint16(array: npt.NDArray[Any]) -> bool:
    return array.dtype.kind == "u" and array.dtype.itemsize == 2  # in either order of bytes


def _full_scale(image: Image.Image, values: npt.NDArray[Any]) -> float:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        return 65535.0
    narrow, wide = (1.0, 255.0) if image.mode == "F" else (255.0, 65535.0)
    return narrow if values.max() <= narrow else wide


def _to_uint8(values: npt.NDArray[Any], full_scale: float, what: str) -> npt.NDArray[np.uint8]:
    """Scale `full_scale` to 255 and round; values that would not round to 0..255 are refused, never clipped."""
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):  # NaN anywhere makes both NaN
        raise ImageShapeError(f"{what} holds NaN or infinity: replace them first, with numpy.nan_to_num")
    half_step = 0.5 / 255 * full_scale
    if low < -half_step or high > full_scale + half_step:
        raise ImageShapeError(
            f"{what} holds values from {low:g} to {high:g}, outside 0 to {full_scale:g}: "
            "scale the values to that range, or convert them to uint8"
        )
    scaled = np.empty(values.shape, np.uint8)
    rows = max(1, _SCALED_AT_ONCE // max(1, values[0].size))  # float copies of the whole would multiply the memory
    for top in range(0, len(values), rows):
        block = np.rint(values[top : top + rows] * np.float32(255 / full_scale))
        scaled[top : top + rows] = np.clip(block, 0, 255)
    return scaled


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
