"""What callers may pass as an image, and opening files, whose bytes are limited before and while they are read."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, Final, TypeAlias

import numpy.typing as npt
from PIL import Image

from photonlite.config import ImageLimits
from photonlite.errors import ImageDecodeError, ImageError, ImageNotFoundError, ImageShapeError, ImageTooLargeError

_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class DecodedImage:
    """An upright RGB image to which nothing else holds a reference."""

    image: Image.Image

    @property
    def size(self) -> tuple[int, int]:
        return self.image.size


ImageSource: TypeAlias = (
    Image.Image | DecodedImage | npt.NDArray[Any] | str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO
)


@contextmanager
def opened_source(source: ImageSource, limits: ImageLimits) -> Iterator[tuple[str, IO[bytes]]]:
    """Open a source that is a file; yield its name for messages, and a seekable stream at its start."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = source.tobytes() if isinstance(source, memoryview) else source
        check_bytes("the image", len(data), limits)
        yield "the image", io.BytesIO(data)
    elif isinstance(source, (str, os.PathLike)):
        with _opened_path(source, limits) as (name, stream):
            yield name, stream
    elif callable(getattr(source, "read", None)):
        yield "the file object", _read_all("the file object", source, limits)
    else:
        raise _unsupported(source)


@contextmanager
def _opened_path(path: str | os.PathLike[str], limits: ImageLimits) -> Iterator[tuple[str, IO[bytes]]]:
    text = str(path)
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
    if text.startswith("data:"):
        return "a str is a path; decode the data URI's base64 part and hand in the bytes"
    if "://" in text[:16]:
        return "a str is a path; URLs are not fetched, download the image and hand in the file or its bytes"
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
