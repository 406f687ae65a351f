"""Answers of a checkpoint about the demo images and the clip: plots for the README, and its texts as Markdown.

`python -m bench.nano.demo.showcase` writes desk-detected.png, market-points.png, street-detected.png and
clip-detected.webp into assets with the shipped checkpoint, and prints the texts. What a checkpoint cannot do is left
out with a note.
"""

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from PIL import Image

import photonlite
from bench.nano.demo.clip import CLIP, FPS, frames, load_truth, save_animation
from bench.nano.demo.stills import ASSETS
from photonlite.api.tasks import EncodedImage
from photonlite.errors import UnsupportedSkillError
from photonlite.results import Detections

# Of the palette of photonlite's plots; distinguishable with colour blindness.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#f0e442", "#cc79a7", "#56b4e9", "#e69f00", "#ffffff")
_COLOURS = {"bus": COLOURS[0], "car": COLOURS[3], "tangerine": COLOURS[1]}
# Of two frames one: an animation of boxes is as clear at half the rate, and half as large.
_EVERY = 2
_QUALITY = 55

QUESTIONS: dict[str, tuple[str, ...]] = {
    "desk": (
        "How many bananas are there?",
        "Is there a dog?",
        "What is to the right of the laptop?",
        "What colour is the apple?",
    ),
    "market": (
        "How many tangerines are there?",
        "Is the strawberry to the left of the carrot?",
        "Which is higher, the grapes or the carrot?",
    ),
    "street": (
        "How many cars are there?",
        "What is to the right of the bus?",
        "Which is further left, the mailbox or the bicycle?",
    ),
}
_REASONED = {"desk": "How many bananas are there?", "market": "How many tangerines are there?"}
LENGTHS = ("short", "normal", "long")


def plot_stills(model: photonlite.VisionModel, stills: Path, out: Path) -> Iterator[str]:
    """Plot what is found on each still. Returns one line about each file written or left out."""
    desk, market, street = (stills / f"{name}.png" for name in ("desk", "market", "street"))
    for skill in ("detect", "point", "segment"):
        if skill not in model.skills:
            yield f"left out: this checkpoint has no skill {skill}"
    if "detect" in model.skills:
        yield _save(model.detect(desk, "banana").plot(desk), out / "desk-detected.png")
        page: Path | Image.Image = street
        if "segment" in model.skills:
            page = model.segment(street, "bus").plot(street, scores=False, colors=_COLOURS)
        yield _save(model.detect(street, "car").plot(page, scores=False, colors=_COLOURS), out / "street-detected.png")
    if "point" in model.skills:
        # Labels would hide what is pointed at: the fruit lie close together and are all of one kind.
        points = model.point(market, "tangerine")
        yield _save(points.plot(market, labels=False, line_width=5, colors=_COLOURS), out / "market-points.png")


def _save(image: Image.Image, path: Path) -> str:
    image.save(path, optimize=True)
    return f"{path.name}: {path.stat().st_size:,} bytes"


def plot_clip(
    model: photonlite.VisionModel, images: Iterable[Image.Image], names: Sequence[str]
) -> Iterator[Image.Image]:
    """Draw boxes of everything with one of the names on each image."""
    colours = dict(zip(names, itertools.cycle(COLOURS), strict=False))
    for image in images:
        read = model.encode_image(image)
        found = [item for name in names for item in model.detect(read, name)["objects"]]
        yield Detections(found).plot(image, scores=False, colors=colours, line_width=2, font_size=13)


def write_clip_plot(model: photonlite.VisionModel, out: Path, clip: Path = CLIP) -> str:
    """Write the clip with the boxes that the model finds in it; tells what was written or why not."""
    if "detect" not in model.skills:
        return "clip-detected.webp is left out: it needs the skill detect"
    names = sorted({seen.name for row in load_truth(clip / "truth.json") for seen in row})
    images = itertools.islice(frames(clip / "clip.webp"), 0, None, _EVERY)
    path = out / "clip-detected.webp"
    save_animation(path, list(plot_clip(model, images, names)), _QUALITY, FPS / _EVERY)
    return f"{path.name}: {path.stat().st_size:,} bytes"


def texts(model: photonlite.VisionModel, stills: Path) -> Iterator[str]:
    """Ask for captions, answers and one result as JSON; yields lines of Markdown."""
    for name, questions in QUESTIONS.items():
        path = stills / f"{name}.png"
        image = model.encode_image(path)
        yield from (f"### {name}", "", f"![](assets/{path.name})", "")
        if "caption" in model.skills:
            yield from ("| length | caption |", "|---|---|")
            for length in LENGTHS:
                yield f"| {length} | {model.caption(image, length=length)['caption']} |"
            yield ""
        if "query" in model.skills:
            yield from ("| question | answer |", "|---|---|")
            for question in questions:
                yield f"| {question} | {model.query(image, question)['answer']} |"
            yield ""
            if name in _REASONED:
                yield from _reasoned(model, image, _REASONED[name])
    if "detect" in model.skills:
        found = model.detect(stills / "desk.png", "banana")
        yield from ("```json", json.dumps(_rounded(found["objects"]), indent=1), "```")


def _reasoned(model: photonlite.VisionModel, image: EncodedImage, question: str) -> Iterator[str]:
    try:
        answer = model.query(image, question, reasoning=True)
    except UnsupportedSkillError:
        yield "Reasoning is left out: this checkpoint does not know it."
    else:
        yield from (f"With reasoning, {question.lower()}", "", "```json", json.dumps(answer), "```")
    yield ""


def _rounded(items: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    return [
        {key: round(value, 3) if isinstance(value, float) else value for key, value in item.items()} for item in items
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", help="folder of a checkpoint; the shipped one by default")
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder of the plots")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with photonlite.load(options.checkpoint) if options.checkpoint else photonlite.load() as model:
        for line in (*plot_stills(model, ASSETS, options.out), write_clip_plot(model, options.out)):
            print(f"<!-- {line} -->")
        print("\n".join(texts(model, ASSETS)))


if __name__ == "__main__":
    main()
