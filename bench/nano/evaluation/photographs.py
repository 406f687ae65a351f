"""Ask a checkpoint for everyday things on photographs that do not show them: it should answer with none.

`python -m bench.nano.evaluation.photographs` uses the photographs inside the packages scikit-image and scikit-learn
(`pip install photonlite[photographs]`); nothing is downloaded. With `--out` it draws the false boxes and writes
photographs.json.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

import photonlite

SURE = 0.5
"""Boxes of a higher score count."""
NAMES = (
    "apple", "backpack", "ball", "banana", "bed", "bicycle", "bird", "boat", "book", "bottle",
    "bus", "car", "cat", "chair", "clock", "cup", "dog", "door", "elephant", "fish",
    "flower", "guitar", "hammer", "hat", "horse", "house", "key", "lamp", "laptop", "pizza",
    "rocket", "scissors", "shoe", "spoon", "star", "telephone", "television", "tree", "umbrella", "window",
)  # fmt: skip
PHOTOGRAPHS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("skimage", "data/astronaut.png"): ("rocket",),
    ("skimage", "data/brick.png"): (),
    ("skimage", "data/camera.png"): ("house", "window"),
    ("skimage", "data/chelsea.png"): ("cat",),
    ("skimage", "data/clock_motion.png"): ("clock",),
    ("skimage", "data/coffee.png"): ("cup", "spoon"),
    ("skimage", "data/coins.png"): (),
    ("skimage", "data/grass.png"): (),
    ("skimage", "data/gravel.png"): (),
    ("skimage", "data/hubble_deep_field.jpg"): ("star",),
    ("skimage", "data/moon.png"): (),
    ("skimage", "data/motorcycle_left.png"): ("bicycle", "shoe", "door", "window"),
    ("skimage", "data/rocket.jpg"): ("rocket",),
    ("sklearn", "datasets/images/china.jpg"): ("house", "tree", "door", "window"),
    ("sklearn", "datasets/images/flower.jpg"): ("flower",),
}
"""Package and file, and which of `NAMES` the photograph shows: these are not asked for."""


@dataclass(frozen=True)
class FalseBox:
    photograph: str
    name: str  # What was asked for
    box: tuple[float, float, float, float]
    score: float


def photograph(package: str, file: str) -> Image.Image:
    """Read a file of an installed package, without importing it; raises ModuleNotFoundError."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is missing: pip install 'photonlite[photographs]'")
    with Image.open(Path(spec.submodule_search_locations[0]) / file) as image:
        return image.convert("RGB")


def false_boxes(model: Any, name: str, image: Image.Image, shown: Sequence[str] = ()) -> Iterator[FalseBox]:
    """Ask for all of `NAMES` that a photograph does not show; returns what was found, whatever the score."""
    asked = [one for one in NAMES if one not in shown]
    encoded = model.encode_image(image)
    results = model.batch([{"skill": "detect", "object": one, "image": encoded} for one in asked])
    for one, result in zip(asked, results, strict=True):
        for box in result["objects"]:
            corners = box["x_min"], box["y_min"], box["x_max"], box["y_max"]
            yield FalseBox(name, one, corners, float(box["score"]))


def draw(image: Image.Image, boxes: Sequence[FalseBox]) -> Image.Image:
    """Draw boxes with their names and scores on a copy."""
    image = image.copy()
    pen = ImageDraw.Draw(image)
    for one in boxes:
        x0, y0, x1, y1 = (edge * side for edge, side in zip(one.box, 2 * image.size, strict=True))
        pen.rectangle((x0, y0, x1, y1), outline="#ff2d55", width=3)
        pen.text((x0 + 5, y0 + 4), f"{one.name} {one.score:.2f}", fill="#ff2d55", stroke_width=2, stroke_fill="white")
    return image


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.nano.evaluation.photographs", description=__doc__)
    parser.add_argument("--model", help="folder, file or Hub id; the shipped checkpoint by default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder for the photographs with false boxes")
    options = parser.parse_args(arguments)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    model = photonlite.load(options.model, device=options.device)
    found, asked = list[FalseBox](), 0
    for (package, file), shown in PHOTOGRAPHS.items():
        image, name = photograph(package, file), Path(file).stem
        boxes = list(false_boxes(model, name, image, shown))
        sure = [one for one in boxes if one.score > SURE]
        print(f"{name:<20}{len(sure):>4} of {len(boxes):>4} boxes over {SURE}: " + _listed(sure))
        if options.out and sure:
            draw(image, sure).save(options.out / f"{name}.jpg")
        found, asked = found + boxes, asked + len(NAMES) - len(shown)
    sure = [one for one in found if one.score > SURE]
    print(f"{len(PHOTOGRAPHS)} photographs, {asked} questions for what they do not show:")
    print(f"{len(sure)} boxes over {SURE}, {len(found)} boxes in all")
    if options.out:
        name = f"boxes over {SURE} on {len(PHOTOGRAPHS)} photographs, of what they do not show"
        row = {"name": name, "figure": len(sure), "limit": 0, "at_most": True, "met": not sure, "interval": None}
        (options.out / "photographs.json").write_text(json.dumps({"headline": [row]}), encoding="utf-8")


def _listed(boxes: Sequence[FalseBox]) -> str:
    return ", ".join(f"{one.name} {one.score:.2f}" for one in sorted(boxes, key=lambda one: -one.score)[:8])


if __name__ == "__main__":
    main()
