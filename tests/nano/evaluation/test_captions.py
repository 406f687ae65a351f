"""Captions read back: what they list, and where they say that things are."""

import random

import pytest

from bench.nano.evaluation.captions import (
    EVERYWHERE,
    UNKNOWN_KIND,
    compare_counts,
    compare_instances,
    is_true,
    parse_caption,
    placed,
    zones_of,
)
from bench.nano.evaluation.scoring import Counts
from bench.nano.questions.text.language import caption
from bench.nano.scenes.objects import index_of, load_objects

BANANA, DOG, KEY = map(index_of, ("banana", "dog", "key"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3 bananas, 1 dog and 2 keys.", {"banana": 3, "dog": 1, "key": 2}),
        ("A picture of 3 bananas and 1 dog.", {"banana": 3, "dog": 1}),
        ("A picture of 1 dog. The dog is at the top left.", {"dog": 1}),
        ("1 fork and knife and 2 forks and knives.", {"fork and knife": 3}),
        ("10 Red Apples", {"red apple": 10}),
        ("Nothing.", {}),
        ("A picture of nothing.", {}),
        ("", {}),
    ],
)
def test_captions_are_read_as_counts(text, expected):
    assert parse_caption(text) == {index_of(name): count for name, count in expected.items()}


def test_what_no_object_is_called_is_counted_as_unknown():
    assert parse_caption("2 bananas and 4 glorps.") == {BANANA: 2, UNKNOWN_KIND: 1}
    assert parse_caption("a banana") == {UNKNOWN_KIND: 1}


def test_zones_are_read_from_long_captions():
    text = "A picture of 9 dogs and 1 key. The dogs are everywhere. The key is at the top left, top and bottom."
    assert [*placed(text)] == [(DOG, EVERYWHERE), (KEY, "top left"), (KEY, "top"), (KEY, "bottom")]
    assert parse_caption(text) == {DOG: 9, KEY: 1}


@pytest.mark.parametrize("length", ["short", "normal", "long"])
def test_every_caption_that_can_be_made_is_read_back(length):
    rng = random.Random(1)
    objects = range(len(load_objects()))
    for index in objects:
        kinds = [index, *rng.choices(objects, k=3)]
        scene = [(rng.choice(kinds), rng.random(), rng.random()) for _ in range(10)]
        text = caption(scene, length)
        there = {kind for kind, _, _ in scene}
        assert parse_caption(text) == {kind: sum(kind == one for one, _, _ in scene) for kind in there}
        zones = {kind: zones_of((x, y) for one, x, y in scene if one == kind) for kind in there}
        said = list(placed(text))
        assert all(is_true(*pair, zones) for pair in said)
        assert bool(said) == (length == "long")


def test_zones_that_are_not_so_are_false():
    said = list(placed("The dogs are at the left and right. The key is everywhere. The glorp is at the top."))
    assert [is_true(*one, {DOG: ["left"], KEY: ["top"]}) for one in said] == [True, False, False, False]


def test_zones_of_centres_come_row_by_row():
    assert zones_of([(1.0, 1.0), (0.1, 0.5), (0.5, 0.1), (0.55, 0.2)]) == ["top", "left", "bottom right"]


def test_counts_are_compared_by_kind():
    truth, answer = {1: 2, 2: 1, 3: 1}, {1: 3, 2: 1, 4: 1}
    assert compare_counts(answer, truth, exact=False) == Counts(right=2, wrong=1, missed=1)
    assert compare_counts(answer, truth, exact=True) == Counts(right=1, wrong=2, missed=2)
    assert compare_instances(answer, truth) == Counts(right=3, wrong=2, missed=1)
