"""Puts the questions about one held-out scene to a loaded model and keeps its answers beside the truth."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from PIL import Image

from bench.nano import language
from bench.nano.objects import load_objects
from bench.nano.scenes import Scene

Skill = Literal["detect", "point", "caption", "query"]
SKILLS: tuple[Skill, ...] = ("detect", "point", "caption", "query")
Wanted = Literal["name", "synonym", "absent", "unknown"]
"""How a thing was asked for: by its name or a synonym; or one that is not in this scene, or in no scene at all."""


class Model(Protocol):
    """What the evaluation uses of `photonlite.load`'s model."""

    def detect(self, image: Any, object: str) -> Any:
        """Give {"objects": [...]}."""

    def point(self, image: Any, object: str) -> Any:
        """Give {"points": [...]}."""

    def caption(self, image: Any, length: str) -> Any:
        """Give {"caption": ...}."""

    def query(self, image: Any, question: str) -> Any:
        """Give {"answer": ...}."""


@dataclass(frozen=True)
class Located:
    """One detect or point question.

    Attributes:
        kind: Class index asked for, None for an unknown word.
        wanted: How it was asked for.
        phrase: The text handed in.
        truth: Boxes of all instances, fractions of the picture.
        answers: Boxes (four numbers) or points (two).
        scores: One per answer.
    """

    kind: int | None
    wanted: Wanted
    phrase: str
    truth: list[tuple[float, ...]]
    answers: list[tuple[float, ...]]
    scores: list[float]


@dataclass(frozen=True)
class Captioned:
    """A short caption and how many of each class there are."""

    text: str
    truth: dict[int, int]


@dataclass(frozen=True)
class Asked:
    """A question in words: `about` is "count", "total", or "existence"."""

    about: str
    wanted: Wanted | None
    question: str
    expected: str
    answer: str


@dataclass(frozen=True)
class Record:
    """Everything asked about one scene."""

    seed: int
    background: str
    width: int
    height: int
    detections: list[Located] = field(default_factory=list)
    points: list[Located] = field(default_factory=list)
    captions: list[Captioned] = field(default_factory=list)
    questions: list[Asked] = field(default_factory=list)


def examine(model: Model, scene: Scene, seed: int, skills: Sequence[Skill] = SKILLS) -> Record:
    """Ask one scene's questions, the same ones for the same seed.

    Each kind in the scene is looked for by one random phrase, and so are one object that is not in it and one word that
    names no object. A skill's questions do not depend on which other skills are examined.

    Args:
        model: What answers, greedily.
        scene: The scene.
        seed: Decides the words.
        skills: What to ask for.
    """
    record = Record(seed, scene.background, scene.image.width, scene.image.height)
    # An encoded picture can stand in for the picture: the vision encoder then runs once for all questions.
    encode = getattr(model, "encode_image", None)
    image = encode(scene.image) if encode else scene.image
    if "detect" in skills:
        record.detections.extend(_detect(model, image, scene, random.Random(f"detect {seed}")))
    if "point" in skills:
        record.points.extend(_point(model, image, scene, random.Random(f"point {seed}")))
    if "caption" in skills:
        truth = dict(Counter(item.index for item in scene.objects))
        record.captions.append(Captioned(str(model.caption(image, "short")["caption"]), truth))
    if "query" in skills:
        record.questions.extend(_query(model, image, scene, random.Random(f"query {seed}")))
    return record


def _targets(scene: Scene, rng: random.Random) -> list[tuple[int | None, Wanted, tuple[str, str]]]:
    """Choose what to ask for: class, how, and the words (singular, plural)."""
    objects = load_objects()
    targets: list[tuple[int | None, Wanted, tuple[str, str]]] = []
    for index in sorted({item.index for item in scene.objects}):
        pair = language.name_pair(rng, index)
        targets.append((index, "name" if pair[0] == objects[index].name else "synonym", pair))
    absent = _absent_kind(scene, rng)
    targets.append((absent, "absent", language.name_pair(rng, absent)))
    targets.append((None, "unknown", language.unknown_pair(rng, "held_out")))
    return targets


def _absent_kind(scene: Scene, rng: random.Random) -> int:
    present = {item.index for item in scene.objects}
    return rng.choice([index for index in range(len(load_objects())) if index not in present])


def _truth(scene: Scene, kind: int | None) -> list[tuple[float, ...]]:
    return [item.box for item in scene.objects if item.index == kind]


def _detect(model: Model, image: Image.Image, scene: Scene, rng: random.Random) -> list[Located]:
    located = []
    for kind, wanted, pair in _targets(scene, rng):
        phrase = language.phrase(rng, pair)
        objects = model.detect(image, phrase)["objects"]
        boxes = [(box["x_min"], box["y_min"], box["x_max"], box["y_max"]) for box in objects]
        scores = [float(box["score"]) for box in objects]
        located.append(Located(kind, wanted, phrase, _truth(scene, kind), [*boxes], scores))
    return located


def _point(model: Model, image: Image.Image, scene: Scene, rng: random.Random) -> list[Located]:
    located = []
    for kind, wanted, pair in _targets(scene, rng):
        phrase = language.phrase(rng, pair)
        points = model.point(image, phrase)["points"]
        places = [(point["x"], point["y"]) for point in points]
        scores = [float(point["score"]) for point in points]
        located.append(Located(kind, wanted, phrase, _truth(scene, kind), [*places], scores))
    return located


def _query(model: Model, image: Image.Image, scene: Scene, rng: random.Random) -> list[Asked]:
    """Ask about one thing that is there, one that is not, and one unknown: how many, and whether there is one."""
    targets = _targets(scene, rng)
    present = targets[:-2]
    asked: list[Asked] = []
    for kind, wanted, pair in [rng.choice(present), *targets[-2:]]:
        count = len(_truth(scene, kind))
        question = language.count_question(rng, pair)
        answer = str(model.query(image, question)["answer"])
        asked.append(Asked("count", wanted, question, language.count_answer(count), answer))
        question = language.existence_question(rng, pair)
        answer = str(model.query(image, question)["answer"])
        asked.append(Asked("existence", wanted, question, language.existence_answer(count), answer))
    question = language.total_question(rng)
    answer = str(model.query(image, question)["answer"])
    return [*asked, Asked("total", None, question, language.count_answer(len(scene.objects)), answer)]
