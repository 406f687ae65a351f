"""Peak memory of decoding an image, from its header.

```
pixels in Pillow's memory + what the codec holds beside them
                          or what conversion to RGB and turning upright need + the RGB result
```

The bytes a pixel of each codec are upper bounds of measurements (`VmHWM` of a worker, by format, mode and size); the
kernel refuses memory to a worker that takes more.
"""

from typing import Any, Final

from PIL import ImageFile
from PIL.JpegImagePlugin import JpegImageFile

# All figures are bytes a pixel.
_RGB: Final = 3
_UPRIGHT: Final = 4
_STORED: Final = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
"""In Pillow's memory; of all other modes 4."""

_CONVERSION: Final = {"RGB": 0, "I": 10, "F": 10, "I;16": 8, "I;16L": 8, "I;16B": 8, "I;16N": 8}
"""At the peak of `image_to_rgb`; for all other modes 4."""

_UNTIL_CLOSED: Final = {"WEBP": 12, "AVIF": 16, "GIF": 4}
"""Frames and planes that a codec holds as long as the image exists."""

_UNTIL_DECODED: Final = {"TIFF": 8, "BMP": 4, "PPM": 8, "PNG": 1}
"""Strips and rows that a codec holds until the image is decoded."""

WEBP_HEADER: Final = 30  # bytes of a WebP file that `webp_size` reads


def working_bytes(image: ImageFile.ImageFile) -> int:
    """Return the peak memory of decoding an opened image, without copies of the file."""
    later = _CONVERSION.get(image.mode, 4) + _UPRIGHT
    if isinstance(image, JpegImageFile):
        beside = max(_coefficient_bytes(image.layer), later)
    elif image.format in _UNTIL_DECODED:
        beside = max(_UNTIL_DECODED[image.format], later)
    else:
        beside = _UNTIL_CLOSED.get(image.format or "", 16) + later
    return image.width * image.height * (_STORED.get(image.mode, 4) + beside + _RGB)


def webp_bytes(size: tuple[int, int]) -> int:
    """Return the peak memory of opening and decoding a WebP of a size."""
    return size[0] * size[1] * (4 + _UNTIL_CLOSED["WEBP"] + 4 + _UPRIGHT + _RGB)


def webp_size(head: bytes) -> tuple[int, int] | None:
    """Return width and height of a WebP, from its first bytes; None for other files and unknown kinds of WebP.

    libwebp allocates the whole canvas when it opens a file, and this is its size. A file that libwebp reads
    differently meets the memory limit.
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
    """Coefficients of a JPEG with several scans, which libjpeg keeps for the whole image."""
    areas = [max(1, across * down) for _, across, down, _ in layers]
    return -(-2 * sum(areas) // max(areas, default=1)) if areas else 8
