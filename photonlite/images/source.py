"""What callers may pass as an image, and opening files, whose bytes are limited before and while they are read."""

from __future__ import annotations

import binascii
import io
import os
import re
import stat
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, BinaryIO, Final, TypeAlias, TypeGuard

import numpy.typing as npt
from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import (
    ImageDecodeError,
    ImageError,
    ImageNotFoundError,
    ImageShapeError,
    ImageTooLargeError,
    ImageUrlError,
)
from photonlite.images.tensors import Tensor

_CHUNK: Final = 1 << 20
_DATA_URI: Final = re.compile(r"data:[^,]{0,200},", re.IGNORECASE)
_SPACE: Final = "\r\n\t "
_SHOWN: Final = 40  # characters of a data URI in messages


@dataclass(frozen=True, slots=True, eq=False)
class DecodedImage:
    """An upright RGB image to which nothing else holds a reference."""

    image: Image.Image

    @property
    def size(self) -> tuple[int, int]:
        return self.image.size


ImageSource: TypeAlias = (
    Image.Image
    | DecodedImage
    | npt.NDArray[Any]
    | Tensor
    | str
    | os.PathLike[str]
    | bytes
    | bytearray
    | memoryview
    | BinaryIO
)


def source_key(source: object) -> Hashable:
    """Return what tells sources apart within one call: of texts and bytes their content, else the object itself."""
    return source if isinstance(source, str | bytes) else id(source)


@contextmanager
def named_image(place: int, count: int) -> Iterator[None]:
    """Put "image 3 of 5: " before the message of an ImageError, unless there is one image only."""
    try:
        yield
    except ImageError as error:
        if count > 1 and error.args:
            error.args = (f"image {place} of {count}: {error.args[0]}", *error.args[1:])
        raise


@contextmanager
def opened_source(source: ImageSource, limits: ImageLimits) -> Iterator[tuple[str, IO[bytes]]]:
    """Open a source that is a file; yield its name for messages, and a seekable stream at its start."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = source.tobytes() if isinstance(source, memoryview) else source
        check_bytes("the image", len(data), limits)
        yield "the image", io.BytesIO(data)
    elif isinstance(source, str) and is_data_uri(source):
        # Four characters are three bytes, but for some white space and what stands before them.
        check_bytes("the image of the data URI", len(source) * 7 // 10 - 256, limits)
        data = read_data_uri(source)
        check_bytes("the image of the data URI", len(data), limits)
        yield "the image of the data URI", io.BytesIO(data)
    elif isinstance(source, (str, os.PathLike)):
        with _opened_path(source, limits) as (name, stream):
            yield name, stream
    elif callable(getattr(source, "read", None)):
        yield "the file object", _read_all("the file object", source, limits)
    else:
        raise _unsupported(source)


def is_url(source: object) -> TypeGuard[str]:
    return isinstance(source, str) and re.match(r"https?://", source, re.IGNORECASE) is not None


def is_data_uri(text: str) -> bool:
    return text[:5].lower() == "data:"


_decode_base64: Final = partial(binascii.a2b_base64, strict_mode=True)


def read_data_uri(text: str, decode: Callable[[str], bytes] = _decode_base64) -> bytes:
    """Decode `data:image/jpeg;base64,...`; the declared type is ignored, since the bytes tell what they are.

    `decode` reads base64 without white space, strictly. Raises an `ImageDecodeError`.
    """
    head = _DATA_URI.match(text)
    if head is None or not head[0].lower().endswith(";base64,"):
        raise ImageDecodeError(f"{text[:_SHOWN]!r} is not a data URI in base64: give data:image/jpeg;base64,...")
    code = text[head.end() :]
    if code.isascii() and any(space in code for space in _SPACE):  # some encoders break lines; other text takes seconds
        code = code.translate(str.maketrans("", "", _SPACE))
    try:
        return decode(code)
    except ValueError as cause:  # binascii.Error is one
        raise ImageDecodeError(f"the base64 of the data URI is damaged: {cause}") from cause


@contextmanager
def _opened_path(path: str | os.PathLike[str], limits: ImageLimits) -> Iterator[tuple[str, IO[bytes]]]:
    text = str(path)
    if is_url(path):
        raise ImageUrlError(
            f"{text[:80]!r} is a URL, and none is fetched unless asked for: photonlite.load(allow_urls=True), or "
            "--allow-urls on the command line"
        )
    name = repr(text if len(text) <= 200 else f"{text[:80]}...")
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; errors of opening get other messages than those of use
    except IsADirectoryError as error:
        raise ImageNotFoundError(f"{name} is a folder: name an image file inside it") from error
    except PermissionError as error:
        raise ImageDecodeError(f"{name} cannot be read: permission denied; allow reading it or copy it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        raise ImageNotFoundError(f"no image file {name}: {_path_hint(text)}") from error
    with file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode):
            check_bytes(name, status.st_size, limits)
            yield name, file
        else:  # a pipe or a device has no size and cannot seek
            yield name, _read_all(name, file, limits)


def _path_hint(text: str) -> str:
    if text[:5].lower() == "file:":
        return "give the path itself, without file://"
    if "://" in text[:16]:
        return "a str is a path, a data URI or, where that is allowed, an https URL: download the image"
    if re.fullmatch(r"[A-Za-z0-9+/=\s]{120,}", text):
        return "a str is a path; if this is base64, decode it and hand in the bytes"
    return "check the path and the working directory"


def _read_all(name: str, file: Any, limits: ImageLimits) -> io.BytesIO:
    """Read an open file from its start, if it can seek, until soon after the limit."""
    text_mode = f"{name} gives text, not bytes: open it in binary mode, open(path, 'rb')"
    buffer = io.BytesIO()
    try:
        if hasattr(file, "seekable") and file.seekable():
            file.seek(0)
        # A raw stream may return less than asked for: only an empty read is the end.
        while buffer.tell() <= limits.max_bytes and (chunk := file.read(_CHUNK)):
            if not isinstance(chunk, (bytes, bytearray, memoryview)):
                raise ImageDecodeError(text_mode)
            buffer.write(chunk)
    except ImageError:
        raise
    except UnicodeDecodeError as error:
        raise ImageDecodeError(text_mode) from error
    except OSError as error:
        raise ImageDecodeError(f"{name} cannot be read ({first_line(error)}): hand in a readable file") from error
    except ValueError as error:
        raise ImageDecodeError(f"{name} is closed: hand it in while it is open") from error
    check_bytes(name, buffer.tell(), limits)
    buffer.seek(0)
    return buffer


def check_bytes(name: str, size: int, limits: ImageLimits) -> None:
    if size > limits.max_bytes:
        raise ImageTooLargeError(
            f"{name} has more than {limits.max_bytes} bytes, the limit: "
            "compress it, or raise max_bytes (PHOTONLITE_MAX_BYTES)"
        )


def first_line(error: BaseException) -> str:
    """Return an error's message as one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _unsupported(source: object) -> ImageError:
    kind = f"{type(source).__module__}.{type(source).__qualname__}".removeprefix("builtins.")
    if isinstance(source, (list, tuple)) or hasattr(source, "__array__"):
        return ImageShapeError(
            f"an object of type {kind} is not taken as an image: hand in a numpy array of shape [height, width, 3] "
            "and dtype uint8"
        )
    return ImageError(
        f"an object of type {kind} is not an image: hand in a path, bytes, a binary file object, a Pillow image, a "
        "numpy array or a torch tensor"
    )
