"""Questions that are answered with JSON: about one thing, a kind, a group, all things, and what is outermost."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from bench.nano.evaluation.asking import subjects
from bench.nano.evaluation.asking.subjects import object_at
from bench.nano.evaluation.records import FieldRecord, TypedRecord
from bench.nano.evaluation.scoring import iou, match_boxes
from bench.nano.questions.names import NUMBERS
from bench.nano.questions.text import language, properties, typed
from bench.nano.questions.text.colours import COLOUR_NOUNS
from bench.nano.scenes.held_out.scene import Scene
from bench.nano.scenes.objects import COLOURS, load_objects
from photonlite.results import Metrics

Names = Literal["trained", "unseen"]
Form = Literal["int", "bounded int", "bool", "enum", "string", "optional", "nested", "unknowable"]
FORMS: tuple[Form, ...] = get_args(Form)
"""What schemas ask for; "optional" is any of the others or null."""
GOOD_BOX = 0.5
_NOTHING = (None, "", 0, False, *properties.FILLERS.values())
_CORNERS = ("x_min", "y_min", "x_max", "y_max")


@dataclass(frozen=True)
class Wanted:
    key: str  # Its name; empty for a value alone
    kind: str  # As of `FieldRecord`
    value: Any  # The right one; a box of four numbers for both kinds of places; None where null is right
    place: int | None = None  # Of the instance that a point should lie on
    outer: str = ""  # Name of the property that holds its object; empty where nothing does
    names: Names = "trained"  # Whether its name was trained
    form: Form | None = None  # What the schema asks for, where that is to be told apart
    schema: Mapping[str, Any] | None = None  # Its own, where it is not that of its kind or form


def read_object(scene: Scene, wanted: Sequence[Wanted], answer: Any) -> list[FieldRecord]:
    return [_field(scene, one, (answer[one.outer] if one.outer else answer)[one.key]) for one in wanted]


def read_items(key: str, wanted: Sequence[Sequence[Wanted]], answer: Any) -> list[FieldRecord]:
    """Compare a list of objects, paired by box or else by name; fields of missing and surplus items are wrong."""
    items = answer[key] if key else answer
    name, second = wanted[0]
    pairs = _by_box(wanted, items) if second.kind == "box" else _by_name(wanted, items)
    fields = []
    for place, item in enumerate(wanted):
        given = items[pairs[place]] if place in pairs else {}
        for one in item:
            right = place in pairs and (one.kind == "box" or given[one.key] == one.value)
            fields.append(
                FieldRecord(f"{place}.{one.key}", one.kind, plain(one.value), plain(given.get(one.key)), right)
            )
    for place in sorted(set(range(len(items))) - set(pairs.values())):
        fields += [
            FieldRecord(f"{place}.{one.key}", one.kind, None, plain(items[place][one.key]), False)
            for one in (name, second)
        ]
    return fields


def _by_box(wanted: Sequence[Sequence[Wanted]], items: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    box = wanted[0][1].key
    matches = match_boxes([plain(item[box]) for item in items], [one.value for _, one in wanted], GOOD_BOX)
    return {match.truth: match.answer for match in matches}


def _by_name(wanted: Sequence[Sequence[Wanted]], items: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    key = wanted[0][0].key
    first = {item[key]: place for place, item in reversed([*enumerate(items)])}
    return {place: first[name.value] for place, (name, _) in enumerate(wanted) if name.value in first}


def _field(scene: Scene, wanted: Wanted, answer: Any) -> FieldRecord:
    given = plain(answer)
    if wanted.kind == "unknowable":
        right = given in _NOTHING
    elif wanted.kind == "name" and wanted.value is None:
        right = given in (None, "")
    elif wanted.kind == "text":
        right = str(given).lower() == str(wanted.value).lower()
    elif wanted.value is None or answer is None:
        right = wanted.value is answer
    elif wanted.kind == "box":
        right = iou(given, wanted.value) >= GOOD_BOX
    elif wanted.kind == "point":
        right = object_at(scene, given) == wanted.place
    else:
        right = given == wanted.value
    return FieldRecord(wanted.key, wanted.kind, plain(wanted.value), given, right, wanted.names, wanted.form or "")


def plain(value: Any) -> Any:
    """Return a place as a list of numbers, and anything else as it is."""
    if isinstance(value, Mapping):
        return [value[name] for name in (_CORNERS if "x_min" in value else ("x", "y"))]
    return [*value] if isinstance(value, tuple) else value


Case = Literal[
    "thing", "kind", "missing", "group", "outermost", "objects", "kinds", "value",
    "answer", "mention", "about", "nested", "unknowable",
]  # fmt: skip
CASES: tuple[Case, ...] = get_args(Case)
"""The largest thing; a kind that is there, or not; the largest of a group; what is leftmost and so on; all objects in
a list; all kinds in a list; a value without a property. Behind these come properties of any names, see `named`."""

MAX_ITEMS = 12
MAX_COUNT = NUMBERS - 1
_MOST_PROPERTIES = 4
_LISTED_SHARE = 0.5
_SCHEMAS: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "maxLength": 40},
    "count": {"type": "integer", "minimum": 0, "maximum": MAX_COUNT},
    "present": {"type": "boolean"},
    "colour": {"enum": [*COLOURS]},
    "zone": {"enum": [zone for row in language.ZONES for zone in row]},
    "box": {"type": "object", "format": "box"},
    "point": {"type": "object", "format": "point"},
}


@dataclass(frozen=True)
class TypedQuestion(subjects.Question):
    """A question with what its answer should be: a `Wanted`, a list of them, or one such list an item."""

    wanted: Any


def typed_questions(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    """Ask about everything that `CASES` lists, as far as the scene has it."""
    largest = subjects.largest(scene, range(len(scene.objects)))
    if largest is not None:
        yield _of_thing(scene, rng, "thing", "scene" if rng.random() < 0.5 else "main", largest, ("red", "red"))
    yield _of_kind(scene, rng, subjects.present_target(rng, rng.choice(scene.objects).index))
    yield _of_kind(
        scene, rng, subjects.absent_target(scene, rng) if rng.random() < 0.5 else subjects.unknown_target(rng)
    )
    yield from _of_group(scene, rng)
    yield from _of_outermost(scene, rng)
    if len(scene.objects) <= MAX_ITEMS:
        yield _of_list(scene, rng, each=True)
    yield _of_list(scene, rng, each=False)
    yield _of_value(scene, rng, subjects.present_target(rng, rng.choice(scene.objects).index))


def schema_of(kind: str, nullable: bool = False) -> dict[str, Any]:
    schema = _SCHEMAS[kind]
    return {"anyOf": [schema, {"type": "null"}]} if nullable else schema


def object_of(wanted: Sequence[Wanted], nullable: bool = False) -> dict[str, Any]:
    properties = {one.key: schema_of(one.kind, nullable and one.kind not in ("count", "present")) for one in wanted}
    return {"type": "object", "properties": properties, "required": [*properties]}


def worded(rng: random.Random, group: str, pair: tuple[str, str]) -> str:
    templates = list(typed.TYPED_QUESTIONS[group])
    if language.has_no_singular(pair):
        templates = [one for one in templates if "{0}" not in one and "{2}" not in one]
    return language.vary_question(rng, language.fill_template(rng.choice(templates), pair))


def asked(
    case: Case, question: str, schema: dict[str, Any], read: Callable[..., list[Any]], wanted: object
) -> TypedQuestion:
    def kept(result: Any) -> TypedRecord:
        tokens = getattr(result, "metrics", Metrics()).output_tokens
        return TypedRecord(case, question, str(result["text"]), schema, read(wanted, result["answer"]), tokens)

    return TypedQuestion({"skill": "query", "question": question, "schema": schema}, kept, wanted)


def _key(rng: random.Random, role: typed.Role) -> str:
    return rng.choice(typed.NAMES[role])


def colour_of(kind: int) -> str | None:
    return next((kinds[kind] for kinds in COLOUR_NOUNS.values() if kind in kinds), None)


def _properties_of(scene: Scene, rng: random.Random, place: int) -> dict[typed.Role, Wanted]:
    item = scene.objects[place]
    x0, y0, x1, y1 = item.box
    spot = rng.random() < 0.75
    zone = typed.zone_of((x0 + x1) / 2, (y0 + y1) / 2)
    properties: dict[typed.Role, Wanted] = {
        "name": Wanted(_key(rng, "name"), "name", load_objects()[item.index].name),
        "count": Wanted(_key(rng, "count"), "count", len(subjects.places_of(scene, item.index))),
        "box": Wanted(_key(rng, "box"), "box", item.box),
        "where": Wanted(_key(rng, "where"), "point" if spot else "zone", item.box if spot else zone, place),
    }
    if colour := colour_of(item.index):
        properties["colour"] = Wanted(_key(rng, "colour"), "colour", colour)
    return properties


def _some(rng: random.Random, properties: dict[typed.Role, Wanted], first: typed.Role | None = None) -> list[Wanted]:
    roles = rng.sample([*properties], min(len(properties), rng.randint(1, _MOST_PROPERTIES)))
    if first:
        roles = [first, *(role for role in roles if role != first)]
    return [properties[role] for role in roles]


def _of_thing(
    scene: Scene, rng: random.Random, case: Case, group: str, place: int, pair: tuple[str, str]
) -> subjects.Question:
    # A count means all things where no name comes before it.
    wanted = _some(rng, _properties_of(scene, rng, place), "name")
    return asked(case, worded(rng, group, pair), object_of(wanted), partial(read_object, scene), wanted)


def _of_kind(scene: Scene, rng: random.Random, target: subjects.Target) -> subjects.Question:
    """Ask about a kind; answers may be null."""
    places = subjects.places_of(scene, target.kind)
    largest = subjects.largest(scene, places)
    properties: dict[typed.Role, Wanted] = {
        "count": Wanted(_key(rng, "count"), "count", len(places)),
        "present": Wanted(_key(rng, "present"), "present", bool(places)),
    }
    if places:
        of_any = _properties_of(scene, rng, places[0] if largest is None else largest)
        properties |= of_any if largest is not None else {role: of_any[role] for role in ("name",)}
    else:
        properties |= {"name": Wanted(_key(rng, "name"), "name", None), "box": Wanted(_key(rng, "box"), "box", None)}
    wanted = _some(rng, properties)
    question = worded(rng, "kind", target.pair)
    case: Case = "kind" if places else "missing"
    return asked(case, question, object_of(wanted, nullable=True), partial(read_object, scene), wanted)


def _of_group(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    """Ask for the largest of a group that is there, by the question or by the name of the first property."""
    present = {item.index for item in scene.objects}
    clear = [pair for pair in typed.GROUPS if not present & typed.unclear(pair[0])]
    for pair in rng.sample(clear, len(clear)):
        members = typed.members(pair[0])
        largest = subjects.largest(scene, [place for place, item in enumerate(scene.objects) if item.index in members])
        if largest is None:
            continue
        if rng.random() < 0.5:
            yield _of_thing(scene, rng, "group", "group", largest, pair)
        else:
            properties = _properties_of(scene, rng, largest)
            properties["name"] = Wanted(pair[0], "name", properties["name"].value)
            wanted = _some(rng, properties, "name")
            question = worded(rng, "scene", pair)
            yield asked("group", question, object_of(wanted), partial(read_object, scene), wanted)
        return


def _of_outermost(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    everything = subjects.instances(scene)
    sides: dict[typed.Role, list[float]] = {
        "left": [-x for _, x, _ in everything],
        "right": [x for _, x, _ in everything],
        "above": [-y for _, _, y in everything],
        "below": [y for _, _, y in everything],
    }
    found = {role: typed.clearly_first(values, margin=typed.CLEARLY_OUTERMOST) for role, values in sides.items()}
    found["largest"] = subjects.largest(scene, range(len(everything)))
    clear = {role: place for role, place in found.items() if place is not None}
    if clear:
        names = {**typed.NAMES, **typed.OUTER_NAMES}
        wanted = [
            Wanted(rng.choice(names[role]), "name", load_objects()[everything[clear[role]][0]].name)
            for role in rng.sample([*clear], rng.randint(1, min(3, len(clear))))
        ]
        question = worded(rng, "scene", ("red", "red"))
        yield asked("outermost", question, object_of(wanted), partial(read_object, scene), wanted)


def _of_list(scene: Scene, rng: random.Random, *, each: bool) -> subjects.Question:
    """Ask for a list of all objects with their boxes, or of all kinds with how many there are."""
    everything = subjects.instances(scene)
    order = language.centre_order([centre for _, *centre in everything])  # type: ignore[misc]
    kinds = Counter(everything[place][0] for place in order)
    keys = (_key(rng, "name"), _key(rng, "box" if each else "count"))
    objects, second = load_objects(), "box" if each else "count"
    if each:
        rows = [(objects[everything[place][0]].name, scene.objects[place].box) for place in order]
    else:
        rows = [(objects[kind].name, count) for kind, count in kinds.items()]  # type: ignore[misc]
    wanted = [[Wanted(keys[0], "name", name), Wanted(keys[1], second, value)] for name, value in rows]
    listing = {"type": "array", "items": object_of(wanted[0]), "maxItems": MAX_ITEMS}
    question = worded(rng, "list boxes" if each and rng.random() < _LISTED_SHARE else "list", ("red", "red"))
    key = rng.choice(typed.LIST_NAMES["items"]) if rng.random() < 0.7 else ""
    schema = {"type": "object", "properties": {key: listing}, "required": [key]} if key else listing
    return asked("objects" if each else "kinds", question, schema, partial(read_items, key), wanted)


def _of_value(scene: Scene, rng: random.Random, target: subjects.Target) -> subjects.Question:
    places = subjects.places_of(scene, target.kind)
    largest = subjects.largest(scene, places)
    chosen = rng.choice(("count", "present", "box", "point") if largest is not None else ("count", "present"))
    if chosen == "count":
        question = language.count_question(rng, target.pair)
    elif chosen == "present":
        question = language.existence_question(rng, target.pair)
    else:
        question = worded(rng, "kind place", target.pair)
    value: Any = {"count": len(places), "present": True}.get(chosen)
    if value is None and largest is not None:
        value = scene.objects[largest].box
    wanted = Wanted("", chosen, value, largest)
    return asked("value", question, schema_of(chosen), lambda wanted, answer: [_field(scene, wanted, answer)], wanted)
