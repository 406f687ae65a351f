"""A fake model that answers from the truth of the scene it is shown, but for what it is told to spoil."""

import json
import random
import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from bench.nano.evaluation.asking.subjects import instances, object_at, places_of, random_pixel
from bench.nano.evaluation.asking.typed import Wanted
from bench.nano.evaluation.examine import examine, questions_about
from bench.nano.evaluation.records import SKILLS
from bench.nano.questions.text import language, properties
from bench.nano.questions.text.language import caption, reading_order
from bench.nano.scenes.held_out.scene import make_scene
from bench.nano.scenes.objects import index_of, load_objects
from photonlite.errors import UnsupportedSkillError
from photonlite.results import Segments
from photonlite.results.svg import path_to_polygon

OBJECTS = load_objects()
SEEDS = range(100, 112)
_STARTS = sorted({template.split("{")[0] for template, _ in language.PHRASES} - {""} | {"a ", "an "}, key=len)
_ENDS = {template.split("}")[1] for template, _ in language.PHRASES} - {""}
FORM = re.compile(f"^(?:{'|'.join(reversed(_STARTS))})|(?:{'|'.join(_ENDS)})$", re.IGNORECASE)


@cache
def sprites():
    rng = np.random.default_rng(0)
    made = np.full((len(OBJECTS), 32, 32, 4), 255, np.uint8)
    made[..., :3] = rng.integers(0, 256, (len(OBJECTS), 1, 1, 3))
    return made


@cache
def scenes():
    return tuple(make_scene(seed, OBJECTS, sprites(), size=(320, 240), count=1 + 7 * seed % 10) for seed in SEEDS)


def keep(found):
    return found


@dataclass
class Oracle:
    """Each field changes the answers of a skill: boxes, points, masks, captions, words, points of reasoning."""

    boxes: object = keep
    points: object = keep
    mask: object = keep
    text: object = keep
    word: object = keep
    grounding: object = keep
    typed: object = keep
    refuses: tuple = ()
    encoded: int = 0
    batches: int = 0

    def encode_image(self, image):
        self.encoded += 1
        return next((seed, scene) for seed, scene in zip(SEEDS, scenes(), strict=True) if scene.image is image)

    def batch(self, tasks, *, errors):
        self.batches += 1
        return [self._answer(**task) for task in tasks]

    def _answer(self, skill, image, spatial_refs=None, **task):
        if skill in self.refuses or (spatial_refs and "references" in self.refuses):
            return UnsupportedSkillError("not trained for it")
        seed, scene = image
        return getattr(self, skill)(scene, seed, reference=spatial_refs[0] if spatial_refs else None, **task)

    def detect(self, scene, seed, object, reference):
        boxes = [scene.objects[place].box for place in wanted(scene, object)]
        keys = ("x_min", "y_min", "x_max", "y_max")
        return {"objects": [dict(zip(keys, box, strict=True), score=1.0) for box in self.boxes(boxes)]}

    def point(self, scene, seed, object, reference):
        places = wanted(scene, object) if reference is None else [marked(scene, reference)]
        points = [random_pixel(random.Random(0), scene, place) for place in places]
        return {"points": [{"x": x, "y": y, "score": 0.9} for x, y in self.points(points)]}

    def segment(self, scene, seed, object, reference):
        places = wanted(scene, object) if reference is None else [marked(scene, reference)]
        if not places:
            return Segments(self.mask([]))
        place = max(places, key=lambda place: np.prod(np.subtract(*np.split(np.array(scene.objects[place].box), 2))))
        box = dict(x_min=0.0, y_min=0.0, x_max=1.0, y_max=1.0)
        path = path_of(scene.silhouette(place), *scene.image.size)
        return Segments(self.mask([{"path": path, "bbox": box, "polygon": path_to_polygon(path, box), "score": 0.9}]))

    def caption(self, scene, seed, length, reference):
        return {"caption": self.text(caption(instances(scene), length))}

    def query(self, scene, seed, question, reference, reasoning=False, schema=None):
        if schema is not None:
            answer = self.typed(document_of(scene, seed, question, schema))
            return {"answer": answer, "text": json.dumps(answer)}
        if reasoning and "reasoning" in self.refuses:
            return UnsupportedSkillError("not trained for it")
        answer = {"answer": self.word(expected(seed)[question, reference, reasoning].expected)}
        if reasoning:
            kind = expected(seed)[question, reference, True].kind
            points = [random_pixel(random.Random(0), scene, place) for place in places_of(scene, kind)]
            answer["reasoning"] = {"text": "", "grounding": [{"points": self.grounding(points)}]}
        return answer


class _Blank(Oracle):
    """Learns the questions."""

    def query(self, scene, seed, question, reference, reasoning=False, schema=None):
        return {"answer": "", "reasoning": {"grounding": []}}


@cache
def expected(seed):
    """Right answers by question, reference, and whether there is reasoning."""
    record = examine(_Blank(), scenes()[seed - SEEDS[0]], seed, ["query"])
    return {(one.question, one.reference, one.points is not None): one for one in record.questions}


def document_of(scene, seed, question, schema):
    """The right answer to a typed question."""
    asked = [one.task | {"wanted": one.wanted} for one in questions_about(scene, seed, "typed")]
    wanted = next(one["wanted"] for one in asked if (one["question"], one["schema"]) == (question, schema))
    if isinstance(wanted, Wanted):
        return _right(scene, wanted)
    if wanted and isinstance(wanted[0], list):
        items = [{one.key: _right(scene, one) for one in item} for item in wanted]
        return {next(iter(schema["properties"])): items} if schema["type"] == "object" else items
    if wanted[0].outer:
        nested = {}
        for one in wanted:
            nested.setdefault(one.outer, {})[one.key] = _right(scene, one)
        return nested
    return {one.key: _right(scene, one) for one in wanted}


def _right(scene, wanted):
    if wanted.kind == "unknowable":
        return None if "anyOf" in wanted.schema else properties.FILLERS.get(wanted.schema.get("format"), "")
    if wanted.form == "string" and wanted.value is None:
        return ""
    if wanted.value is None or wanted.kind not in ("box", "point"):
        return wanted.value
    if wanted.kind == "box":
        return dict(zip(("x_min", "y_min", "x_max", "y_max"), wanted.value, strict=True), score=0.9)
    return dict(zip("xy", random_pixel(random.Random(0), scene, wanted.place), strict=True), score=0.9)


def wanted(scene, text):
    """Places of what a phrase asks for, in reading order."""
    places = places_of(scene, index_of(FORM.sub("", text)))
    return [places[i] for i in reading_order([scene.objects[place].box for place in places])]


def marked(scene, reference):
    """The place that a point lies on, or the one whose box a box is nearest to."""
    if len(reference) == 2:
        return object_at(scene, reference)
    boxes = [item.box for item in scene.objects]
    return min(range(len(boxes)), key=lambda place: np.abs(np.subtract(boxes[place], reference)).sum())


def path_of(lines, width, height):
    """Closed lines in pixels as SVG, in fractions of the image."""
    corners = [" L ".join(f"{x / width} {y / height}" for x, y in line.tolist()) for line in lines]
    return " ".join(f"M {points} Z" for points in corners)


@cache
def perfect_records():
    """Records of a model that makes no mistake."""
    return judged(Oracle())


def judged(model, skills=SKILLS):
    """Records of all scenes."""
    return [examine(model, scene, seed, skills) for scene, seed in zip(scenes(), SEEDS, strict=True)]
