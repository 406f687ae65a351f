"""A corpus of broken images: valid ones of every format that were cut, flipped and patched, and what is none."""

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

HUGE = (0, 1, 65_535, 30_000, 2**31 - 1, 2**32 - 1)
"""What is written where a header tells a side of the image."""


@dataclass(frozen=True)
class Broken:
    name: str
    data: bytes
    media_type: str


@dataclass(frozen=True)
class Format:
    """A valid image, and where in its bytes the header tells width and height.

    Attributes:
        name: Of the variant.
        media_type: That it really has.
        data: The file.
        patch: Writes a width and a height into the header; None where they are in several places.
    """

    name: str
    media_type: str
    data: bytes
    patch: Callable[[bytes, int, int], bytes] | None


def corpus(seed: int = 0) -> Iterator[Broken]:
    """Return all broken images, the same for the same seed."""
    chance = random.Random(seed)
    formats = valid_images()
    for form in formats:
        others = [other.media_type for other in formats if other.media_type != form.media_type]
        yield Broken(f"{form.name} named {others[0]}", form.data, chance.choice(others))
        for name, data in _mutations(form, chance):
            yield Broken(f"{form.name}: {name}", data, form.media_type)
    for name, data in (*_no_images(formats), *_bombs()):
        yield Broken(name, data, chance.choice(["image/png", "image/jpeg", "application/octet-stream"]))


def valid_images() -> list[Format]:
    pixels = np.random.default_rng(3).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    rgb = Image.fromarray(pixels).resize((96, 72))
    grey, palette, alpha = rgb.convert("L"), rgb.convert("P"), rgb.convert("RGBA")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "x" * 500
    return [
        _format("jpeg", "image/jpeg", rgb, _patch_jpeg, exif=exif),
        _format("jpeg progressive", "image/jpeg", rgb, _patch_jpeg, progressive=True),
        _format("jpeg cmyk", "image/jpeg", rgb.convert("CMYK"), _patch_jpeg),
        _format("jpeg grey", "image/jpeg", grey, _patch_jpeg),
        _format("png", "image/png", rgb, _patch_png),
        _format("png palette", "image/png", palette, _patch_png),
        _format("png 16 bit", "image/png", deep, _patch_png),
        _format("png animated", "image/png", alpha, _patch_png, save_all=True, append_images=[alpha.rotate(90)]),
        _format("webp", "image/webp", rgb, _patch_webp_lossy),
        _format("webp lossless", "image/webp", rgb, None, lossless=True),
        _format("webp animated", "image/webp", rgb, _patch_webp, save_all=True, append_images=[rgb.rotate(90)]),
        _format("gif", "image/gif", palette, _patch_gif),
        _format("gif animated", "image/gif", palette, _patch_gif, save_all=True, append_images=[palette.rotate(90)]),
        _format("bmp", "image/bmp", rgb, _patch_bmp),
        _format("bmp palette", "image/bmp", palette, _patch_bmp),
        _format("tiff", "image/tiff", rgb, _patch_tiff),
        _format("tiff lzw", "image/tiff", rgb, _patch_tiff, compression="tiff_lzw"),
        _format("tiff deflate", "image/tiff", grey, _patch_tiff, compression="tiff_adobe_deflate"),
        _format("tiff jpeg", "image/tiff", rgb, _patch_tiff, compression="jpeg"),
        _format("avif", "image/avif", rgb, _patch_avif),
        _format("ppm", "image/x-portable-pixmap", rgb, _patch_ppm),
        _format("pgm", "image/x-portable-pixmap", grey, _patch_ppm),
    ]


def _format(
    name: str,
    media_type: str,
    image: Image.Image,
    patch: Callable[[bytes, int, int], bytes] | None,
    **options: object,
) -> Format:
    buffer = io.BytesIO()
    kind = {"jpeg": "JPEG", "pgm": "PPM"}.get(name.split()[0], name.split()[0].upper())
    image.save(buffer, kind, **options)  # type: ignore[arg-type]
    return Format(name, media_type, buffer.getvalue(), patch)


def _mutations(form: Format, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    data = form.data
    for size in sorted({*range(1, 17, 3), *(chance.randrange(1, len(data)) for _ in range(10)), len(data) - 1}):
        yield f"cut to {size} bytes", data[:size]
    for flips in (1, 1, 1, 2, 4, 8, 16, 64, 256):
        yield f"{flips} bits flipped", _flipped(data, flips, 0, len(data), chance)
    for flips in (1, 1, 2, 2, 4, 8):
        yield f"{flips} bits of the header flipped", _flipped(data, flips, 4, min(64, len(data)), chance)
    for fill in (b"\0", b"\xff", b"A", None):
        for share in (0.02, 0.3):
            yield f"{share:.0%} overwritten", _overwritten(data, share, fill, chance)
    for size in (1, 4, 50):
        start = chance.randrange(8, len(data) - size)
        yield f"{size} bytes missing", data[:start] + data[start + size :]
        yield f"{size} bytes twice", data[: start + size] + data[start:]
    yield "with rubbish behind it", data + chance.randbytes(1000)
    yield "twice", data + data
    yield "a signature and rubbish", data[:16] + chance.randbytes(2000)
    if form.patch is not None:
        for side in HUGE:
            yield f"{side} wide", form.patch(data, side, 72)
            yield f"{side} on both sides", form.patch(data, side, side)


def _flipped(data: bytes, flips: int, start: int, end: int, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(flips):
        changed[chance.randrange(start, end)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _overwritten(data: bytes, share: float, fill: bytes | None, chance: random.Random) -> bytes:
    size = max(1, int(len(data) * share))
    start = chance.randrange(4, max(5, len(data) - size))
    return data[:start] + (chance.randbytes(size) if fill is None else fill * size) + data[start + size :]


def _no_images(formats: list[Format]) -> Iterator[tuple[str, bytes]]:
    yield "nothing", b""
    texts = (
        "hello",
        "\n",
        '{"image_url": "data:image/png;base64,"}',
        "<html><body>404</body></html>",
        "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
        "%PDF-1.7",
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        "data:image/png;base64,iVBORw0KGgo=",
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB",
        "P6",
        "P6 ",
        "P6 10",
        "P6 10 10",
        "P6 10 10 255\n",
        "P6 -10 10 255\n" + "x" * 300,
        "P6 10 10 0\n" + "x" * 300,
        "P3 2 2 255\n1 2 3 999999999999999999999 4 5",
        "P1 4 4\n" + "1 " * 1000,
        "P6 " + "9" * 5000 + " 1 255\n",
        "P6 #" + "c" * 5000,
        "BM",
        "BM" + "\0" * 100,
        "GIF89a",
        "II*\0",
        "MM\0*\0\0\0\x08",
    )
    for text in texts:
        yield f"the text {text[:20]!r}", text.encode("latin-1")
    for magic in (b"MZ\x90\0", b"PK\3\4", b"\x7fELF", b"\x1f\x8b\x08", b"RIFF\0\0\1\0WAVE", b"\0\0\0\x18ftypmp42"):
        yield f"a file that begins with {magic!r}", magic + bytes(range(256)) * 8
    for size in (1, 2, 15, 16, 17, 100_000):
        yield f"{size} zeros", b"\0" * size
    for first, second in zip(formats, formats[1:] + formats[:1], strict=True):
        yield f"the head of {first.name} on {second.name}", first.data[:24] + second.data


def _bombs() -> Iterator[tuple[str, bytes]]:
    """Small files that want much memory."""
    zeros = zlib.compress(b"\0" * (1 << 26), 9)
    header = struct.pack(">IIBBBBB", 64, 48, 8, 2, 0, 0, 0)
    plain = zlib.compress((b"\0" + b"\x80" * 192) * 48)
    for side in (4_000, 9_000, 20_000, 60_000):
        size = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
        yield f"a png of {side} x {side} bits", _png((b"IHDR", size), (b"IDAT", zeros))
    yield "a png with too much data", _png((b"IHDR", header), (b"IDAT", zeros))
    for kind, body in ((b"zTXt", b"k\0\0"), (b"iTXt", b"k\0\x01\0\0\0"), (b"iCCP", b"k\0\0")):
        yield f"a png whose {kind.decode()} is a bomb", _png((b"IHDR", header), (kind, body + zeros), (b"IDAT", plain))
    texts = [(b"tEXt", b"k%d\0" % index + b"v" * 900) for index in range(3000)]
    yield "a png with 3000 texts", _png((b"IHDR", header), *texts, (b"IDAT", plain))
    yield (
        "a gif of 65535 x 65535",
        b"GIF89a"
        + struct.pack("<HHBBB", 65535, 65535, 0x80, 0, 0)
        + bytes(6)
        + (b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x02\x44\x01\0;"),
    )
    yield (
        "a gif whose frame is larger than it",
        b"GIF89a"
        + struct.pack("<HHBBB", 8, 8, 0x80, 0, 0)
        + bytes(6)
        + (b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x02\x44\x01\0;"),
    )
    yield "a tiff of 200000 entries", b"II*\0\x08\0\0\0" + struct.pack("<H", 65535) + b"\0\1\3\0\1\0\0\0\1\0\0\0" * 9999
    yield "a tiff whose directory leads to itself", b"II*\0\x08\0\0\0\0\0\x08\0\0\0"
    yield (
        "a webp of 16384 x 16384",
        b"RIFF"
        + struct.pack("<I", 30)
        + b"WEBPVP8L"
        + struct.pack("<I", 18)
        + (b"\x2f" + struct.pack("<I", 0x0FFFFFFF) + bytes(13)),
    )


def _png(*chunks: tuple[bytes, bytes]) -> bytes:
    packed = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in (*chunks, (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def _written(data: bytes, at: int, form: str, *values: int) -> bytes:
    """Write numbers into the file, each cut to what its field can hold."""
    bits = 8 * struct.calcsize(form[:2])
    packed = struct.pack(form, *(value % 2**bits for value in values))
    return data[:at] + packed + data[at + len(packed) :]


def _patch_png(data: bytes, width: int, height: int) -> bytes:
    changed = _written(data, 16, ">II", width, height)
    return _written(changed, 29, ">I", zlib.crc32(changed[12:29]))  # readers look at a header whose sum is right


def _patch_jpeg(data: bytes, width: int, height: int) -> bytes:
    frame = max(data.find(b"\xff\xc0\0"), data.find(b"\xff\xc2\0"))
    return _written(data, frame + 5, ">HH", height, width)


def _patch_webp_lossy(data: bytes, width: int, height: int) -> bytes:
    return _written(data, data.index(b"\x9d\x01\x2a") + 3, "<HH", width, height)


def _patch_webp(data: bytes, width: int, height: int) -> bytes:
    sides = ((side - 1) % 2**24 for side in (width, height))
    return data[:24] + b"".join(side.to_bytes(3, "little") for side in sides) + data[30:]


def _patch_gif(data: bytes, width: int, height: int) -> bytes:
    return _written(data, 6, "<HH", width, height)


def _patch_bmp(data: bytes, width: int, height: int) -> bytes:
    return _written(data, 18, "<II", width, height)


def _patch_tiff(data: bytes, width: int, height: int) -> bytes:
    (start,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, start)
    for index in range(entries):
        at = start + 2 + 12 * index
        (tag,) = struct.unpack_from("<H", data, at)
        if tag in (256, 257):
            data = _written(data, at + 2, "<HHHH", 4, 0, 1, 0)
            data = _written(data, at + 4, "<II", 1, width if tag == 256 else height)
    return data


def _patch_avif(data: bytes, width: int, height: int) -> bytes:
    return _written(data, data.index(b"ispe") + 8, ">II", width, height)


def _patch_ppm(data: bytes, width: int, height: int) -> bytes:
    return data.replace(b"96 72", b"%d %d" % (width, height), 1)
