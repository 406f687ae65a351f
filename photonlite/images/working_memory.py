"""How much memory decoding an image takes at its peak, known from its header.

```
pixels in Pillow's memory + what the codec holds beside them
                          or what conversion to RGB and turning upright make of them   + RGB that is handed over
```

The figures for codecs are bounds of what was measured (`VmHWM` of a worker, by format, mode and size); a worker that
takes more than it was allowed is refused the memory by the kernel.
"""

from typing import Any, Final

from PIL import ImageFile
from PIL.JpegImagePlugin import JpegImageFile

_RGB: Final = 3
_STORED: Final = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
"""Bytes of a pixel in Pillow's memory; of all other modes 4."""

_CONVERSION: Final = {"RGB": 0, "I": 10, "F": 10, "I;16": 8, "I;16L": 8, "I;16B": 8, "I;16N": 8}
"""Bytes of a pixel that `image_to_rgb` takes at its peak; for all other modes 4."""

_TURNED: Final = 4
_KEPT: Final = {"WEBP": 12, "AVIF": 16, "GIF": 4}
"""Bytes of a pixel that a codec holds beside the image, as long as there is the image: frames and planes."""

_PASSING: Final = {"TIFF": 8, "BMP": 4, "PPM": 8, "PNG": 1}
"""Bytes of a pixel that a codec holds beside the image until it is decoded: strips and rows."""


WEBP_HEADER: Final = 30
"""Bytes of a WebP file that `webp_size` reads."""


def working_bytes(image: ImageFile.ImageFile) -> int:
    """Return the bytes that decoding an image takes at its peak, beside copies of the file.

    Args:
        image: Opened, not yet decoded.
    """
    later = _CONVERSION.get(image.mode, 4) + _TURNED
    if isinstance(image, JpegImageFile):
        beside = max(_coefficient_bytes(image.layer), later)
    elif image.format in _PASSING:
        beside = max(_PASSING[image.format], later)
    else:
        beside = _KEPT.get(image.format or "", 16) + later
    pixel = _STORED.get(image.mode, 4) + beside + _RGB
    return image.width * image.height * pixel


def webp_bytes(size: tuple[int, int]) -> int:
    """Return the bytes that opening and decoding a WebP of a size takes at its peak."""
    return size[0] * size[1] * (4 + _KEPT["WEBP"] + 4 + _TURNED + _RGB)


def webp_size(head: bytes) -> tuple[int, int] | None:
    """Return width and height of a WebP, from its first bytes; None for other files, and kinds that nobody knows.

    libwebp takes the memory of the whole canvas as soon as it opens a file. This tells how much that may be; a file
    that says one thing here and another to libwebp meets the limit of memory.
    """
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
    """Bytes of a pixel for the coefficients of a JPEG of several scans, which libjpeg keeps for the whole image."""
    areas = [max(1, across * down) for _, across, down, _ in layers]
    return -(-2 * sum(areas) // max(areas, default=1)) if areas else 8
