"""Image files of a few kilobytes or megabytes that keep a decoder busy, or take much memory: one generator each."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from PIL import Image

BOMBS: Final[dict[str, Callable[[], bytes]]] = {}
"""Generators by name; the name begins with the format's."""


def bomb(make: Callable[[], bytes]) -> Callable[[], bytes]:
    BOMBS[make.__name__] = make
    return make


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


def png(width: int, height: int, *chunks: tuple[bytes, bytes], color: int = 2) -> bytes:
    head = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0))
    body = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in (head, *chunks)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def ifd(entries: list[tuple[int, int, int, int]], follow: int = 0) -> bytes:
    packed = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return struct.pack("<H", len(entries)) + packed + struct.pack("<I", follow)


def tiff(width: int, height: int, *more: tuple[int, int, int, int], bits: int = 8, rows: int = 0) -> bytes:
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, bits), (259, 3, 1, 1), (262, 3, 1, 1)]
    entries += [(277, 3, 1, 1), (278, 4, 1, rows or height), *more]
    return b"II*\0\x08\0\0\0" + ifd(entries)


@bomb
def jpeg_scans() -> bytes:
    """The last scan of a progressive image again and again."""
    data = saved(noise(40, 40).resize((3000, 3000)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * (4_000_000 // len(data[last:])) + b"\xff\xd9"


@bomb
def jpeg_empty_scans() -> bytes:
    """Scans of a few bytes, each of which passes over all blocks."""
    data = saved(Image.new("RGB", (6000, 6000)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * 200 + b"\xff\xd9"


@bomb
def jpeg_exif_segments() -> bytes:
    """Hundreds of thousands of EXIF segments, each of which is joined to those before it."""
    segment = b"\xff\xe1" + struct.pack(">H", 2 + 6 + 1) + b"Exif\0\0" + b"x"
    return b"\xff\xd8" + segment * 700_000 + saved(noise(8, 8), "JPEG")[2:]


@bomb
def gif_comments() -> bytes:
    """Comments of one byte each, each of which is joined to those before it."""
    data = saved(noise(8, 8), "GIF")
    start = 13 + 3 * 2 ** (1 + (data[10] & 7))
    return data[:start] + b"\x21\xfe\x01x\0" * 2_000_000 + data[start:]


@bomb
def gif_canvas() -> bytes:
    """A large canvas whose pixels are a single code."""
    return b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0x80, 0, 0) + b"\0" * 6 + b"\x2c" + b"\0" * 9 + b"\x02\0;"


@bomb
def png_compressed_texts() -> bytes:
    """Text chunks of a kilobyte that become a megabyte each."""
    text = b"k\0\0" + zlib.compress(b"\0" * 1_000_000, 9)
    return png(8, 8, *[(b"zTXt", text)] * 3000)


@bomb
def png_international_texts() -> bytes:
    text = b"k\0\1\0\0\0" + zlib.compress(b"\0" * 1_000_000, 9)
    return png(8, 8, *[(b"iTXt", text)] * 3000)


@bomb
def png_chunks() -> bytes:
    """A million chunks of nothing before the pixels."""
    one = b"\0\0\0\0abCd" + struct.pack(">I", zlib.crc32(b"abCd"))
    return png(8, 8) + one * 1_500_000


@bomb
def png_tiny_pixels() -> bytes:
    """Pixels in chunks of one byte each."""
    data = zlib.compress(b"\0" * 65 * 2_000_000, 1)[:-4] + b"\0" * 300_000
    ends = [struct.pack(">I", zlib.crc32(b"IDAT" + bytes([value]))) for value in range(256)]
    one = [b"\0\0\0\1IDAT" + bytes([value]) + ends[value] for value in data]
    return png(20_000, 3000) + b"".join(one)


@bomb
def png_size() -> bytes:
    """A few kilobytes that promise four thousand million pixels."""
    return png(65_535, 65_535, (b"IDAT", zlib.compress(b"\0" * 1_000_000)))


@bomb
def webp_canvas() -> bytes:
    """A large canvas of one colour, with a channel for alpha."""
    return saved(Image.new("RGBA", (5000, 5000), (1, 2, 3, 4)), "WEBP", lossless=True, method=0, quality=0)


@bomb
def webp_chunks() -> bytes:
    """Chunks of nothing."""
    data = saved(noise(8, 8), "WEBP", lossless=True, exif=b"Exif\0\0II*\0\x08\0\0\0\0\0")
    whole = data[8:] + b"abcd\0\0\0\0" * 3_000_000
    return b"RIFF" + struct.pack("<I", len(whole)) + whole


@bomb
def avif_canvas() -> bytes:
    """A large canvas of one colour in a few bytes."""
    return saved(Image.new("RGB", (4000, 4000)), "AVIF", speed=10, quality=1)


@bomb
def avif_boxes() -> bytes:
    """Boxes of nothing between the parts of a file."""
    data = saved(noise(8, 8), "AVIF", speed=10)
    end = struct.unpack(">I", data[:4])[0]
    return data[:end] + b"\0\0\0\x08free" * 4_000_000 + data[end:]


@bomb
def tiff_tags() -> bytes:
    """Tags that all point at the whole file."""
    size = 4_000_000
    tags = [(40_000 + n, 1, size, 8) for n in range(24_000)]
    return tiff(8, 8, (273, 4, 1, 8), (279, 4, 1, 64), *tags) + bytes(size)


@bomb
def tiff_strips() -> bytes:
    """A million strips."""
    count = 3_000_000
    at = 8 + 2 + 12 * 9 + 4
    more = [(273, 4, count, at), (279, 4, count, at)]
    return tiff(1, count, *more, rows=1) + struct.pack("<I", 8) * count


@bomb
def tiff_floats() -> bytes:
    """A strip of a few kilobytes that becomes floats, and these three copies on their way to RGB."""
    return saved(Image.new("F", (6000, 6000), 2.0), "TIFF", compression="tiff_deflate")


@bomb
def bmp_runs() -> bytes:
    """Run-length codes that say next to nothing."""
    width, height = 8000, 7900
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, 0, 0, 0, 256, 0)
    data = b"\x01\x01" * 15_000_000
    return b"BM" + struct.pack("<IHHI", 1078 + len(data), 0, 0, 1078) + head + b"\0" * 1024 + data


@bomb
def ppm_comments() -> bytes:
    """A header that is a comment for megabytes."""
    return b"P3\n" + b"#\n" * 8_000_000 + b"8 8 255\n" + b"0 " * 192


@bomb
def ppm_numbers() -> bytes:
    """Pixels as text, with comments between the digits."""
    return b"P3\n4000 4000\n255\n" + b"0 0 0\n" * 5_000_000


@bomb
def ppm_token() -> bytes:
    """A number without end."""
    return b"P3\n4000 4000\n255\n" + b"0" * 30_000_000
