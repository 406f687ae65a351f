"""Worker process of one environment: reads cases from stdin, one a line, and writes the seconds of each call.

```
{"case": "detect", "seconds": 2.0}  ->  {"wall": [0.21, 0.20, ...], "cpu": [0.27, 0.26, ...]}
```
"""

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from PIL import Image, ImageDraw

import photonlite

SIZE = (960, 640)
IMAGES = 8
"""In a batch, and in the loop that it is compared with."""

_NUMBERS = itertools.count()


def new_image() -> Image.Image:
    """Draw an image that no cache knows."""
    number = next(_NUMBERS)
    image = Image.new("RGB", SIZE, (200, number % 256, number // 256 % 256))
    ImageDraw.Draw(image).ellipse((100 + number % 300, 100, 400 + number % 300, 400), fill=(240, 220, 40))
    return image


def cases(model: Any) -> dict[str, Callable[[], object]]:
    """Return what can be asked for."""

    def detect() -> object:
        return model.detect(new_image(), "banana")

    def loop() -> object:
        return [detect() for _ in range(IMAGES)]

    def batch() -> object:
        return model.batch({"skill": "detect", "image": new_image(), "object": "banana"} for _ in range(IMAGES))

    return {"detect": detect, "caption": lambda: model.caption(new_image()), "loop": loop, "batch": batch}


def measure(work: Callable[[], object], seconds: float) -> dict[str, list[float]]:
    """Time calls for this many seconds, at least one, after one warm-up call."""
    work()
    wall: list[float] = []
    cpu: list[float] = []
    end = time.perf_counter() + seconds
    while not wall or time.perf_counter() < end:
        begun, used = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - begun)
        cpu.append(time.process_time() - used)
    return {"wall": wall, "cpu": cpu}


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Leave the number of threads to PyTorch, as if photonlite did not set it."""
    untouched = mock.Mock(spread=lambda _: contextlib.nullcontext())
    with mock.patch("photonlite.engine.build.compute_threads", return_value=untouched):
        yield


def main() -> None:
    """Load the shipped model and answer until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", action="store_true", help="leave the number of threads to PyTorch")
    options = parser.parse_args()
    with plain_torch() if options.plain else contextlib.nullcontext():
        model = photonlite.load(device="cpu")
    known = cases(model)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(measure(known[asked["case"]], asked["seconds"])), flush=True)


if __name__ == "__main__":
    main()
