"""Subjects of questions about held-out scenes: objects, their names, and the points and boxes that mark them."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.nano.evaluation.records import Place, Wanted
from bench.nano.questions.text import language, typed
from bench.nano.scenes.held_out.scene import Scene
from bench.nano.scenes.objects import load_objects

EDGE_SHIFT = 0.06
"""Each edge of a box that marks an object is off by up to this share of the box's side."""


@dataclass(frozen=True)
class Question:
    task: dict[str, Any]  # For `photonlite`'s `model.batch`, but for the image
    read: Callable[[Any], Any]  # Turns the result into what the record keeps


@dataclass(frozen=True)
class Target:
    """A thing to ask for: class index (None for an unknown word), how, and the words (singular, plural)."""

    kind: int | None
    wanted: Wanted
    pair: tuple[str, str]


def targets(scene: Scene, rng: random.Random) -> list[Target]:
    """Return a target for each kind of a scene, one for an absent kind, and one for an unknown word."""
    present = [present_target(rng, index) for index in sorted({item.index for item in scene.objects})]
    return [*present, absent_target(scene, rng), unknown_target(rng)]


def present_target(rng: random.Random, index: int) -> Target:
    pair = language.name_pair(rng, index)
    return Target(index, "name" if pair[0] == load_objects()[index].name else "synonym", pair)


def absent_target(scene: Scene, rng: random.Random) -> Target:
    present = {item.index for item in scene.objects}
    kind = rng.choice([index for index in range(len(load_objects())) if index not in present])
    return Target(kind, "absent", language.name_pair(rng, kind))


def unknown_target(rng: random.Random) -> Target:
    return Target(None, "unknown", language.unknown_pair(rng, "held_out"))


def instances(scene: Scene) -> list[language.Instance]:
    """Return class index and centre of each object, in the order of `scene.objects`."""
    return [(item.index, (item.box[0] + item.box[2]) / 2, (item.box[1] + item.box[3]) / 2) for item in scene.objects]


def repeated_places(scene: Scene) -> list[int]:
    """Return the places of objects that are not the only ones of their kind; all places where there are none."""
    counts = Counter(item.index for item in scene.objects)
    places = [place for place, item in enumerate(scene.objects) if counts[item.index] > 1]
    return places or list(range(len(scene.objects)))


def places_of(scene: Scene, kind: int | None) -> list[int]:
    return [place for place, item in enumerate(scene.objects) if item.index == kind]


def largest(scene: Scene, places: Sequence[int]) -> int | None:
    """Return the one of several places whose box is clearly the largest, None without one."""
    boxes = [scene.objects[place].box for place in places]
    found = typed.clearly_first([(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes], ratio=typed.CLEARLY_LARGEST)
    return None if found is None else places[found]


def random_reference(rng: random.Random, scene: Scene, place: int) -> Place:
    """Mark an object: by a random visible pixel of it, or by its box with each edge a little off."""
    return random_pixel(rng, scene, place) if rng.random() < 0.5 else shifted_box(rng, scene.objects[place].box)


def random_pixel(rng: random.Random, scene: Scene, place: int) -> Place:
    """Return the centre of a random visible pixel of an object, or of the background for place -1."""
    found = np.flatnonzero(scene.mask(place))
    if not len(found):
        raise ValueError(f"no pixel shows object {place}")
    height, width = scene.owner.shape
    row, column = divmod(int(found[rng.randrange(len(found))]), width)
    return (column + 0.5) / width, (row + 0.5) / height


def shifted_box(rng: random.Random, box: Sequence[float]) -> Place:
    """Move each edge of a box by up to `EDGE_SHIFT` of its side, within the image."""
    wide, high = box[2] - box[0], box[3] - box[1]
    moved = (edge + rng.uniform(-EDGE_SHIFT, EDGE_SHIFT) * (wide, high)[i % 2] for i, edge in enumerate(box))
    return tuple(min(1.0, max(0.0, edge)) for edge in moved)


def object_at(scene: Scene, point: Sequence[float]) -> int:
    """Return the place of the object that is visible at a point, -1 for the background."""
    height, width = scene.owner.shape
    row, column = (min(side - 1, max(0, int(part * side))) for part, side in ((point[1], height), (point[0], width)))
    return int(scene.owner[row, column])


def mask_iou(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> float:
    """Intersection over union of two masks of one shape; 0 where both are empty."""
    union = int(np.count_nonzero(first | second))
    return int(np.count_nonzero(first & second)) / union if union else 0.0
