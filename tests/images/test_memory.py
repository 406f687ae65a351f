import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from photonlite.images.memory import webp_size, working_bytes
from tests.images.bombs import noise, saved

KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "JPEG": ("JPEG", "RGB", {}),
    "JPEG of several scans": ("JPEG", "RGB", {"progressive": True, "subsampling": 0}),
    "JPEG of four colours": ("JPEG", "CMYK", {"progressive": True}),
    "PNG": ("PNG", "RGB", {}),
    "PNG with a palette": ("PNG", "P", {}),
    "PNG with alpha": ("PNG", "LA", {}),
    "PNG of 16 bits": ("PNG", "I;16", {}),
    "WebP": ("WEBP", "RGBA", {}),
    "WebP without loss": ("WEBP", "RGB", {"lossless": True, "method": 0}),
    "GIF": ("GIF", "P", {}),
    "BMP": ("BMP", "RGB", {}),
    "TIFF": ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    "TIFF of floats": ("TIFF", "F", {"compression": "tiff_deflate"}),
    "TIFF of integers": ("TIFF", "I", {}),
    "PPM of 16 bits": ("PPM", "I", {}),
    "AVIF": ("AVIF", "RGB", {"speed": 10, "subsampling": "4:4:4"}),
}

PEAK = """
import os, sys
from photonlite.config import ImageLimits
from photonlite.images.isolation.worker import write_pixels
from photonlite.images.decode import open_image
from photonlite.images.memory import working_bytes

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

before = peak()
with open(sys.argv[1], "rb") as stream, open(os.devnull, "wb", buffering=0) as out:
    image = open_image("it", stream, ImageLimits())
    told = working_bytes(image)
    write_pixels(image, out.fileno())
print(peak() - before, told)
"""


def made(mode: str, size: tuple[int, int]) -> Image.Image:
    image = noise(size[0] // 8, size[1] // 8).resize(size)
    grey = np.asarray(image.convert("L"))
    if mode == "F":
        return Image.fromarray(grey.astype(np.float32) / 255)
    if mode == "I":
        return Image.fromarray(grey.astype(np.int32) * 256)
    return Image.fromarray(grey.astype(np.uint16) * 256) if mode == "I;16" else image.convert(mode)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_decoder_takes_more_memory_than_its_header_announces(kind: str, tmp_path: Path) -> None:
    format, mode, options = KINDS[kind]
    peaks, told = [], []
    for size in ((800, 800), (3200, 3200)):
        path = tmp_path / "image"
        path.write_bytes(saved(made(mode, size), format, **options))
        found = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
        peak, most = map(int, found.stdout.split())
        peaks.append(peak - 2 * path.stat().st_size)
        told.append(most)
    assert peaks[1] - peaks[0] <= told[1] - told[0]


def test_floats_count_as_what_they_take_on_their_way_to_rgb() -> None:
    with Image.open(io.BytesIO(saved(made("F", (80, 40)), "TIFF"))) as image:
        assert working_bytes(image) >= 80 * 40 * (4 + 4 + 1 + 4 + 3)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {}),
        ("RGB", {"lossless": True}),
        ("RGBA", {}),
        ("RGBA", {"lossless": True}),
        ("RGB", {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}),
        ("RGB", {"save_all": True, "append_images": [Image.new("RGB", (300, 17))]}),
    ],
)
def test_the_size_of_a_webp_is_read_as_libwebp_reads_it(mode: str, options: dict[str, Any]) -> None:
    data = saved(noise(300, 17).convert(mode), "WEBP", **options)
    assert webp_size(data[:30]) == (300, 17)


def test_other_files_are_no_webp() -> None:
    assert webp_size(saved(noise(8, 8), "PNG")[:30]) is None
    assert webp_size(b"RIFF\0\0\0\0WEBPabcd") is None
