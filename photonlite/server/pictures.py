"""Pictures on their way in: base64 to bytes, and how much memory one will take, from its header alone."""

import binascii
import re
from typing import Final

import pybase64

from photonlite.images.decode import decoded_bytes
from photonlite.server.errors import HttpError

__all__ = ["decoded_bytes", "from_data_uri", "header_bytes", "is_remote"]

_DATA_URI = re.compile(r"data:[^,]{0,200},", re.IGNORECASE)
_SHOWN = 40
# Some encoders break lines.
_SPACE = "\r\n\t "

_PNG: Final = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_JPEG: Final = b"\xff\xd8\xff"
_MOST_PARTS: Final = 256
"""Chunks or segments of a header: cameras write a dozen."""
_PLAIN_PIXELS: Final = 1 << 26
"""A header that tells of more is left to a decoder, which knows all limits."""
# Markers that begin a frame, and so tell the size: all of this range but tables (C4, CC) and a reserved one (C8).
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN: Final = 0xDA


def is_remote(value: str) -> bool:
    """Tell a URL that must be fetched from one that holds its picture."""
    return re.match(r"https?://", value, re.IGNORECASE) is not None


def from_data_uri(value: str) -> bytes:
    """Read `data:image/jpeg;base64,...`. The declared type does not matter: the bytes tell what they are.

    Raises:
        HttpError: 400, it is no base64 data URI, or its base64 is damaged.
    """
    head = _DATA_URI.match(value)
    if head is None or not head[0].lower().endswith(";base64,"):
        raise HttpError(
            400,
            f"image_url {value[:_SHOWN]!r} is no data URI in base64: send data:image/jpeg;base64,...",
            code="invalid_image_url",
        )
    code = value[head.end() :]
    if any(space in code for space in _SPACE):
        code = code.translate(str.maketrans("", "", _SPACE))
    try:
        # Not the standard library's: that one holds up all other requests for thirty times as long.
        return pybase64.b64decode(code, validate=True)
    except (binascii.Error, ValueError) as cause:
        raise HttpError(400, f"the base64 of image_url is damaged: {cause}", code="invalid_image_url") from cause


def header_bytes(data: bytes) -> int | None:
    """Tell how many bytes a plain PNG or JPEG takes as RGB, in a few microseconds whatever the bytes are.

    Returns:
        Three for each pixel. None where that takes a closer look: `decoded_bytes` gives it, and may take a while.
    """
    if data.startswith(_PNG):
        width, height = _png_size(data)
    elif data.startswith(_JPEG):
        width, height = _jpeg_size(data)
    else:
        return None
    return 3 * width * height if 0 < width * height <= _PLAIN_PIXELS else None


def _png_size(data: bytes) -> tuple[int, int]:
    """Walk over the chunks in front of the pixels; zeros where they are not those of one plain picture."""
    position = 33  # behind the first chunk, which has the size: another one of its kind would overrule it
    for _ in range(_MOST_PARTS):
        kind = data[position + 4 : position + 8]
        if kind == b"IDAT":
            return _number(data, 16, 4), _number(data, 20, 4)
        if len(kind) < 4 or kind == b"IHDR":
            break
        position += 12 + _number(data, position, 4)
    return 0, 0


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Walk over the segments in front of the first scan; zeros where they are not those of one plain picture."""
    position, width, height = 2, 0, 0
    for _ in range(_MOST_PARTS):
        mark = data[position : position + 4]
        if len(mark) < 4 or mark[0] != 0xFF:
            break
        kind = mark[1]
        if kind == _SCAN:
            return width, height
        if kind < 0xC0 or 0xD0 <= kind <= 0xD9 or kind == 0xFF or (kind in _FRAMES and width):
            break  # markers without a length, bytes that fill, or a size that overrules the first
        if kind in _FRAMES:
            height, width = _number(data, position + 5, 2), _number(data, position + 7, 2)
        position += 2 + _number(mark, 2, 2)
    return 0, 0


def _number(data: bytes, start: int, size: int) -> int:
    return int.from_bytes(data[start : start + size], "big")
