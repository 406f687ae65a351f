import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.nano.questions import mix
from bench.nano.questions.layout import BOS, COORD, GROUND, GROUND_END, NONE, SIZE
from bench.nano.questions.maker import QuestionMaker, templates
from bench.nano.questions.text import colours, language, relations
from bench.nano.questions.tokenizer import FIRST_INTEGER, load_answer_tokenizer, load_tokenizer
from bench.nano.scenes.objects import load_objects
from photonlite.models.moondream.prompts import check_reference
from photonlite.request import SamplingSettings, Token
from photonlite.skills import caption, detect, point, query, segment
from tests.nano.questions.reading import (
    TOKENIZER,
    Meaning,
    grounded,
    kind_of,
    meanings,
    plainly,
    read,
    reasoning_text,
    said,
)
from tests.nano.small import maker, random_scenes, scenes_of, shipped_prompts
from tests.skills.fake import completion
from tests.tiny import CPU

SETTINGS = SamplingSettings()
DETECT, POINT, TYPED, NAMED, ALSO_NAMED, COUNT, _, EXISTS, SPATIAL, MARKED, TEXT, AGAIN, OUTLINE, THOUGHT = range(14)
LENGTH_NAMES = ("short", "normal", "long")
QUERIES = ("count", "existence", "total", "relation", "place", "comparison", "colour")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def ask(scenes):
    return maker()(scenes)


def rows_of(questions):
    return [read(questions, row) for row in range(len(questions.ids))]


def instances(scenes, row):
    """(place, label, box) of what can be seen."""
    labels, boxes = scenes.labels[row].tolist(), scenes.boxes[row].tolist()
    return [(place, label, box) for place, (label, box) in enumerate(zip(labels, boxes, strict=True)) if label >= 0]


def said_scene(scenes, row):
    """The scene as `language.py` takes it."""
    return [(label, *box[:2]) for _, label, box in instances(scenes, row)]


def places_of(scenes, row, kind):
    """Places of a kind in reading order; there are none of an unknown word, None."""
    found = [(place, box) for place, label, box in instances(scenes, row) if label == kind]
    return [found[i][0] for i in language.centre_order([box[:2] for _, box in found])]


def single(scene, kind):
    """The place of the only instance of a kind."""
    (place,) = [i for i, (label, _, _) in enumerate(scene) if label == kind]
    return place


def meaning(row, questions=QUERIES):
    """The one meaning of a question; two templates may say the same."""
    (found,) = meanings(row.text, questions)
    return found


# ---- training asks as the package will


def request_of(row):
    """The request that the package makes of what was read."""
    prompts = shipped_prompts()
    refs = [[min(1.0, max(0.0, value)) for value in ref] for ref in row.refs] or None  # float32 ends a little outside
    if row.skill == "caption":
        return caption.build(prompts, row.text, settings=SETTINGS)
    if row.skill == "detect":
        assert not refs
        return detect.build(prompts, row.text, settings=SETTINGS)
    if row.skill == "query":
        options = {"images": 1, "reasoning": row.thinking, "refs": refs}
        return query.build(prompts, query.read_question(prompts, row.text, settings=SETTINGS, **options))
    build = {"point": point.build, "segment": segment.build}[row.skill]
    return build(prompts, row.text, refs=refs, settings=SETTINGS)


def answer_of(row):
    """An answer as the engine hands it to a skill."""
    tokens = []
    for id_, numbers in zip(row.answer, row.values, strict=True):
        values = tuple(numbers[: {COORD: 1, SIZE: 2}.get(id_, 0)])
        tokens.append(Token(id_, values, masses=(1.0,) * len(values)))
    return completion(*tokens)


def test_every_prompt_is_the_one_that_the_package_writes():
    asked_all = ask(random_scenes(300))
    seen = Counter()
    for slot, one in enumerate(asked_all):
        for row, number in zip(rows_of(one), itertools.count()):
            tokens = request_of(row).prompt
            assert [token.id for token in tokens] == row.prompt
            for place, token in enumerate(tokens):
                if token.values:
                    values = one.values[number, place, : len(token.values)].tolist()
                    assert values == pytest.approx(token.values, abs=1e-6)
            seen[slot, row.skill, row.thinking, bool(row.refs)] += 1
    skills = [{skill for at, skill, _, _ in seen if at == slot} for slot in range(len(asked_all))]
    assert skills == [
        {"detect"}, {"detect", "point"}, *[{"query"}] * 8, *[{"caption", "query"}] * 2, {"segment"},
        {"segment", "query"},
    ]  # fmt: skip
    marked = {(POINT, "point"), *((slot, "query") for slot in (NAMED, ALSO_NAMED, MARKED))}
    marked |= {(OUTLINE, "segment"), (THOUGHT, "segment")}
    assert {(slot, skill) for slot, skill, _, refs in seen if refs} == marked
    assert {(slot, skill) for slot, skill, thinking, _ in seen if thinking} == {(THOUGHT, "query")}


def test_every_answer_is_one_that_the_package_allows_and_ends_there():
    asked_all = ask(random_scenes(150))
    del asked_all[TYPED : ALSO_NAMED + 1]  # see test_typed.py, test_named.py
    for row in itertools.chain(*map(rows_of, asked_all)):
        grammar = request_of(row).grammar
        for token in answer_of(row).tokens:
            grammar.accept(token)
        assert grammar.finish_reason == "stop"


def test_references_are_places_of_the_image():
    corners = torch.tensor([0.03, 0.97, 0.5]).expand(60, 3)[:, torch.arange(10) % 3]
    size = torch.full((60, 10), 0.06)
    scenes = scenes_of(torch.randint(260, (60, 10)), torch.stack((corners, corners, size, size), 2))
    for row in rows_of(ask(scenes)[MARKED]):
        for ref in row.refs:
            check_reference([round(value, 6) for value in ref])


def test_prompts_are_framed_by_control_tokens():
    """Weights in the world were trained with these: they stay as they are."""

    def spelled(prompt):
        return " ".join(load_tokenizer().id_to_token(token.id) for token in prompt)

    prompts = shipped_prompts()
    assert spelled(prompts.detect("bananas")) == "<|skill|> Ġdetect <|argument|> Ġbanana s <|answer|>"
    assert spelled(prompts.point("Key", refs=())) == "<|skill|> Ġpoint <|argument|> Ġkey <|answer|>"
    assert spelled(prompts.caption("long")) == "<|skill|> Ġcaption <|argument|> Ġlong <|answer|>"
    marked = spelled(prompts.segment("dog", refs=[(0.5, 0.5)]))
    assert marked == "<|skill|> Ġsegment <|argument|> <|coord|> <|coord|> Ġdog <|answer|>"
    question = spelled(prompts.query("How many?", reasoning=True, refs=()))
    assert question == "<|skill|> Ġquery <|argument|> Ġhow Ġmany ? <|thinking|>"


def test_skill_words_must_be_single_tokens():
    class Spelling:
        def encode(self, text, add_special_tokens):
            return load_tokenizer().encode("spelled out")

    with pytest.raises(ValueError, match="single tokens"):
        templates(Spelling())


# ---- boxes and points


@pytest.mark.parametrize(("slot", "fields"), [(DETECT, 3), (POINT, 2)])
def test_answers_are_all_instances_in_reading_order(slot, fields):
    scenes = random_scenes(400)
    most = 0
    for number, row in enumerate(rows_of(ask(scenes)[slot])):
        if row.refs or (row.skill == "detect") != (fields == 3):
            continue
        places = places_of(scenes, number, kind_of(meaning(row, ("phrase",)).names[0]))
        assert row.answer == [COORD, COORD, SIZE][:fields] * len(places) + [BOS]
        for order, place in enumerate(places):
            x, y, *size = row.values[order * fields : (order + 1) * fields]
            at = scenes.boxes[number, place, :2] if fields == 3 else scenes.points[number, place]
            assert [x[0], y[0]] == at.tolist()
            assert size == [scenes.boxes[number, place, 2:].tolist()][: fields - 2]
        most = max(most, len(places))
    assert most > 3


def test_points_beside_the_centre_count_more():
    scenes = random_scenes(200, kinds=2)
    central = replace(scenes, points=scenes.boxes[..., :2])
    aside = replace(scenes, points=scenes.boxes[..., :2] + 0.1 * scenes.boxes[..., 2:])
    for made, of_points in ((aside, mix.ASIDE_WEIGHT), (central, 1.0)):
        for slot, weight in ((POINT, of_points), (DETECT, 1.0)):
            rows = [row for row in rows_of(ask(made)[slot]) if (SIZE in row.answer) == (slot == DETECT)]
            assert {w for row in rows for id_, w in zip(row.answer, row.weights, strict=True) if id_ == COORD} == {
                weight
            }


def test_a_marked_point_is_the_marked_instance():
    scenes = random_scenes(800, kinds=2)
    marked = [(number, row) for number, row in enumerate(rows_of(ask(scenes)[POINT])) if row.refs]
    assert 37 < len(marked) < 91  # a tenth of the four in five that are points
    for number, row in marked:
        kind = kind_of(meaning(row, ("phrase",)).names[0])
        place = marked_place(scenes, number, row.refs[0])
        assert int(scenes.labels[number, place]) == kind
        assert row.answer == [COORD, COORD, BOS]
        assert [value[0] for value in row.values[:2]] == scenes.points[number, place].tolist()


def marked_place(scenes, number, ref):
    """Which instance a reference marks: its spot, or the box with edges off by up to 6 % of its size."""
    for place, _, (x, y, w, h) in instances(scenes, number):
        if len(ref) == 2 and ref == scenes.spots[number, place].tolist():
            return place
        true = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
        slack = [0.06 * w + 1e-6, 0.06 * h + 1e-6] * 2
        clamped = [min(1.0, max(0.0, value)) for value in true]
        if len(ref) == 4 and all(abs(a - b) <= s for a, b, s in zip(ref, clamped, slack, strict=True)):
            return place
    return None


def test_marking_boxes_differ_from_the_true_ones():
    scenes = random_scenes(200)
    off = []
    for number, row in enumerate(rows_of(ask(scenes)[MARKED])):
        if row.refs and len(row.refs[0]) == 4:
            x0, y0, x1, y1 = row.refs[0]
            sizes = [(w, h) for _, _, (_, _, w, h) in instances(scenes, number)]
            off.append(min(max(abs(x1 - x0 - w), abs(y1 - y0 - h)) for w, h in sizes))
    assert len(off) > 20
    assert sum(value > 1e-4 for value in off) > 0.9 * len(off)


def test_three_in_four_are_there_and_the_rest_are_not():
    scenes = random_scenes(600, empty=0.0)
    asked = rows_of(ask(scenes)[DETECT])
    kinds = [kind_of(meaning(row, ("phrase",)).names[0]) for row in asked]
    there = [bool((scenes.labels[n] == kind).any()) for n, kind in enumerate(kinds) if kind is not None]
    assert 0.70 < sum(there) / len(kinds) < 0.80
    assert 0.07 < kinds.count(None) / len(kinds) < 0.13
    assert 0.12 < there.count(False) / len(kinds) < 0.18


def test_an_empty_image_is_answered_with_nothing():
    scenes = scenes_of(torch.full((60, 10), -1), torch.zeros(60, 10, 4))
    answers = {
        TEXT: {"Nothing.", "A picture of nothing."}, COUNT: {"0"}, EXISTS: {"No"}, SPATIAL: {"0", "No"},
        MARKED: {"0", "No", "Nothing"},
    }  # fmt: skip
    asked_all = ask(scenes)
    for slot, expected in answers.items():
        assert {plainly(row) for row in rows_of(asked_all[slot])} == expected
    for row in (row for one in asked_all[: POINT + 1] for row in rows_of(one)):
        assert row.answer == [BOS]
    for row in itertools.chain(rows_of(asked_all[OUTLINE]), rows_of(asked_all[THOUGHT])):
        assert row.answer == [BOS] if row.skill == "segment" else TOKENIZER.decode(row.answer).startswith("Nothing")


# ---- outlines


@pytest.mark.long
def test_outlines_are_those_of_the_instance_that_is_meant():
    scenes = random_scenes(600, kinds=3, empty=0.2)
    asked_all = ask(scenes)
    further = [(number, row) for number, row in enumerate(rows_of(asked_all[THOUGHT])) if row.skill == "segment"]
    assert 310 < len(further) < 410  # six in ten
    rows = [*enumerate(rows_of(asked_all[OUTLINE])), *further]
    absent = marked = 0
    move, line, close = (load_answer_tokenizer().encode(letter).ids[0] for letter in "MLZ")
    for number, row in rows:
        kind = kind_of(meaning(row, ("phrase",)).names[0])
        places = places_of(scenes, number, kind)
        marked += bool(row.refs)
        if not places:
            assert row.answer == [BOS]
            absent += 1
            continue
        areas = {place: float(scenes.boxes[number, place, 2:].prod()) for place in places}
        if row.refs:
            place = marked_place(scenes, number, row.refs[0])
            assert place in places
        else:
            place, *rest = sorted(places, key=areas.get, reverse=True)
            assert not rest or areas[place] >= 1.149 * areas[rest[0]]
        x, y, w, h = scenes.boxes[number, place].tolist()
        assert row.answer[:4] == [COORD, COORD, SIZE, move]
        assert [row.values[0][0], row.values[1][0], row.values[2]] == [x, y, [w, h]]
        outline = scenes.outlines[number, place, : int(scenes.vertices[number, place])]
        integers = (960 * outline).round().long().flatten().tolist()
        ids = [FIRST_INTEGER + n for n in integers]
        assert row.answer[4:] == [*ids[:2], line, *ids[2:], close, BOS]
        assert [n for n, here in enumerate(row.outline) if here] == [4, 5, *range(7, 7 + len(ids) - 2)]
        numbers = [value[0] * 960 for value, here in zip(row.values, row.outline, strict=True) if here]
        assert numbers == pytest.approx(integers, abs=1e-3)
    assert 0.11 < absent / len(rows) < 0.19
    assert 0.42 < marked / len(rows) < 0.68  # half, and where no kind has a largest


def test_the_package_reads_outlines():
    read_outlines = 0
    for row in rows_of(ask(random_scenes(120))[OUTLINE]):
        if row.skill == "segment" and row.answer != [BOS]:
            (found,) = segment.finish(shipped_prompts(), request_of(row), answer_of(row))["segments"]
            path = found["path"].split()
            assert (path[0], path[3], path[-1]) == ("M", "L", "Z")
            assert len(path) == sum(row.outline) + 3
            read_outlines += 1
    assert read_outlines > 15


# ---- short answers


def test_counts_and_totals_are_true():
    scenes = random_scenes(400)
    answers, totals, places = Counter(), 0, 0
    for number, row in enumerate(rows_of(ask(scenes)[COUNT])):
        asked = meaning(row)
        total = asked.question == "total"
        if asked.question not in ("count", "total"):
            assert plainly(row) == expected_answer(scenes, number, asked)
            places += asked.question in ("relation", "place", "comparison")
            continue
        count = len(instances(scenes, number) if total else places_of(scenes, number, kind_of(asked.names[0])))
        assert plainly(row) == str(count)
        assert row.weights == [4.0, 1.0]
        totals += total
        answers[count] += 1
    assert 60 < totals < 110  # a fifth
    assert 40 < places < 90  # a fifth, where a scene allows
    assert set(answers) >= {0, 1, 2, 3, 4}


def test_existence_is_true():
    scenes = random_scenes(400)
    answers = Counter()
    for number, row in enumerate(rows_of(ask(scenes)[EXISTS])):
        kind = kind_of(meaning(row, ("existence",)).names[0])
        expected = "Yes" if places_of(scenes, number, kind) else "No"
        assert plainly(row) == expected
        answers[expected] += 1
    assert 0.68 < answers["Yes"] / 400 < 0.82


def expected_answer(scenes, number, asked):
    """What `language.py` and the modules beside it answer; they give None to what must not be asked."""
    scene, names = said_scene(scenes, number), asked.names
    if asked.question == "colour":
        return colours.colour_answer(scene, names[0])
    if asked.question in ("count", "existence"):
        count = len(places_of(scenes, number, kind_of(names[0])))
        return str(count) if asked.question == "count" else "Yes" if count else "No"
    if asked.question == "total":
        return str(len(scene))
    first, *second = (single(scene, kind_of(name)) for name in names)
    if asked.question == "relation":
        return relations.relation_answer(scene, first, asked.of)
    answer = relations.place_answer if asked.question == "place" else relations.comparison_answer
    return answer(scene, first, second[0], asked.of)


@pytest.mark.parametrize("kinds", [*(pytest.param(few, marks=pytest.mark.long) for few in (3, 12)), 60])
def test_spatial_and_colour_questions_are_true_and_clear(kinds):
    scenes = random_scenes(600, seed=kinds, kinds=kinds)
    seen, said_yes, directions = Counter(), Counter(), set()
    for number, row in enumerate(rows_of(ask(scenes)[SPATIAL])):
        asked = meaning(row)
        expected = expected_answer(scenes, number, asked)
        assert expected is not None
        assert plainly(row) == expected
        assert set(row.weights[:-1]) == {4.0}
        assert row.weights[-1] == 1.0
        seen[asked.question] += 1
        directions.add(asked.of if asked.question == "relation" else "left")
        said_yes[expected] += asked.question == "place"
    assert set(seen) >= {"relation", "place", "comparison", "colour"}
    if kinds == 60:
        assert not {"count", "existence"} & set(seen)
        assert directions == {"left", "right", "above", "below"}
        assert seen["relation"] > seen["place"] > 60
        assert 0.4 < said_yes["Yes"] / seen["place"] < 0.6


def test_where_nothing_is_clear_another_question_is_asked():
    labels = torch.randint(260, (40, 1)).expand(40, 10)  # ten of one kind: no instance is the only one
    scenes = scenes_of(labels, torch.rand(40, 10, 4))
    for number, row in enumerate(rows_of(ask(scenes)[SPATIAL])):
        asked = meaning(row)
        assert asked.question in ("count", "existence", "colour")
        assert plainly(row) == expected_answer(scenes, number, asked)


def test_what_is_marked_is_named():
    scenes = random_scenes(800)
    seen = Counter()
    for number, row in enumerate(rows_of(ask(scenes)[MARKED])):
        if not row.refs:
            asked = meaning(row)
            assert plainly(row) == expected_answer(scenes, number, asked)
            seen[asked.question] += 1
            continue
        kind = "point" if len(row.refs[0]) == 2 else "box"
        assert Meaning("reference", kind, ()) in meanings(row.text, ("reference",))
        place = marked_place(scenes, number, row.refs[0])
        if place is None:
            assert bool(scenes.free_ok[number])
            assert row.refs[0] == scenes.free[number].tolist()
            assert plainly(row) == "Nothing"
            seen["free"] += 1
        else:
            assert plainly(row) == load_objects()[int(scenes.labels[number, place])].name
        seen[kind] += 1
    assert 0.45 < (seen["point"] + seen["box"]) / 800 < 0.66
    assert 0.40 < seen["box"] / (seen["point"] + seen["box"]) < 0.60
    assert 0.08 < seen["free"] / seen["point"] < 0.19
    assert set(seen) >= set(QUERIES) - {"total", "colour"}


# ---- reasoning


@pytest.mark.long
def test_reasoning_points_at_what_is_counted_and_then_answers():
    scenes = random_scenes(900)
    rows = [(number, row) for number, row in enumerate(rows_of(ask(scenes)[THOUGHT])) if row.thinking]
    seen = Counter()
    for number, row in rows:
        asked = meaning(row, ("count", "existence", "total"))
        kind = kind_of(asked.names[0]) if asked.names else None
        there = instances(scenes, number)
        scene = said_scene(scenes, number)
        found = [there[i][0] for i in grounded(scene, asked.question, kind)]
        text = reasoning_text(asked.question, kind, len(found))
        words, points = load_answer_tokenizer().encode(text).ids, [COORD] * (2 * len(found))
        thought = [GROUND, *words, *points, GROUND_END] if found else words
        answer = expected_answer(scenes, number, asked)
        assert row.answer == [*thought, 3, *load_answer_tokenizer().encode(answer).ids, BOS]
        values = [value[0] for id_, value in zip(row.answer, row.values, strict=True) if id_ == COORD]
        assert values == scenes.points[number, found].flatten().tolist()
        seen[asked.question] += 1
        seen["found"] += bool(found)
    assert 0.35 < len(rows) / 900 < 0.45
    assert 0.65 < seen["count"] / len(rows) < 0.75
    assert 0.15 < seen["existence"] / len(rows) < 0.25
    assert 0.06 < seen["total"] / len(rows) < 0.14
    assert 0.6 < seen["found"] / len(rows) < 0.9


def test_the_package_reads_reasoning():
    read_reasoning = 0
    for row in rows_of(ask(random_scenes(120))[THOUGHT]):
        if row.thinking and GROUND in row.answer:
            answer = query.finish(request_of(row), shipped_prompts(), answer_of(row))
            (grounding,) = answer["reasoning"]["grounding"]
            assert len(grounding["points"]) == row.answer.count(COORD) // 2
            assert (grounding["start_idx"], grounding["end_idx"]) == (0, len(answer["reasoning"]["text"]))
            assert answer["answer"] in {"Yes", *map(str, range(1, 11))}
            read_reasoning += 1
    assert read_reasoning > 8


# ---- captions


@pytest.mark.long
@pytest.mark.parametrize("kinds", [1, 2, 5, 40])
def test_captions_say_what_language_says(kinds):
    scenes = random_scenes(160, seed=kinds, kinds=kinds, empty=0.1)
    seen = Counter()
    asked_all = ask(scenes)
    both = [rows_of(asked_all[slot]) for slot in (TEXT, AGAIN)]
    assert 0.1 < sum(one.text == other.text for one, other in zip(*both, strict=True)) / 160 < 0.4  # of four styles
    for number, row in itertools.chain(*map(enumerate, both)):
        listed = row.skill == "query"  # questions such as "what do you see?" get the short one
        truth = language.caption(said_scene(scenes, number), "short" if listed else row.text)
        # The very tokens that the tokenizer makes of the text.
        assert row.answer == [*load_answer_tokenizer().encode(truth).ids, BOS]
        assert said(row) == truth
        assert min(row.weights) > 0
        if listed:
            assert meanings(row.text, ("list",))
        seen["list" if listed else row.text] += 1
    assert set(seen) == {*LENGTH_NAMES, "list"}
    assert min(seen.values()) > 55


# ---- rows


def test_rows_have_their_lengths():
    asked_all = ask(random_scenes(100, empty=0.0))
    assert [q.ids.shape[1] for q in asked_all] == maker().lengths
    assert [mix.PARTS[part] for part in maker().parts] == [
        *["decision"] * 2, *["typed"] * 3, *["text"] * 7, *["decision"] * 2,
    ]  # fmt: skip
    for slot, (one, length) in enumerate(zip(asked_all, maker().lengths, strict=True)):
        assert one.ids.shape == one.weight.shape == one.outline.shape == (100, length)
        assert one.values.shape == (100, length, 2)
        assert (one.ids.dtype, one.values.dtype) == (torch.long, torch.float32)
        assert (one.weight.dtype, one.outline.dtype) == (torch.float32, torch.bool)
        assert int(one.ids.min()) > NONE
        assert slot in (TYPED, NAMED, ALSO_NAMED) or all(read(one, row).answer.count(BOS) == 1 for row in range(100))


def test_coordinates_are_in_answers_with_boxes_points_and_outlines_only():
    for slot, one in enumerate(ask(random_scenes(100))):
        numbers = (one.ids == COORD) | (one.ids == SIZE)
        assert bool((numbers & (one.weight > 0)).any()) == (slot <= ALSO_NAMED or slot >= OUTLINE)
        assert bool(one.outline.any()) == (slot in (OUTLINE, THOUGHT))
        assert not one.values[~(numbers | one.outline)].any()


@pytest.mark.long
def test_ten_of_the_longest_names_fit():
    objects = maker().objects
    length = {kind: len(maker().encode(" " + item.plural)) for kind, item in enumerate(objects)}
    longest = sorted(length, key=length.get, reverse=True)[:10]
    for labels in (longest, longest[:1] * 10):
        scenes = scenes_of(torch.tensor(labels).expand(120, 10), torch.rand(120, 10, 4))
        scenes.vertices.fill_(32)
        for number, row in enumerate(rows_of(ask(scenes)[TEXT])):
            listed = row.skill == "query"
            assert said(row) == language.caption(said_scene(scenes, number), "short" if listed else row.text)
        for one in ask(scenes):
            rows_of(one)  # every row has its end


@pytest.mark.parametrize(
    ("slot", "kind"),
    [
        ("objects", "detect"),
        ("outline", "segment"),
        ("typed", "typed"),
        ("existence", "existence"),
        ("number", "count"),
        ("text", "list"),
    ],
)
def test_questions_must_fit(monkeypatch, slot, kind):
    monkeypatch.setitem(mix.LENGTHS, slot, 12)
    with pytest.raises(ValueError, match=f"a {kind} question can take"):
        maker()._check_room()


@pytest.mark.long
def test_a_maker_whose_questions_do_not_fit_is_not_made(monkeypatch):
    monkeypatch.setitem(mix.LENGTHS, "text", 12)
    with pytest.raises(ValueError, match="a list question can take"):
        QuestionMaker(load_tokenizer(), load_answer_tokenizer(), CPU)


class Noting(TorchDispatchMode):
    """Notes the names of all operations."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names[operation.overloadpacket.__name__] += 1
        return operation(*args, **(kwargs or {}))


def test_a_graph_can_be_captured_after_a_first_call():
    scenes = random_scenes(20)
    ask(scenes)
    with Noting() as noted:
        ask(scenes)
    # Numbers read by the host, shapes that depend on data, tensors copied from the host.
    assert not {"_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "unique"} & set(noted.names)
    assert noted.names["rand"] > 10


def test_the_same_scenes_are_asked_about_in_other_words():
    scenes = random_scenes(60)
    first, second = ask(scenes), ask(scenes)
    for one, other in zip(first, second, strict=True):
        assert not torch.equal(one.ids, other.ids)
