"""Questions whose answers are places: boxes, points, outlines."""

import random
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from bench.nano.evaluation.asking import subjects
from bench.nano.evaluation.records import OutlineRecord, Place, PlaceRecord
from bench.nano.questions.text import language
from bench.nano.scenes.held_out.scene import Outline, Scene
from photonlite.results.rings import fill_mask

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def detect_questions(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    """Look for each kind, for one that is absent and for an unknown one."""
    for target in subjects.targets(scene, rng):
        phrase = language.phrase(rng, target.pair)
        yield subjects.Question({"skill": "detect", "object": phrase}, partial(_read_boxes, scene, target, phrase))


def _read_boxes(scene: Scene, target: subjects.Target, phrase: str, result: Any) -> PlaceRecord:
    objects = result["objects"]
    boxes: list[Place] = [(box["x_min"], box["y_min"], box["x_max"], box["y_max"]) for box in objects]
    scores = [float(box["score"]) for box in objects]
    return PlaceRecord(target.kind, target.wanted, phrase, _truth(scene, target.kind), boxes, scores)


def _truth(scene: Scene, kind: int | None) -> list[Place]:
    return [scene.objects[place].box for place in subjects.places_of(scene, kind)]


def point_questions(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    """Point at each kind, at one that is absent and at an unknown one; and at one marked instance."""
    for target in subjects.targets(scene, rng):
        phrase = language.phrase(rng, target.pair)
        read = partial(_read_points, scene, target, phrase, subjects.places_of(scene, target.kind), None)
        yield subjects.Question({"skill": "point", "object": phrase}, read)
    place = rng.choice(subjects.repeated_places(scene))
    target = subjects.present_target(rng, scene.objects[place].index)
    phrase, reference = language.phrase(rng, target.pair), subjects.random_reference(rng, scene, place)
    read = partial(_read_points, scene, target, phrase, [place], reference)
    yield subjects.Question({"skill": "point", "object": phrase, "spatial_refs": [reference]}, read)


def _read_points(
    scene: Scene, target: subjects.Target, phrase: str, places: list[int], reference: Place | None, result: Any
) -> PlaceRecord:
    points: list[Place] = [(point["x"], point["y"]) for point in result["points"]]
    shown = [subjects.object_at(scene, point) for point in points]
    return PlaceRecord(
        target.kind,
        target.wanted,
        phrase,
        [scene.objects[place].box for place in places],
        points,
        [float(point["score"]) for point in result["points"]],
        [place in places for place in shown],
        [place in shown for place in places],
        reference,
    )


def segment_questions(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    """Outline the largest of a kind, a marked instance, and something that is not there."""
    kinds = sorted({item.index for item in scene.objects})
    largest = [subjects.largest(scene, subjects.places_of(scene, kind)) for kind in kinds]
    if clear := [place for place in largest if place is not None]:
        place = rng.choice(clear)
        yield _outline_question(scene, rng, subjects.present_target(rng, scene.objects[place].index), place, None)
    place = rng.choice(subjects.repeated_places(scene))
    yield _outline_question(
        scene,
        rng,
        subjects.present_target(rng, scene.objects[place].index),
        place,
        subjects.random_reference(rng, scene, place),
    )
    missing = subjects.absent_target(scene, rng) if rng.random() < 0.5 else subjects.unknown_target(rng)
    yield _outline_question(scene, rng, missing, None, None)


def _outline_question(
    scene: Scene, rng: random.Random, target: subjects.Target, place: int | None, reference: Place | None
) -> subjects.Question:
    phrase = language.phrase(rng, target.pair)
    task: dict[str, Any] = {"skill": "segment", "object": phrase}
    if reference:
        task["spatial_refs"] = [reference]
    return subjects.Question(task, partial(_read_outline, scene, target, phrase, place, reference))


def _read_outline(
    scene: Scene, target: subjects.Target, phrase: str, place: int | None, reference: Place | None, result: Any
) -> OutlineRecord:
    overlap, vertices, length = 0.0, 0, 0.0
    polygon: list[Place] = []
    if result["segments"]:
        segment = result["segments"][0]
        polygon = [(round(x, 4), round(y, 4)) for x, y in segment["polygon"]]
        vertices = len(_NUMBER.findall(segment["path"])) // 2
        if place is not None:
            lines = scene.silhouette(place)
            truth = fill_mask([line.tolist() for line in lines], *scene.image.size)
            overlap = subjects.mask_iou(result.mask(*scene.image.size)[0], truth)
            length = _length(np.array(polygon) * scene.image.size) / sum(map(_length, lines))
    return OutlineRecord(target.kind, target.wanted, phrase, reference, place, polygon, vertices, overlap, length)


def _length(line: Outline) -> float:
    return float(np.hypot(*(np.roll(line, -1, axis=0) - line).T).sum())
