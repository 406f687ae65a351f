"""Questions whose schemas have properties of any names: trained ones, and ones that training never saw.

The cases: one property with the answer to a question; properties that mention objects; properties of what is asked for;
objects in an object, one for each kind; what no picture tells.
"""

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from bench.nano.evaluation.asking import subjects
from bench.nano.evaluation.asking.typed import (
    MAX_COUNT,
    Case,
    Form,
    Names,
    Wanted,
    asked,
    colour_of,
    read_object,
    typed_questions,
    worded,
)
from bench.nano.questions.text import language, properties, typed
from bench.nano.questions.text.properties import Meaning
from bench.nano.scenes.held_out.scene import Scene
from bench.nano.scenes.objects import COLOURS, load_objects

_UNSEEN_SHARE = 0.5
_OPTIONAL_SHARE = 0.2
_RANDOM_SHARE = 0.4  # of names that say nothing
_MOST_PROPERTIES = 4
_UNKNOWABLE: tuple[Meaning, ...] = ("unknown", "unknown", "email", "date", "time")
_ZONES = tuple(zone for row in language.ZONES for zone in row)
_SPLITS: dict[Names, language.Split] = {"trained": "train", "unseen": "held_out"}
_ENUMS: dict[str, tuple[str, ...]] = {"colour": COLOURS, "zone": _ZONES, "present": ("yes", "no")}


def json_questions(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    """Ask everything that is answered with JSON."""
    yield from typed_questions(scene, rng)
    for ask in (_answer, _mention, _about, _nested, _unknowable):
        yield from ask(scene, rng, "unseen" if rng.random() < _UNSEEN_SHARE else "trained")


def schema_of(wanted: Wanted) -> dict[str, Any]:
    """Return the schema of a property."""
    if wanted.schema is not None:
        return {**wanted.schema}
    schemas: dict[str, dict[str, Any]] = {
        "int": {"type": "integer"},
        "bounded int": {"type": "integer", "minimum": 0, "maximum": MAX_COUNT},
        "bool": {"type": "boolean"},
        "enum": {"enum": [*_ENUMS.get(wanted.kind, ())]},
        "string": {"type": "string"},
        "optional": {"anyOf": [{"type": _type(wanted)}, {"type": "null"}]},
        "nested": {"type": _type(wanted)},
    }
    return schemas[wanted.form or "string"]


def _type(wanted: Wanted) -> str:
    return {"count": "integer", "present": "boolean"}.get(wanted.kind, "string")


def object_of(wanted: list[Wanted]) -> dict[str, Any]:
    """Return the schema of an object, of objects inside where there are."""
    if wanted and wanted[0].outer:
        inside = {one.outer: [other for other in wanted if other.outer == one.outer] for one in wanted}
        found = {outer: _object({one.key: schema_of(one) for one in ones}) for outer, ones in inside.items()}
        return _object(found)
    return _object({one.key: schema_of(one) for one in wanted})


def _object(found: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": found, "required": [*found]}


def _ask(case: Case, scene: Scene, question: str, wanted: list[Wanted]) -> Iterator[subjects.Question]:
    unique = [one for i, one in enumerate(wanted) if (one.outer, one.key) not in [(w.outer, w.key) for w in wanted[:i]]]
    yield asked(case, question, object_of(unique), partial(read_object, scene), unique)


def _name(rng: random.Random, meaning: Meaning, names: Names) -> str:
    split = _SPLITS[names]
    invented = meaning == "plain" and rng.random() < _RANDOM_SHARE
    name = properties.random_name(rng, split) if invented else rng.choice(properties.names(meaning, split))
    return properties.styled(name, properties.random_style(rng))


def _mentioning(rng: random.Random, meaning: Meaning, names: Names, pair: tuple[str, str]) -> str:
    template = rng.choice(properties.mentions(meaning, _SPLITS[names]))
    return properties.styled(properties.mention(template, *pair), properties.random_style(rng))


def _count(rng: random.Random, key: str, names: Names, count: int) -> Wanted:
    form: Form = rng.choice(("int", "bounded int"))
    return Wanted(key, "count", count, names=names, form=_optional(rng, form))


def _present(rng: random.Random, key: str, names: Names, present: bool) -> Wanted:
    if rng.random() < 0.2:
        return Wanted(key, "present", "yes" if present else "no", names=names, form="enum")
    return Wanted(key, "present", present, names=names, form=_optional(rng, "bool"))


def _optional(rng: random.Random, form: Form) -> Form:
    return "optional" if rng.random() < _OPTIONAL_SHARE else form


def _target(scene: Scene, rng: random.Random) -> subjects.Target:
    chosen = rng.random()
    if chosen < 0.7:
        return subjects.present_target(rng, rng.choice(scene.objects).index)
    return subjects.absent_target(scene, rng) if chosen < 0.9 else subjects.unknown_target(rng)


def _answer(scene: Scene, rng: random.Random, names: Names) -> Iterator[subjects.Question]:
    """A question about how many or whether, and a property of any type under a name that says nothing or that."""
    target = _target(scene, rng)
    count = len(subjects.places_of(scene, target.kind))
    counting = rng.random() < 0.5
    question = (language.count_question if counting else language.existence_question)(rng, target.pair)
    kind = rng.choice(("count", "present", "text"))
    meaning: Meaning = "plain" if kind == "text" or rng.random() < 0.6 else "count" if kind == "count" else "present"
    key = _name(rng, meaning, names)
    if kind == "text":
        words = str(count) if counting else "yes" if count else "no"
        wanted = Wanted(key, "text", words, names=names, form="string")
    else:
        wanted = _count(rng, key, names, count) if kind == "count" else _present(rng, key, names, count > 0)
    yield from _ask("answer", scene, question, [wanted])


def _mention(scene: Scene, rng: random.Random, names: Names) -> Iterator[subjects.Question]:
    wanted = []
    for _ in range(rng.randint(1, _MOST_PROPERTIES)):
        target = _target(scene, rng)
        count = len(subjects.places_of(scene, target.kind))
        if rng.random() < 0.5:
            wanted.append(_count(rng, _mentioning(rng, "count", names, target.pair), names, count))
        else:
            wanted.append(_present(rng, _mentioning(rng, "present", names, target.pair), names, count > 0))
    yield from _ask("mention", scene, worded(rng, "list", ("red", "red")), wanted)


def _about(scene: Scene, rng: random.Random, names: Names) -> Iterator[subjects.Question]:
    target = _target(scene, rng)
    places = subjects.places_of(scene, target.kind)
    largest = subjects.largest(scene, places)
    name = None if target.kind is None or not places else load_objects()[target.kind].name
    found = [
        _count(rng, _name(rng, "count", names), names, len(places)),
        _present(rng, _name(rng, "present", names), names, bool(places)),
        Wanted(_name(rng, "name", names), "name", name, names=names, form=_optional(rng, "string")),
    ]
    if places and target.kind is not None and (colour := colour_of(target.kind)):
        found.append(Wanted(_name(rng, "colour", names), "colour", colour, names=names, form="enum"))
    if largest is not None:
        x0, y0, x1, y1 = scene.objects[largest].box
        zone = typed.zone_of((x0 + x1) / 2, (y0 + y1) / 2)
        found.append(Wanted(_name(rng, "where", names), "zone", zone, names=names, form="enum"))
    wanted = rng.sample(found, rng.randint(1, min(_MOST_PROPERTIES, len(found))))
    yield from _ask("about", scene, worded(rng, "about", target.pair), wanted)


def _nested(scene: Scene, rng: random.Random, names: Names) -> Iterator[subjects.Question]:
    wanted = []
    for _ in range(rng.randint(1, 2)):
        target = _target(scene, rng)
        count = len(subjects.places_of(scene, target.kind))
        outer = _mentioning(rng, "name", "trained", target.pair)
        inside = [
            Wanted(_name(rng, "count", names), "count", count, None, outer, names, "nested"),
            Wanted(_name(rng, "present", names), "present", count > 0, None, outer, names, "nested"),
        ]
        wanted += rng.sample(inside, rng.randint(1, 2))
    yield from _ask("nested", scene, worded(rng, "list", ("red", "red")), wanted)


def _unknowable(scene: Scene, rng: random.Random, _: Names) -> Iterator[subjects.Question]:
    """Trained names only: a name that was never seen may as well say nothing."""
    names: Names = "trained"
    wanted = []
    for meaning in rng.sample(_UNKNOWABLE, rng.randint(1, 2)):
        schemas: list[dict[str, Any]] = [
            {"type": "string"},
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
            {"anyOf": [{"type": "number"}, {"type": "null"}]},
        ]
        schemas += [{"type": "string", "format": meaning}] if meaning in ("email", "date", "time") else []
        key = _name(rng, meaning, names)
        schema = rng.choice(schemas)
        wanted.append(Wanted(key, "unknowable", None, names=names, form="unknowable", schema=schema))
    yield from _ask("unknowable", scene, worded(rng, "list", ("red", "red")), wanted)
