"""Questions whose answers are words: captions, counts, places, colours, what is at a reference, reasoning."""

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import permutations
from typing import Any, Literal, get_args

from bench.nano.evaluation.asking import subjects
from bench.nano.evaluation.captions import zones_of
from bench.nano.evaluation.records import CaptionRecord, Place, QueryRecord
from bench.nano.questions.text import language, relations
from bench.nano.questions.text.colours import COLOUR_NOUNS, COLOUR_QUESTIONS, colour_answer
from bench.nano.questions.text.language import REFERENCE_QUESTIONS, ask
from bench.nano.scenes.held_out.scene import Scene
from bench.nano.scenes.objects import load_objects

About = Literal[
    "count", "existence", "total", "list", "relation", "place", "comparison", "colour",
    "at_point", "at_box", "at_nothing", "reasoning",
]  # fmt: skip
ABOUT: tuple[About, ...] = get_args(About)
SPATIAL: tuple[About, ...] = ("relation", "place", "comparison")
AT_REFERENCE: tuple[About, ...] = ("at_point", "at_box", "at_nothing")
LENGTHS: tuple[language.Length, ...] = ("short", "normal", "long")

_NOTHING_SHARE = 0.25  # of the scenes where nothing lies to some side of a thing are asked about it


def caption_questions(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    truth = Counter(item.index for item in scene.objects)
    zones = {kind: zones_of((cx, cy) for index, cx, cy in subjects.instances(scene) if index == kind) for kind in truth}
    for length in LENGTHS:
        yield subjects.Question(
            {"skill": "caption", "length": length}, partial(_read_caption, dict(truth), zones, length)
        )


def _read_caption(truth: dict[int, int], zones: dict[int, list[str]], length: str, result: Any) -> CaptionRecord:
    return CaptionRecord(str(result["caption"]), truth, length, zones)


def query_questions(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    """Ask about everything that `ABOUT` lists, as far as the scene has it."""
    yield from _presence(scene, rng)
    yield _asked("list", None, ask(rng, language.LIST_QUESTIONS), language.caption(subjects.instances(scene), "short"))
    yield from _relations(scene, rng)
    yield from _pairs(scene, rng)
    yield from _colours(scene, rng)
    yield from _references(scene, rng)
    yield from _reasoning(scene, rng)


def _asked(
    about: About,
    case: str | None,
    question: str,
    expected: str,
    kind: int | None = None,
    reference: Place | None = None,
) -> subjects.Question:
    def read(result: Any) -> QueryRecord:
        return QueryRecord(about, case, question, expected, str(result["answer"]), kind, reference)

    task: dict[str, Any] = {"skill": "query", "question": question}
    return subjects.Question(task | {"spatial_refs": [reference]} if reference else task, read)


def _presence(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    """Ask about one thing that is there, one that is not, and one unknown: how many, and whether there is one."""
    wanted = subjects.targets(scene, rng)
    for target in [rng.choice(wanted[:-2]), *wanted[-2:]]:
        count = len(subjects.places_of(scene, target.kind))
        question = language.count_question(rng, target.pair)
        yield _asked("count", target.wanted, question, str(count), target.kind)
        question = language.existence_question(rng, target.pair)
        yield _asked("existence", target.wanted, question, "Yes" if count else "No", target.kind)
    yield _asked("total", None, ask(rng, language.TOTAL_QUESTIONS), str(len(scene.objects)))


def _relations(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    """Ask what is left of a thing (or right, above, below), and in a quarter of the scenes where nothing is."""
    everything = subjects.instances(scene)
    clear = [
        (place, direction, answer)
        for place in range(len(everything))
        for direction in get_args(relations.Direction)
        if (answer := relations.relation_answer(everything, place, direction))
    ]
    some = [found for found in clear if found[2] != "Nothing"]
    none = [found for found in clear if found[2] == "Nothing"]
    chosen = [("named", rng.choice(some))] if some else []
    if none and rng.random() < _NOTHING_SHARE:
        chosen.append(("nothing", rng.choice(none)))
    for case, (place, direction, answer) in chosen:
        kind = everything[place][0]
        yield _asked(
            "relation",
            case,
            ask(rng, relations.RELATION_QUESTIONS[direction], subjects.present_target(rng, kind).pair[0]),
            answer,
            kind,
        )


def _pairs(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    """Ask of two things whether one is left of the other, and of two which is further left (or right, ...)."""
    everything = subjects.instances(scene)
    pairs = list(permutations(range(len(everything)), 2))
    rng.shuffle(pairs)
    direction, comparison = rng.choice(get_args(relations.Direction)), rng.choice(get_args(relations.Comparison))
    for one, two in pairs:
        if answer := relations.place_answer(everything, one, two, direction):
            first, second = (subjects.present_target(rng, everything[place][0]).pair for place in (one, two))
            yield _asked("place", answer.lower(), relations.place_question(rng, direction, first, second), answer)
            break
    for one, two in reversed(pairs):
        if answer := relations.comparison_answer(everything, one, two, comparison):
            first, second = (subjects.present_target(rng, everything[place][0]).pair for place in (one, two))
            yield _asked(
                "comparison", None, ask(rng, relations.COMPARISON_QUESTIONS[comparison], first[0], second[0]), answer
            )
            break


def _colours(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    everything = subjects.instances(scene)
    if nouns := [noun for noun in COLOUR_NOUNS if colour_answer(everything, noun)]:
        noun = rng.choice(nouns)
        yield _asked("colour", None, ask(rng, COLOUR_QUESTIONS, noun), colour_answer(everything, noun) or "")


def _references(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    """Ask what a point on one thing marks, a box around one, and a point on the background."""
    place = rng.randrange(len(scene.objects))
    kind = scene.objects[place].index
    question, name = ask(rng, REFERENCE_QUESTIONS["point"]), load_objects()[kind].name
    yield _asked("at_point", None, question, name, kind, subjects.random_pixel(rng, scene, place))
    place = rng.randrange(len(scene.objects))
    kind = scene.objects[place].index
    box = subjects.shifted_box(rng, scene.objects[place].box)
    yield _asked("at_box", None, ask(rng, REFERENCE_QUESTIONS["box"]), load_objects()[kind].name, kind, box)
    if (scene.owner < 0).any():
        question = ask(rng, REFERENCE_QUESTIONS["point"])
        yield _asked("at_nothing", None, question, "Nothing", None, subjects.random_pixel(rng, scene, -1))


def _reasoning(scene: Scene, rng: random.Random) -> Iterator[subjects.Question]:
    """Count a kind that is there and one that is not, with reasoning."""
    present = subjects.present_target(rng, rng.choice(sorted({item.index for item in scene.objects})))
    missing = subjects.absent_target(scene, rng) if rng.random() < 0.5 else subjects.unknown_target(rng)
    for target in (present, missing):
        question = language.count_question(rng, target.pair)
        task = {"skill": "query", "question": question, "reasoning": True}
        yield subjects.Question(task, partial(_read_reasoning, scene, target, question))


def _read_reasoning(scene: Scene, target: subjects.Target, question: str, result: Any) -> QueryRecord:
    places = subjects.places_of(scene, target.kind)
    points: list[Place] = [(x, y) for part in result["reasoning"]["grounding"] for x, y in part["points"]]
    return QueryRecord(
        "reasoning",
        target.wanted,
        question,
        str(len(places)),
        str(result["answer"]),
        target.kind,
        points=points,
        on_object=[subjects.object_at(scene, point) in places for point in points],
    )
