"""The memory that decoding takes at most, from an image's header: known before any pixel is decoded."""

from __future__ import annotations

import io
from typing import Any, Final

from PIL import ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from photonlite.config import DEFAULT_IMAGE_LIMITS, ImageLimits
from photonlite.errors import ImageError
from photonlite.images.decode import open_image

# Bytes a pixel: upper bounds of measurements (`VmHWM` of a worker, by format, mode and size). The kernel refuses memory
# to a worker that takes more.
_RGB_BYTES: Final = 3
_UPRIGHT_BYTES: Final = 4
_OPACITY_BYTES: Final = 5  # and of white pixels
_STORED: Final = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # in Pillow; other modes 4
_CONVERSION: Final = {"RGB": 0, "I": 10, "F": 10, "I;16": 8, "I;16L": 8, "I;16B": 8, "I;16N": 8}  # other modes 4
_UNTIL_CLOSED: Final = {"WEBP": 12, "AVIF": 16, "GIF": 4}  # frames and planes, held as long as the image exists
_UNTIL_DECODED: Final = {"TIFF": 8, "BMP": 4, "PPM": 8, "PNG": 1}  # strips and rows, held until it is decoded

WEBP_HEADER: Final = 30  # bytes of a WebP file that `webp_size` reads


def needed_bytes(data: bytes, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> int:
    """Return the peak memory of decoding an image file, from its header; 0 where that is unreadable or over a limit."""
    try:
        return working_bytes(open_image("the image", io.BytesIO(data), limits)) + 2 * len(data)
    except ImageError:
        return 0


def working_bytes(image: ImageFile.ImageFile) -> int:
    """Return the peak memory of decoding an opened image, without copies of the file."""
    # The pixels in Pillow, the RGB result, and the larger of the codec's buffers and those of conversion and turning.
    later = _CONVERSION.get(image.mode, 4) + _UPRIGHT_BYTES + _OPACITY_BYTES * image.has_transparency_data
    if isinstance(image, JpegImageFile):
        beside = max(_coefficient_bytes(image.layer), later)
    elif image.format in _UNTIL_DECODED:
        beside = max(_UNTIL_DECODED[image.format], later)
    else:
        beside = _UNTIL_CLOSED.get(image.format or "", 16) + later
    return image.width * image.height * (_STORED.get(image.mode, 4) + beside + _RGB_BYTES)


def webp_bytes(size: tuple[int, int]) -> int:
    """Return the peak memory of opening and decoding a WebP of a size."""
    return size[0] * size[1] * (4 + _UNTIL_CLOSED["WEBP"] + 4 + _UPRIGHT_BYTES + _OPACITY_BYTES + _RGB_BYTES)


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
