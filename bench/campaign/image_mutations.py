"""Images of every format that photonlite reads, and damage done to their bytes."""

import io
import random
import struct
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from PIL import Image

_VARIANTS: Final[dict[str, tuple[tuple[str, dict[str, Any]], ...]]] = {
    "jpeg": (("RGB", {}), ("RGB", {"progressive": True}), ("CMYK", {}), ("L", {"quality": 40})),
    "png": (("RGB", {}), ("P", {}), ("RGBA", {}), ("I;16", {}), ("1", {})),
    "webp": (("RGB", {}), ("RGBA", {"lossless": True})),
    "gif": (("P", {}), ("L", {})),
    "bmp": (("RGB", {}), ("P", {}), ("1", {})),
    "tiff": (
        *(("RGB", {"compression": name}) for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")),
        *((mode, {}) for mode in ("I;16", "F", "CMYK")),
    ),
    "avif": (("RGB", {}),),
    "ppm": (("RGB", {}), ("L", {}), ("1", {})),
}
FORMATS: Final = tuple(_VARIANTS)
MEDIA_TYPES: Final = {name: f"image/{name}" for name in FORMATS} | {"ppm": "image/x-portable-pixmap"}
_ANIMATED: Final = ("png", "webp", "gif")
_LENGTHS: Final = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 30_000, 65_500)
_HEAD: Final = 64  # bytes in which most formats say their size

Damage = Callable[[bytearray, random.Random], bytearray]


class Mutated(NamedTuple):
    """A damaged file, the format that it was, and what was done to it."""

    format: str
    data: bytes
    done: str


@cache
def originals(name: str) -> tuple[bytes, ...]:
    """Return valid files of a format, in all its variants."""
    pixels = np.random.default_rng(3).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((96, 72))
    files = []
    for mode, options in _VARIANTS[name]:
        files.append(_encoded(_converted(image, mode), name, options))
    if name in _ANIMATED:
        frames = {"save_all": True, "append_images": [image.rotate(90), image.rotate(180)]}
        files.append(_encoded(image, name, frames))
    return tuple(files)


def mutate(number: int, chance: random.Random) -> Mutated:
    """Return the image of a number: formats take turns, chance decides on the rest."""
    name = FORMATS[number % len(FORMATS)]
    data = bytearray(chance.choice(originals(name)))
    done = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        kind = chance.choice(tuple(_DAMAGES))
        data = _DAMAGES[kind](data, chance)
        done.append(kind)
    if name == "png" and chance.random() < 0.5:
        data = _with_right_sums(data)
        done.append("sums mended")
    return Mutated(name, bytes(data), ", ".join(done))


def _converted(image: Image.Image, mode: str) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    return image.convert(mode)


def _encoded(image: Image.Image, name: str, options: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    image.save(file, name.upper(), **options)
    return file.getvalue()


def _flip(data: bytearray, chance: random.Random, end: int | None = None) -> bytearray:
    for _ in range(chance.choice((1, 1, 2, 8, 64)) if data else 0):
        data[chance.randrange(min(len(data), end or len(data)))] ^= 1 << chance.randrange(8)
    return data


def _flip_head(data: bytearray, chance: random.Random) -> bytearray:
    return _flip(data, chance, _HEAD)


def _cut(data: bytearray, chance: random.Random) -> bytearray:
    return data[: chance.randrange(len(data) + 1)]


def _write_length(data: bytearray, chance: random.Random) -> bytearray:
    """Write a number that is extreme for a length or a size, of two or four bytes, mostly near the beginning."""
    form = chance.choice((">H", "<H", ">I", "<I"))
    size = struct.calcsize(form)
    end = min(len(data), _HEAD) if chance.random() < 0.7 else len(data)
    if end >= size:
        at = chance.randrange(end - size + 1)
        struct.pack_into(form, data, at, chance.choice(_LENGTHS) % 256**size)
    return data


def _splice(data: bytearray, chance: random.Random) -> bytearray:
    """Put a piece of another image, mostly of another format, in the place of a piece."""
    other = chance.choice(originals(chance.choice(FORMATS)))
    start, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    first, last = sorted(chance.randrange(len(other) + 1) for _ in range(2))
    return data[:start] + other[first:last] + data[end:]


def _double(data: bytearray, chance: random.Random) -> bytearray:
    start, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[start:]


def _remove(data: bytearray, chance: random.Random) -> bytearray:
    start = chance.randrange(len(data) + 1)
    return data[:start] + data[start + chance.choice((1, 2, 4, 16, 200)) :]


def _overwrite(data: bytearray, chance: random.Random) -> bytearray:
    start = chance.randrange(len(data) + 1)
    size = min(len(data) - start, chance.choice((4, 32, 400)))
    data[start : start + size] = chance.choice((bytes(size), b"\xff" * size, chance.randbytes(size)))
    return data


_DAMAGES: Final[dict[str, Damage]] = {
    "bits flipped": _flip,
    "bits of the head flipped": _flip_head,
    "cut": _cut,
    "length written": _write_length,
    "spliced": _splice,
    "piece doubled": _double,
    "bytes missing": _remove,
    "overwritten": _overwrite,
}


def _with_right_sums(data: bytearray) -> bytearray:
    """Write the right checksum behind each chunk of a PNG: readers look no further at a wrong one."""
    at = 8
    while at + 12 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        end = at + 8 + size
        if end + 4 > len(data):
            break
        struct.pack_into(">I", data, end, zlib.crc32(data[at + 4 : end]))
        at = end + 4
    return data
