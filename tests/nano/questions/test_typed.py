"""Typed questions: what they print is JSON in the tokenizer's own spelling, and true of the image."""

import json
import re
from collections import Counter

import pytest
import torch

from bench.nano.questions.layout import ANSWER, BOS, COORD
from bench.nano.questions.mix import BEGUN_WEIGHT, FORCED_WEIGHT, LENGTHS, ROW, TYPED_COUNT_WEIGHT
from bench.nano.questions.text import relations, typed
from bench.nano.questions.tokenizer import FIRST_INTEGER, INTEGERS
from bench.nano.scenes.objects import load_objects
from tests.nano.questions.reading import TOKENIZER, read
from tests.nano.questions.typed_reading import GROUP_OF, ROLE_OF, SIDE_OF, Truth, canonical, document, joined, subject
from tests.nano.small import maker, random_scenes, scenes_of

TYPED, BATCH = ROW.index("typed"), 400
FRUIT = [i for i, item in enumerate(load_objects()) if item.name in ("banana", "pear", "lemon", "peach")]


@pytest.fixture(scope="module", params=["few kinds", "many kinds", "full", "sparse"])
def asked(request):
    """(scenes, rows) of typed questions."""
    kinds, empty = {"few kinds": (2, 0.4), "many kinds": (60, 0.3), "full": (8, 0.0), "sparse": (9, 0.85)}[
        request.param
    ]
    torch.manual_seed(kinds)
    scenes = random_scenes(BATCH, seed=kinds, kinds=kinds, empty=empty)
    scenes.labels[::5, 1] = torch.tensor(FRUIT)[torch.randint(len(FRUIT), (BATCH // 5,))]
    questions = maker()(scenes)[TYPED]
    return scenes, [read(questions, row) for row in range(BATCH)]


@pytest.fixture(scope="module")
def whole(asked):
    """(truth, question's subject, document) of the rows that are not cut."""
    scenes, rows = asked
    return [
        (Truth(scenes, number), subject(row.text), json.loads(document(row)[0]))
        for number, row in enumerate(rows)
        if row.answer[-1] == BOS
    ]


def test_lists_of_ten_objects_with_names_and_boxes_have_room():
    torch.manual_seed(1)
    questions = maker()(random_scenes(BATCH, seed=1, kinds=8, empty=0.0))[TYPED]
    whole = [row for row in map(read, [questions] * BATCH, range(BATCH)) if row.answer[-1] == BOS]
    lists = [row for row in whole if row.answer.count(COORD) >= 20]
    assert sum(document(row)[0].count('":') >= 20 for row in lists) > 8


def test_counts_weigh_more_than_other_values(asked):
    weights = Counter()
    for row in asked[1]:
        for id_, weight in zip(row.answer, row.weights, strict=True):
            number = FIRST_INTEGER <= id_ < FIRST_INTEGER + INTEGERS
            weights[number, round(weight, 3)] += 1
    assert weights[True, TYPED_COUNT_WEIGHT] > 50
    assert not weights[False, TYPED_COUNT_WEIGHT]
    # The others stand in names of properties.
    assert {weight for number, weight in weights if number} <= {TYPED_COUNT_WEIGHT, FORCED_WEIGHT}


def test_answers_are_compact_json_in_the_tokenizers_spelling(asked):
    cut, split = 0, 0
    for row in asked[1]:
        text, pieces = document(row)
        pieces, apart = joined(pieces)
        split += apart
        if row.answer[-1] == BOS:
            assert canonical(pieces)
            json.loads(text)
        else:
            cut += 1
            assert canonical(pieces[:-1])
            assert len(row.prompt) + len(row.answer) == LENGTHS["typed"]
        assert not re.search("[:,] ", "".join(map(TOKENIZER.decode, pieces)))
    assert cut < BATCH / 8
    assert split > BATCH / 4


def match_of(truth, about, key):
    """What is meant: by the question, or by a property that is called by a group."""
    return truth.members(("group", GROUP_OF[key])) if about[0] is None and key in GROUP_OF else truth.members(about)


@pytest.mark.long
def test_objects_tell_the_truth_about_one_thing(whole):
    seen = Counter()
    for truth, about, answer in whole:
        if not isinstance(answer, dict) or "at" in answer or any(isinstance(v, list) for v in answer.values()):
            continue
        keys = list(answer)
        match = match_of(truth, about, keys[0])
        place = truth.largest(match)
        sides = about[0] is None and keys[0] not in GROUP_OF
        names = [i for i, key in enumerate(keys) if ROLE_OF.get(key) == "name" or key in GROUP_OF]
        for at, (key, value) in enumerate(answer.items()):
            role = "name" if key in GROUP_OF else SIDE_OF.get(key) if sides and key in SIDE_OF else ROLE_OF[key]
            seen[role, value is None] += 1
            if role == "count" and about[0] != "kind" and not (names and names[0] < at):
                assert value == len(match)
            elif role in ("left", "right", "above", "below") and about[0] == "kind":
                scene = [(truth.labels[p], *truth.boxes[p][:2]) for p in truth.all]
                (only,) = match
                expected = relations.relation_answer(scene, truth.all.index(only), role)
                assert expected == ("Nothing" if value is None else value)
            elif role in ("left", "right", "above", "below", "largest", "smallest"):
                outer = truth.outermost(role)
                assert value == truth.name(outer) if isinstance(value, str) else truth.is_place(value, outer)
            elif role == "present":
                assert value == bool(match)
                assert about[0] == "kind"
            elif not match:
                assert value == (0 if role == "count" else None)
            elif role in ("name", "count", "colour") and about[0] == "kind":
                assert truth.told(role, value, match[0])
            else:
                assert place is not None
                assert truth.told(role, value, place)
    told = {role for role, null in seen if not null}
    assert told >= {"name", "count", "present", "box", "where"}
    assert {("name", True), ("box", True), ("where", True)} <= set(seen)


def listing(answer):
    """(properties before it, its name, items) of a list; None for what is no list."""
    if isinstance(answer, list):
        return {}, None, answer
    lists = [key for key, value in answer.items() if isinstance(value, list)] if isinstance(answer, dict) else []
    if not lists or "at" in answer:
        return None
    (key,) = lists
    assert list(answer)[-1] == key
    return {name: value for name, value in answer.items() if name != key}, key, answer[key]


@pytest.mark.long
def test_lists_hold_everything_that_is_meant_in_reading_order(whole):
    shapes = Counter()
    for truth, about, answer in whole:
        found = listing(answer)
        if found is None:
            continue
        before, key, items = found
        match = match_of(truth, about, key) if key else truth.members(about)
        for name, value in before.items():
            assert ROLE_OF[name] == "count"
            assert value == (len(truth.all) if about[0] is None else len(match))
        first = {truth.labels[place]: place for place in reversed(match)}
        kinds = [place for place in match if first[truth.labels[place]] == place]
        if not items:
            assert not match
        elif isinstance(items[0], str):
            assert items == [truth.name(place) for place in kinds]
        elif "at" in items[0]:
            assert len(items) == len(match)
            assert all(truth.is_place(item, place) for item, place in zip(items, match, strict=True))
        else:
            roles = [ROLE_OF[name] for name in items[0]]
            places = kinds if "count" in roles else match
            assert len(items) == len(places)
            for item, place in zip(items, places, strict=True):
                assert list(item) == list(items[0])
                assert all(truth.told(ROLE_OF[name], value, place) for name, value in item.items())
        shapes["top" if key is None else "called" if key in GROUP_OF else "named", bool(items)] += 1
    assert {shape for shape, some in shapes if some} >= {"top", "named"}
    assert {some for _, some in shapes} == {True, False}


@pytest.mark.long
def test_values_alone_answer_the_question(whole):
    seen = Counter()
    for truth, about, answer in whole:
        if isinstance(answer, list) or (isinstance(answer, dict) and "at" not in answer):
            continue
        match = truth.members(about)
        if isinstance(answer, bool):
            assert answer == bool(match)
        elif isinstance(answer, int):
            assert answer == len(match)
        elif isinstance(answer, str):
            assert answer == truth.name(truth.largest(match))
        else:
            assert truth.is_place(answer, truth.largest(match)) if match else answer is None
        seen[type(answer).__name__] += 1
    assert set(seen) >= {"bool", "int", "dict", "NoneType"}


@pytest.mark.long
def test_the_readmes_shapes_are_asked():
    torch.manual_seed(1)
    keys = Counter()
    for seed in range(6):
        asked = maker()(random_scenes(1000, seed=seed))[TYPED]
        for row in range(1000):
            one = read(asked, row)
            text = document(one)[0]
            if text.startswith("{") and one.answer[-1] == BOS and "[{" not in text and one.answer[0] != COORD:
                keys.update(frozenset(json.loads(text)))
    assert min(keys[name] for name in ("fruit", "count", "box", "where", "name", "colour", "present", "leftmost")) > 3


def test_a_row_that_is_too_long_is_cut_at_its_end():
    torch.manual_seed(0)
    labels = torch.arange(10).expand(400, 10) * 7
    scenes = scenes_of(labels, torch.rand(400, 10, 4))
    asked = maker()(scenes)[TYPED]
    full = asked.weight[:, -1] > 0
    assert full.any()
    assert asked.ids.shape == (400, LENGTHS["typed"])
    for row in full.nonzero().flatten().tolist():
        assert int((asked.ids[row] == ANSWER).sum()) == 1


def test_what_the_grammar_forces_weighs_little():
    """How JSON begins least of all: without a grammar the same questions are answered in words."""
    torch.manual_seed(0)
    asked = maker()(random_scenes(300))[TYPED]
    opening, value = Counter(), Counter()
    begin = maker().encode('{"')[0]
    for row in range(300):
        one = read(asked, row)
        if one.answer[0] == begin:
            opening[round(one.weights[0], 3)] += 1
        for id_, weight in zip(one.answer, one.weights, strict=True):
            value[round(weight, 3)] += id_ == COORD
    assert set(opening) == {BEGUN_WEIGHT}
    assert {weight for weight, count in value.items() if count} == {1.0}


def test_every_group_has_members_and_no_name_has_two_roles():
    for word, _ in typed.GROUPS:
        assert len(typed.members(word)) > 2
        assert not typed.members(word) & typed.unclear(word)
    names = [name for names in typed.NAMES.values() for name in set(names)]
    assert len(names) == len(set(names))
    assert not set(GROUP_OF) & set(names)


def test_the_clearly_first():
    assert typed.clearly_first([]) is None
    assert typed.clearly_first([0.1, 0.5, 0.3], ratio=1.5) == 1
    assert typed.clearly_first([0.1, 0.4, 0.3], ratio=1.5) is None
    assert typed.clearly_first([-0.3, -0.2], margin=0.05) == 1
    assert typed.clearly_first([-0.24, -0.2], margin=0.05) is None
