"""Open an image: path, bytes, file object, Pillow image or numpy array to upright 8-bit RGB.

The order protects the process from hostile files: bytes are counted, the format is told by its first bytes among those
of `_FORMATS`, the header gives the size, the size meets the limit, and only then are the pixels decoded, once.

Pillow's readers are called directly and not through `PIL.Image.open`, which tries every plugin of the process (one of
them starts ghostscript) and warns or raises at a pixel count of its own.
"""

from __future__ import annotations

import io
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, Final, TypeAlias

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
from photonlite.errors import ImageDecodeError, ImageError, ImageNotFoundError, ImageShapeError, ImageTooLargeError
from photonlite.images.rgb import array_to_rgb, image_to_rgb
from photonlite.images.working_memory import working_bytes


@dataclass(frozen=True, slots=True, eq=False)
class DecodedImage:
    """An image that is upright RGB already, and that nobody else holds or changes.

    Attributes:
        image: Of mode RGB.
    """

    image: Image.Image

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.image.size


ImageSource: TypeAlias = (
    Image.Image | DecodedImage | npt.NDArray[Any] | str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO
)

# Name, first bytes, reader. The list is closed: what is not in it never reaches a decoder.
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
_CHUNK: Final = 1 << 20
_HEADER: Final = 1 << 20  # bytes of a file object that are read for its size

# Values of the EXIF orientation tag, and what turns such an image upright.
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Pillow reads the pixels and EXIF of an opened file when first asked, into the object and without a lock. One image
# always meets the same lock here; two images seldom meet.
_LAZY_LOCKS: Final = tuple(threading.Lock() for _ in range(61))


def load_image(source: ImageSource, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> Image.Image:
    """Open an image and turn it into upright RGB.

    The EXIF orientation is applied, whatever the image came from; an animation gives its first frame (a Pillow image
    the frame at which it stands); alpha is dropped; 16-bit and float pixels are scaled, see `photonlite.images.rgb`.

    Args:
        source: A path (`str` is always a path, never base64 or a URL), the bytes of a file, a binary file object (read
            from its start), a Pillow image, or an array [H, W, 3], [H, W, 4], [H, W, 1] or [H, W] of uint8 or of floats
            in [0, 1]. All but file objects may be handed to several threads at once.
        limits: The largest image to accept.

    Returns:
        A new image of mode RGB without metadata. It shares no memory with `source`.

    Raises:
        ImageNotFoundError: The path leads to no file.
        ImageDecodeError: Not an image of a known format, empty, truncated or damaged, or it cannot be read.
        ImageTooLargeError: Over one of the limits. Pixels are judged by the header, before decoding.
        ImageShapeError: An array (or a Pillow image of mode I or F) of a shape, dtype or values that no image has.
        ImageError: `source` is something else altogether.
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
    with _opened_file(source, limits) as (name, stream):
        return _decode(name, stream, limits)


def file_bytes(source: ImageSource, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> bytes | None:
    """Read the bytes of an image file without looking into them.

    Args:
        source: See `load_image`.
        limits: The largest image to accept.

    Returns:
        The bytes; None for a source that holds pixels.

    Raises:
        ImageNotFoundError: The path leads to no file.
        ImageDecodeError: It cannot be read.
        ImageTooLargeError: Over the limit of bytes.
        ImageError: `source` is something else altogether.
    """
    if isinstance(source, (Image.Image, DecodedImage, np.ndarray)):
        return None
    if isinstance(source, bytes):
        _check_bytes("the image", len(source), limits)
        return source
    with _opened_file(source, limits) as (name, stream), decoder_errors(name, "an image"):
        return stream.read()


@contextmanager
def _opened_file(source: ImageSource, limits: ImageLimits) -> Iterator[tuple[str, IO[bytes]]]:
    """Open a source that is a file; give what to call it in messages, and a stream that can seek."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = source.tobytes() if isinstance(source, memoryview) else source
        _check_bytes("the image", len(data), limits)
        yield "the image", io.BytesIO(data)
    elif isinstance(source, (str, os.PathLike)):
        with _open_file(source, limits) as (name, stream):
            yield name, stream
    elif callable(getattr(source, "read", None)):
        yield "the file object", _read_all("the file object", source, limits)
    else:
        raise _unusable(source)


def decoded_bytes(source: ImageSource, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> int:
    """Tell how many bytes an image has in RGB, from its header.

    Args:
        source: See `load_image`. A file object that can seek is read at its start, and not one that cannot.
        limits: The largest image to accept.

    Returns:
        Three for each pixel; 0 where the header cannot be read, or is over a limit: `load_image` says why.
    """
    try:
        width, height = _header_size(source, limits)
    except Exception:  # a caller's file object may raise anything, and raises it again when the image is loaded
        return 0
    return 3 * width * height if width * height <= limits.max_pixels else 0


def needed_bytes(data: bytes, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> int:
    """Return how many bytes of memory decoding an image file takes at its peak, from its header.

    Returns:
        See `photonlite.images.working_memory`; 0 where the header cannot be read, or is over a limit.
    """
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
        return _size_in(io.BytesIO(source))
    if isinstance(source, (str, os.PathLike)):
        if not stat.S_ISREG(os.stat(source).st_mode):
            return 0, 0
        with _open_file(source, limits) as (_, stream):
            return _size_in(stream)
    if source.seekable():
        source.seek(0)
        return _size_in(io.BytesIO(source.read(_HEADER)))
    return 0, 0


def _size_in(stream: IO[bytes]) -> tuple[int, int]:
    head = stream.read(_LONGEST_SIGNATURE)
    stream.seek(0)
    size: tuple[int, int] = _reader_of("the image", head)[1](stream).size
    return size


def open_image(name: str, stream: IO[bytes], limits: ImageLimits) -> ImageFile.ImageFile:
    """Read the header of an image file and check its size; no pixel is decoded.

    Args:
        name: What messages call it.
        stream: At its start; can seek.
        limits: The largest image to accept.

    Raises:
        ImageDecodeError: Empty, of an unknown format, or damaged.
        ImageTooLargeError: Over the limit of pixels.
    """
    with decoder_errors(name, "an image"):
        head = stream.read(_LONGEST_SIGNATURE)
        stream.seek(0)
    if not head:
        raise ImageDecodeError(f"{name} is empty (0 bytes): hand in a whole {_NAMES} file")
    format_name, reader = _reader_of(name, head)
    with decoder_errors(name, format_name):
        image = reader(stream)
    check_pixels(name, *image.size, limits)
    return image


def decode_opened(name: str, image: ImageFile.ImageFile) -> Image.Image:
    """Decode the pixels of an opened image file into upright RGB.

    Args:
        name: What messages call it.
        image: From `open_image`; nobody else has it.

    Raises:
        ImageDecodeError: Truncated or damaged.
        ImageShapeError: Float pixels of a range that no image has.
    """
    with decoder_errors(name, image.format or "an image"):
        image.load()
        orientation = _orientation(image)
        if image.mode != "RGB" or "transparency" in image.info:
            return _upright_rgb(image, orientation)
        rgb = image._new(image.im)  # a plain image around the same pixels: nobody else changes them
        rgb.info = {}
        return _upright(rgb, orientation)


def _decode(name: str, stream: IO[bytes], limits: ImageLimits) -> Image.Image:
    return decode_opened(name, open_image(name, stream, limits))


def _reader_of(name: str, head: bytes) -> tuple[str, type[ImageFile.ImageFile]]:
    for format_name, signature, reader in _FORMATS:
        if signature.match(head):
            return format_name, reader
    raise ImageDecodeError(f"{name} is not an image of a known format: convert it to one of {_NAMES}")


def _from_pillow(image: Image.Image, limits: ImageLimits) -> Image.Image:
    if 0 in image.size:
        raise ImageShapeError(f"the image has no pixels ({image.width}x{image.height}): both sides must be at least 1")
    check_pixels("the image", *image.size, limits)
    with decoder_errors("the image", image.format or f"mode {image.mode}"):
        with _LAZY_LOCKS[id(image) % len(_LAZY_LOCKS)]:
            image.load()
            orientation = _orientation(image)
        return _upright_rgb(image, orientation)


def _upright_rgb(image: Image.Image, orientation: int) -> Image.Image:
    return _upright(image_to_rgb(image), orientation)


def _upright(rgb: Image.Image, orientation: int) -> Image.Image:
    return rgb.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else rgb


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation of a loaded image, 1 (upright) where it has none or its EXIF block is damaged."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # the pixels are sound, and viewers show such an image as it is stored
        return 1


@contextmanager
def _open_file(path: str | os.PathLike[str], limits: ImageLimits) -> Iterator[tuple[str, IO[bytes]]]:
    """Open a path for reading; gives what to call it in messages, and a stream that can seek."""
    text = str(path)
    name = repr(text if len(text) <= 200 else f"{text[:80]}...")
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; the errors of opening are told apart from those of use
    except IsADirectoryError as error:
        raise ImageNotFoundError(f"{name} is a folder: name an image file inside it") from error
    except PermissionError as error:
        raise ImageDecodeError(f"{name} cannot be read: permission denied; allow reading it or copy it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        raise ImageNotFoundError(f"no image file {name}: {_path_hint(text)}") from error
    with file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode):
            _check_bytes(name, status.st_size, limits)
            yield name, file
        else:  # a pipe or a device: it cannot seek and tells no size
            yield name, _read_all(name, file, limits)


def _path_hint(text: str) -> str:
    if text.startswith("data:"):
        return "a str is a path; decode the data URI's base64 part and hand in the bytes"
    if "://" in text[:16]:
        return "a str is a path; URLs are not fetched, download the image and hand in the file or its bytes"
    if re.fullmatch(r"[A-Za-z0-9+/=\s]{120,}", text):
        return "a str is a path; if this is base64, decode it and hand in the bytes"
    return "check the path and the working directory"


def _read_all(name: str, file: Any, limits: ImageLimits) -> io.BytesIO:
    """Read an open file from its start, if it can seek; stops soon after the limit."""
    text_mode = f"{name} gives text, not bytes: open it in binary mode, open(path, 'rb')"
    buffer = io.BytesIO()
    try:
        if hasattr(file, "seekable") and file.seekable():
            file.seek(0)
        # A raw stream may return less than asked for, so only an empty read is the end.
        while buffer.tell() <= limits.max_bytes and (chunk := file.read(_CHUNK)):
            if not isinstance(chunk, (bytes, bytearray, memoryview)):
                raise ImageDecodeError(text_mode)
            buffer.write(chunk)
    except ImageError:
        raise
    except UnicodeDecodeError as error:
        raise ImageDecodeError(text_mode) from error
    except OSError as error:
        raise ImageDecodeError(f"{name} cannot be read ({_first_line(error)}): hand in a readable file") from error
    except ValueError as error:
        raise ImageDecodeError(f"{name} is closed: hand it in while it is open") from error
    _check_bytes(name, buffer.tell(), limits)
    buffer.seek(0)
    return buffer


@contextmanager
def decoder_errors(name: str, format_name: str) -> Iterator[None]:
    """Turn whatever a decoder raises at damaged bytes into an `ImageError` of one line."""
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
            f"{name} cannot be decoded as {format_name} ({_first_line(error)}): "
            "it may be truncated or damaged, copy or save it again"
        ) from error


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def check_pixels(name: str, width: int, height: int, limits: ImageLimits) -> None:
    """Refuse an image over the limit of pixels.

    Raises:
        ImageTooLargeError: It is.
    """
    if width * height > limits.max_pixels:
        raise ImageTooLargeError(
            f"{name} is {width}x{height}, {width * height} pixels, over the limit of {limits.max_pixels}: "
            "shrink it, or raise max_pixels (PHOTONLITE_MAX_PIXELS)"
        )


def _check_bytes(name: str, size: int, limits: ImageLimits) -> None:
    if size > limits.max_bytes:
        raise ImageTooLargeError(
            f"{name} has more than {limits.max_bytes} bytes, the limit: "
            "compress it, or raise max_bytes (PHOTONLITE_MAX_BYTES)"
        )


def _unusable(source: object) -> ImageError:
    kind = f"{type(source).__module__}.{type(source).__qualname__}".removeprefix("builtins.")
    if kind.startswith("torch."):
        return ImageShapeError(
            "a torch tensor is not taken as an image: hand in an array of shape [height, width, 3], "
            "for a [3, height, width] tensor with tensor.permute(1, 2, 0).cpu().numpy()"
        )
    if isinstance(source, (list, tuple)) or hasattr(source, "__array__"):
        return ImageShapeError(
            f"an object of type {kind} is not taken as an image: hand in a numpy array of shape [height, width, 3] "
            "and dtype uint8"
        )
    return ImageError(
        f"an object of type {kind} is not an image: hand in a path, bytes, a binary file object, a Pillow image or a "
        "numpy array"
    )
