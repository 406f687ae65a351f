"""A short clip for real-time loops: objects that move on a desk, seen by a swaying camera.

`python -m bench.nano.demo.clip` writes assets/clip/clip.webp, and the visible boxes of every frame to
assets/clip/truth.json. A car enters, disappears for a moment behind the books and leaves; one ball rolls out, another
rolls in. The last frame continues in the first one.
"""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.nano.demo.clip_frames import Actor, Pose, VisibleObject, draw_frames
from bench.nano.demo.stills import ASSETS

SIZE = (480, 320)
FPS = 30
FRAMES = 150
_PHASE = np.random.default_rng(3).uniform(0, 2 * math.pi, 2)


def _still(x: float, foot: float, angle: float = 0.0) -> Callable[[float], Pose]:
    return lambda time: Pose(x, foot, angle)


def _roll(start: float, foot: float) -> Callable[[float], Pose]:
    # A ball of 0.15 of the height goes round once in 0.31 of the width; one clip is 1.24 widths.
    return lambda time: Pose(start - 1.24 * time, foot, 360 * 4 * time)


def _drive(time: float) -> Pose:
    return Pose(-0.25 + 1.5 * (time - 0.03) / 0.86, 0.70, 1.2 * math.sin(2 * math.pi * 9 * time))


def _flutter(time: float) -> Pose:
    turn = 2 * math.pi * time
    x = 0.79 + 0.11 * math.sin(turn + _PHASE[0]) + 0.015 * math.sin(5 * turn)
    high = 0.27 + 0.07 * math.sin(2 * turn + _PHASE[1]) + 0.02 * math.sin(7 * turn)
    return Pose(x, high, 12 * math.sin(3 * turn), flies=True)


# From back to front; the place of an actor is its id.
ACTORS = (
    Actor("potted plant", 0.36, _still(0.12, 0.635)),
    Actor("clock", 0.25, _still(0.60, 0.615)),
    Actor("butterfly", 0.17, _flutter),
    Actor("car", 0.24, _drive, mirror=True),
    Actor("books", 0.34, _still(0.385, 0.775)),
    Actor("cup", 0.24, _still(0.865, 0.84)),
    Actor("banana", 0.23, _still(0.145, 0.95, -8)),
    Actor("soccer ball", 0.15, _roll(0.53, 0.955)),
    Actor("soccer ball", 0.15, _roll(0.53 + 1.24, 0.955)),
)


def save_animation(path: Path, images: Sequence[Image.Image], fps: float, quality: int) -> None:
    # Whole milliseconds that add up: 33, 34, 33 at 30 frames a second.
    ends = [round(1000 * number / fps) for number in range(len(images) + 1)]
    times = [end - start for start, end in itertools.pairwise(ends)]
    images[0].save(path, save_all=True, append_images=images[1:], duration=times, loop=0, quality=quality, method=4)


def write_clip(folder: Path = ASSETS / "clip", count: int = FRAMES) -> None:
    """Write the clip and the boxes of its frames; needs the font."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = list(draw_frames(ACTORS, SIZE, count))
    save_animation(folder / "clip.webp", [frame.image for frame in drawn], FPS, quality=60)
    rows = [json.dumps([_as_json(seen) for seen in frame.seen]) for frame in drawn]
    head = f'{{"width": {SIZE[0]}, "height": {SIZE[1]}, "fps": {FPS}, "frames": [\n'
    (folder / "truth.json").write_text(head + ",\n".join(rows) + "\n]}\n", encoding="utf-8")


def _as_json(seen: VisibleObject) -> dict[str, Any]:
    box = [round(side, 5) for side in seen.box]
    return {"id": seen.id, "name": seen.name, "box": box, "visible": round(seen.visible, 4)}


if __name__ == "__main__":
    write_clip()
