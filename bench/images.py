"""Images on the CPU: what cutting crops spends its time on, and whether another decoder than Pillow would be quicker.

`python -m bench.images` times everything in rounds, the named baseline first in each, and prints medians of the ratios
within a round. Where pixels differ from Pillow's, only that fact is printed.

- crops: whole images to crops, by plain `Image.resize` and slices (the baseline), by its parts, and by
  `photonlite.images.crops.cut_crops` with several threads.
- decoders: files in memory to pixels, by `photonlite.images.decode.load_image` (the baseline) and by what is installed
  of simplejpeg, OpenCV, imagecodecs, pyvips and pyspng. They return arrays; "+ Image" adds the conversion to the
  Pillow image that the engine takes. "4 threads" is throughput with four decoders at a time: one that holds Python's
  global lock gains nothing.

- isolation: JPEGs in memory to RGB, in this process (the baseline) and by a pool of processes that are killed when a
  image costs too much (`photonlite.images.isolation.pool`).

The images are drawn: noise of all wavelengths stands for photographs, lines, bars and text for charts.
"""

import argparse
import importlib
import io
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, ImageDraw, features

from bench.bubble.report import table
from bench.gpu.preprocessing import pillow_crops
from photonlite.config import ImageLimits
from photonlite.images.crops import CropSpec, cut_crops, select_tiling
from photonlite.images.decode import load_image
from photonlite.images.isolation.pool import DecodePool
from photonlite.images.pool import share_tasks

SIZES = ((640, 480), (480, 640), (1280, 720), (1920, 1080))
SPEC = CropSpec(crop_size=378, patch_size=14, overlap_margin=4, max_crops=12)
ISOLATED = ((640, 480), (4000, 3000))
CREWS = (2, 4)
THREADS = 4
_BATCH = 2 * THREADS  # files that are decoded for one figure of throughput

Work = Callable[[], object]
Decoder = Callable[[bytes], npt.NDArray[np.uint8]]


def photo(width: int, height: int) -> Image.Image:
    """Draw noise whose amplitude grows with its wavelength, as in photographs."""
    rng, size, wavelength = np.random.default_rng(0), (width, height), 1
    total = np.zeros((height, width, 3))
    while wavelength < min(size):
        coarse = rng.normal(size=(max(2, height // wavelength), max(2, width // wavelength), 3)).astype(np.float32)
        planes = [Image.fromarray(coarse[..., c]).resize(size, Image.Resampling.BICUBIC) for c in range(3)]
        total += wavelength**0.9 * np.stack([np.asarray(plane) for plane in planes], -1)
        wavelength *= 2
    return Image.fromarray(np.clip(120 + 50 * (total - total.mean()) / total.std(), 0, 255).astype(np.uint8))


def chart(width: int, height: int) -> Image.Image:
    """Draw curves, bars and labels on white."""
    rng, image = np.random.default_rng(1), Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for color in ((31, 119, 180), (255, 127, 14), (44, 160, 44)):
        heights = height / 2 + np.cumsum(rng.normal(size=60)) * height / 30
        draw.line([(width * i / 60, y) for i, y in enumerate(heights.tolist())], fill=color, width=3)
    for bar in range(20):
        top = height - int(rng.integers(10, height // 3))
        draw.rectangle((width * bar // 20, top, width * bar // 20 + width // 30, height), fill=(148, 103, 189))
    for label in range(40):
        place = int(rng.integers(0, width)), int(rng.integers(0, height))
        draw.text(place, f"label {label}", fill=(0, 0, 0))
    return image


def ratios(works: Mapping[str, Work], rounds: int) -> tuple[float, dict[str, float]]:
    """Time functions alternately.

    Returns:
        Median seconds of the first, and the median ratio of each to the first of the same round.
    """
    for work in works.values():
        work()
    times = [{name: _seconds(work) for name, work in works.items()} for _ in range(rounds)]
    first = next(iter(works))
    found = {name: statistics.median(round_[name] / round_[first] for round_ in times) for name in works}
    return statistics.median(round_[first] for round_ in times), found


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    del result  # freed after the clock has stopped
    return seconds


def measure_crops(rounds: int) -> str:
    """Time cutting and its parts; a table of ratios to plain Pillow.

    Raises:
        AssertionError: The crops are not Pillow's.
    """
    rows = []
    with ThreadPoolExecutor(max(CREWS) - 1) as executor:
        for size in SIZES:
            image = photo(*size)
            works: dict[str, Work] = {"Pillow": partial(pillow_crops, image, SPEC)}
            works |= _parts(image)
            for count in (1, *CREWS):
                cut = partial(cut_crops, threads=count, run_tasks=partial(share_tasks, executor, count - 1))
                if not np.array_equal(cut(image, SPEC).pixels, pillow_crops(image, SPEC)):
                    raise AssertionError(f"crops of {size} by {count} threads differ from Pillow's")
                name = f"cut_crops, {count} thread{'s' if count > 1 else ''}"
                works[name] = partial(cut, image, SPEC)
            seconds, found = ratios(works, rounds)
            rows.append([f"{size[0]}x{size[1]}", *(f"{found[name]:.2f}" for name in works), f"{1e3 * seconds:.1f} ms"])
    return table(["image", *works, "Pillow took"], rows)


def _parts(image: Image.Image) -> dict[str, Work]:
    """What plain Pillow does for crops, piece by piece."""
    rows, columns = select_tiling(image.height, image.width, SPEC)
    width, height = (count * SPEC.window + 2 * SPEC.margin for count in (columns, rows))
    whole, method = SPEC.crop_size, Image.Resampling.LANCZOS
    wide, narrow = (image.resize((to, image.height), method) for to in (width, whole))
    sheet = wide.resize((width, height), method)
    return {
        "sheet across": lambda: image.resize((width, image.height), method),
        "sheet down": lambda: wide.resize((width, height), method),
        "whole across": lambda: image.resize((whole, image.height), method),
        "whole down": lambda: narrow.resize((whole, whole), method),
        "to array": lambda: np.asarray(sheet),
    }


def decoders(kind: str) -> Iterator[tuple[str, Decoder]]:
    """Return the other decoders of "jpeg" or "png" that are installed: name, function to uint8 ``[H, W, 3]``."""

    def opencv(cv2: Any, data: bytes) -> Any:
        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)

    def vips(pyvips: Any, data: bytes) -> Any:
        return pyvips.Image.new_from_buffer(data, "").numpy()

    known: dict[str, tuple[str, Callable[[Any, bytes], Any]]] = {
        "cv2": ("opencv-python", opencv),
        "pyvips": ("pyvips", vips),
    }
    if kind == "jpeg":
        known["simplejpeg"] = "simplejpeg", lambda module, data: module.decode_jpeg(data)
        known["imagecodecs"] = "imagecodecs", lambda module, data: module.jpeg8_decode(data)
    else:
        known["pyspng"] = "pyspng", lambda module, data: module.load(data)
        known["imagecodecs"] = "imagecodecs", lambda module, data: module.png_decode(data)
    for name, (package, decode) in known.items():
        try:
            yield f"{name} {version(package)}", partial(decode, importlib.import_module(name))
        except (ImportError, OSError, PackageNotFoundError):
            continue


def measure_decoders(rounds: int) -> str:
    """Time decoders; a table of ratios to Pillow."""
    rows = []
    for size in (size for size in SIZES if size[0] > size[1]):
        for content in (photo, chart):
            image = content(*size)
            for label, options in (
                ("JPEG 4:2:0", {"format": "JPEG", "quality": 85}),
                ("JPEG 4:4:4", {"format": "JPEG", "quality": 90, "subsampling": 0}),
                ("JPEG progressive", {"format": "JPEG", "quality": 85, "progressive": True}),
                ("PNG", {"format": "PNG"}),
            ):
                file = io.BytesIO()
                image.save(file, **options)
                what = f"{label}, {content.__name__} {size[0]}x{size[1]}"
                rows += _compare_decoders(what, file.getvalue(), label.split()[0].lower(), rounds)
    return table(["file", "decoder", "pixels", "1 thread", "+ Image", f"{THREADS} threads"], rows, left=3)


def _compare_decoders(what: str, data: bytes, kind: str, rounds: int) -> list[list[str]]:
    wanted = np.asarray(load_image(data))
    works: dict[str, Work] = {"Pillow": partial(load_image, data)}
    equal = {}
    for name, decode in decoders(kind):
        equal[name] = np.array_equal(decode(data), wanted)
        works[name] = partial(decode, data)
        works[f"{name} + Image"] = partial(_as_image, decode, data)
    seconds, alone = ratios(works, rounds)
    with ThreadPoolExecutor(THREADS) as executor:
        busy: dict[str, Work] = {name: partial(_all_at_once, executor, works[name]) for name in ("Pillow", *equal)}
        together, shared = ratios(busy, max(3, rounds // 3))
    milliseconds = f"{1e3 * seconds:.2f} ms", "", f"{1e3 * together / _BATCH:.2f} ms"
    rows = [[what, f"Pillow {PIL.__version__}", "", *milliseconds]]
    for name, same in equal.items():
        figures = alone[name], alone[f"{name} + Image"], shared[name]
        rows.append(["", name, "equal" if same else "DIFFER", *(f"{figure:.2f}" for figure in figures)])
    return rows


def _as_image(decode: Decoder, data: bytes) -> Image.Image:
    return Image.fromarray(decode(data))


def _all_at_once(executor: ThreadPoolExecutor, work: Work) -> None:
    for future in [executor.submit(work) for _ in range(_BATCH)]:
        future.result()


def measure_isolation(rounds: int) -> str:
    """Time decoding in this process and in others; a table of milliseconds and their differences."""
    rows = []
    pool = DecodePool(ImageLimits(), 1)
    try:
        for size in ISOLATED:
            file = io.BytesIO()
            photo(*size).save(file, "JPEG", quality=85)
            data = file.getvalue()
            if not np.array_equal(np.asarray(pool.decode(data).image), np.asarray(load_image(data))):
                raise AssertionError(f"pixels of {size} differ between processes")
            works: dict[str, Work] = {"here": partial(load_image, data), "isolated": partial(pool.decode, data)}
            seconds, found = ratios(works, rounds)
            here, there = 1e3 * seconds, 1e3 * seconds * found["isolated"]
            rows.append([f"{size[0]}x{size[1]}", f"{here:.2f} ms", f"{there:.2f} ms", f"{there - here:.2f} ms"])
    finally:
        pool.close()
    return table(["JPEG", "in this process", "isolated", "more"], rows)


def main() -> int:
    """Run the measurements and print the tables."""
    parser = argparse.ArgumentParser(description="Cutting crops and decoding on the CPU, against Pillow")
    parser.add_argument("what", nargs="?", choices=("crops", "decoders", "isolation"), help="leave the others out")
    parser.add_argument("--rounds", type=int, default=15, help="repetitions of everything")
    arguments = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, Pillow {PIL.__version__}, "
        f"libjpeg-turbo {features.version('libjpeg_turbo')}, NumPy {np.__version__}\n"
    )
    measures = {"crops": measure_crops, "decoders": measure_decoders, "isolation": measure_isolation}
    for name, measure in measures.items():
        if arguments.what in (None, name):
            print(measure(arguments.rounds), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
