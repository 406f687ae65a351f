"""A short clip for real-time loops: objects that move on a desk, seen by a swaying camera.

`python -m bench.nano.demo.clip` writes assets/clip/clip.webp, and to assets/clip/truth.json what is visible where in
every frame. A car comes in, disappears for a moment behind the books and leaves; one ball rolls out, another rolls in.
The last frame continues in the first one.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageSequence

from bench.nano.demo.clip_frames import Actor, Pose, VisibleObject, draw_frames
from bench.nano.demo.stills import ASSETS

CLIP = ASSETS / "clip"
SIZE = (480, 320)
FPS = 30
FRAMES = 150
_SEED = 3
_QUALITY = 60


def _still(x: float, foot: float, angle: float = 0.0) -> Callable[[float], Pose]:
    return lambda time: Pose(x, foot, angle)


def _roll(start: float, foot: float) -> Callable[[float], Pose]:
    # A ball of 0.15 of the height goes round once in 0.31 of the width; one clip is 1.24 widths.
    return lambda time: Pose(start - 1.24 * time, foot, 360 * 4 * time)


def _drive(time: float) -> Pose:
    return Pose(-0.25 + 1.5 * (time - 0.03) / 0.86, 0.70, 1.2 * math.sin(2 * math.pi * 9 * time))


def _flutter(seed: int) -> Callable[[float], Pose]:
    phase = np.random.default_rng(seed).uniform(0, 2 * math.pi, 2)

    def pose(time: float) -> Pose:
        turn = 2 * math.pi * time
        x = 0.79 + 0.11 * math.sin(turn + phase[0]) + 0.015 * math.sin(5 * turn)
        high = 0.27 + 0.07 * math.sin(2 * turn + phase[1]) + 0.02 * math.sin(7 * turn)
        return Pose(x, high, 12 * math.sin(3 * turn), flies=True)

    return pose


def actors(seed: int = _SEED) -> tuple[Actor, ...]:
    return (
        Actor(0, "potted plant", 0.36, _still(0.12, 0.635)),
        Actor(1, "clock", 0.25, _still(0.60, 0.615)),
        Actor(2, "butterfly", 0.17, _flutter(seed)),
        Actor(3, "car", 0.24, _drive, mirror=True),
        Actor(4, "books", 0.34, _still(0.385, 0.775)),
        Actor(5, "cup", 0.24, _still(0.865, 0.84)),
        Actor(6, "banana", 0.23, _still(0.145, 0.95, -8)),
        Actor(7, "soccer ball", 0.15, _roll(0.53, 0.955)),
        Actor(8, "soccer ball", 0.15, _roll(0.53 + 1.24, 0.955)),
    )


def frames(path: str | PathLike[str] = CLIP / "clip.webp") -> Iterator[Image.Image]:
    """Read an animation frame by frame. Returns RGB images of one size, in order."""
    with Image.open(path) as animation:
        for frame in ImageSequence.Iterator(animation):
            yield frame.convert("RGB")


def load_truth(path: str | PathLike[str] = CLIP / "truth.json") -> list[list[VisibleObject]]:
    stored = json.loads(Path(path).read_text(encoding="utf-8"))
    return [[_from_json(item) for item in row] for row in stored["frames"]]


def _from_json(item: dict[str, Any]) -> VisibleObject:
    x0, y0, x1, y1 = item["box"]
    return VisibleObject(item["id"], item["name"], (x0, y0, x1, y1), item["visible"])


def save_animation(path: Path, images: Sequence[Image.Image], quality: int = _QUALITY, fps: float = FPS) -> None:
    # Whole milliseconds that add up: 33, 33, 34 at 30 frames a second.
    ends = [round(1000 * (number + 1) / fps) for number in range(len(images))]
    times = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    options: dict[str, Any] = {"duration": times, "loop": 0, "quality": quality, "method": 4, "minimize_size": False}
    images[0].save(path, save_all=True, append_images=images[1:], **options)


def _as_json(seen: VisibleObject) -> dict[str, Any]:
    box = [round(side, 5) for side in seen.box]
    return {"id": seen.id, "name": seen.name, "box": box, "visible": round(seen.visible, 4)}


def write_clip(folder: Path = CLIP, seed: int = _SEED, count: int = FRAMES) -> None:
    """Write the clip and the boxes of its frames; needs the font."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = list(draw_frames(actors(seed), SIZE, count, seed))
    save_animation(folder / "clip.webp", [frame.image for frame in drawn])
    rows = [json.dumps([_as_json(seen) for seen in frame.seen]) for frame in drawn]
    head = f'{{"width": {SIZE[0]}, "height": {SIZE[1]}, "fps": {FPS}, "frames": [\n'
    (folder / "truth.json").write_text(head + ",\n".join(rows) + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    write_clip()
