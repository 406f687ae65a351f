"""What the shipped checkpoint finds in the demo images and in the clip, drawn on them for the README.

`python -m bench.nano.demo.showcase` writes desk-detected.png, market-points.png, street-detected.png and
clip-detected.webp into assets.
"""

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image, ImageSequence

import photonlite
from bench.nano.demo.clip import save_animation
from bench.nano.demo.stills import ASSETS
from photonlite.results import Detections

# From the palette of photonlite's plots; distinguishable with colour blindness.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#f0e442", "#cc79a7", "#56b4e9", "#e69f00", "#ffffff")
_BY_NAME = {"bus": COLOURS[0], "car": COLOURS[3], "tangerine": COLOURS[1]}
_EVERY = 2  # every other frame is drawn: boxes are as clear at half the rate, and the file is half as large


def plot_stills(model: photonlite.VisionModel) -> Iterator[tuple[str, Image.Image]]:
    """Return the plots of the three images by file name."""
    desk, market, street = (ASSETS / f"{name}.png" for name in ("desk", "market", "street"))
    yield "desk-detected.png", model.detect(desk, "banana").plot(desk)
    outlined = model.segment(street, "bus").plot(street, scores=False, colors=_BY_NAME)
    yield "street-detected.png", model.detect(street, "car").plot(outlined, scores=False, colors=_BY_NAME)
    # Labels would hide the fruit: they are small, close together and all of one kind.
    points = model.point(market, "tangerine").plot(market, labels=False, line_width=5, colors=_BY_NAME)
    yield "market-points.png", points


def plot_clip(model: photonlite.VisionModel, clip: Path, names: Sequence[str]) -> Iterator[Image.Image]:
    """Draw boxes of everything with one of the names on every other frame of an animation."""
    colours = dict(zip(names, itertools.cycle(COLOURS), strict=False))
    with Image.open(clip) as animation:
        for frame in itertools.islice(ImageSequence.Iterator(animation), 0, None, _EVERY):
            image = frame.convert("RGB")
            encoded = model.encode_image(image)
            found = [item for name in names for item in model.detect(encoded, name)["objects"]]
            yield Detections(found).plot(image, scores=False, colors=colours, line_width=2, font_size=13)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", help="folder of a checkpoint; the shipped one by default")
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder of the plots")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    truth = json.loads((ASSETS / "clip" / "truth.json").read_text(encoding="utf-8"))
    names = sorted({item["name"] for row in truth["frames"] for item in row})
    with photonlite.load(options.checkpoint) as model:
        for name, image in plot_stills(model):
            image.save(options.out / name, optimize=True)
        frames = list(plot_clip(model, ASSETS / "clip" / "clip.webp", names))
        save_animation(options.out / "clip-detected.webp", frames, truth["fps"] / _EVERY, quality=55)


if __name__ == "__main__":
    main()
