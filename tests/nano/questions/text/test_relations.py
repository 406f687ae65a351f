"""Spatial questions: their answers by the definition, silence where they are not clear, and good English."""

import math
import random
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.nano.questions.text import relations
from bench.nano.questions.text.language import ask
from bench.nano.scenes.objects import index_of, load_objects

BANANA, DOG, KEY, SCISSORS = map(index_of, ("banana", "dog", "key", "scissors"))
DIRECTIONS = ("left", "right", "above", "below")
# Steps of 1/100 bring scenes close to every border; a few kinds, so that kinds repeat.
PLACE = st.integers(0, 100).map(lambda step: step / 100)
SCENE = st.lists(st.tuples(st.integers(0, 5), PLACE, PLACE), min_size=2, max_size=8)


def names(*kinds):
    return [load_objects()[kind].name for kind in kinds]


def test_the_nearest_thing_in_the_direction_is_named():
    scene = [(DOG, 0.5, 0.5), (KEY, 0.3, 0.5), (BANANA, 0.1, 0.5)]
    assert relations.relation_answer(scene, 0, "left") == "key"
    assert relations.relation_answer(scene, 2, "right") == "key"
    assert relations.relation_answer(scene, 0, "right") == "Nothing"


def test_what_lies_across_counts_as_twice_as_far():
    scene = [(DOG, 0.5, 0.5), (KEY, 0.4, 0.7), (BANANA, 0.2, 0.5)]
    assert relations.relation_answer(scene, 0, "left") == "banana"
    assert relations.relation_answer(scene, 0, "below") == "key"


@pytest.mark.parametrize(
    ("others", "answer"),
    [
        ([(KEY, 0.47, 0.5)], None),  # at the border
        ([(KEY, 0.51, 0.5)], None),  # only just not there
        ([(KEY, 0.53, 0.5)], "Nothing"),
        ([(KEY, 0.47, 0.9), (BANANA, 0.3, 0.5)], "banana"),  # at the border, but far away
        ([(KEY, 0.47, 0.55), (BANANA, 0.3, 0.5)], None),
        ([(KEY, 0.3, 0.5), (BANANA, 0.28, 0.5)], None),  # as near
        ([(KEY, 0.3, 0.5), (KEY, 0.28, 0.5)], "key"),  # as near, but of one kind
        ([(KEY, 0.3, 0.5), (DOG, 0.9, 0.5)], None),  # of which dog?
    ],
)
def test_unclear_relations_have_no_answer(others, answer):
    assert relations.relation_answer([(DOG, 0.5, 0.5), *others], 0, "left") == answer


def turned(scene, direction):
    """Turn a scene so that what was in a direction is at the right."""
    turn = {
        "right": lambda x, y: (x, y), "left": lambda x, y: (1 - x, y),
        "below": lambda x, y: (y, x), "above": lambda x, y: (1 - y, x),
    }[direction]  # fmt: skip
    return [(kind, *turn(x, y)) for kind, x, y in scene]


def restated(scene, direction):
    """The definition for the first instance, read out slowly: all that could be named, then what speaks against it."""
    (kind, x0, y0), *others = turned(scene, direction)
    if kind in [other for other, _, _ in others]:
        return None
    doubtful = [(math.hypot(x - x0, 2 * (y - y0)), other) for other, x, y in others if x - x0 > -0.02]
    certain = [(math.hypot(x - x0, 2 * (y - y0)), other) for other, x, y in others if x - x0 > 0.04]
    if not certain:
        return None if doubtful else "Nothing"
    least = min(cost for cost, _ in certain)
    best = next(other for cost, other in certain if cost == least)
    clear = all(other == best or cost >= least / 0.85 for cost, other in doubtful)
    return names(best)[0] if clear else None


def on_a_border(scene, direction):
    """Tell where rounding decides."""
    (_, x0, y0), *others = turned(scene, direction)
    costs = [math.hypot(x - x0, 2 * (y - y0)) for _, x, y in others]
    near = any(abs(x - x0 - limit) < 1e-9 for _, x, _ in others for limit in (-0.02, 0.04))
    return near or any(abs(a - b / 0.85) < 1e-9 for a in costs for b in costs)


@given(SCENE, st.sampled_from(DIRECTIONS))
def test_relations_are_as_defined(scene, direction):
    assume(not on_a_border(scene, direction))
    assert relations.relation_answer(scene, 0, direction) == restated(scene, direction)


@pytest.mark.long
@given(SCENE, st.sampled_from(DIRECTIONS), st.randoms())
def test_the_order_of_the_scene_does_not_matter(scene, direction, rng):
    shuffled = list(scene)
    rng.shuffle(shuffled)
    answer = relations.relation_answer(shuffled, shuffled.index(scene[0]), direction)
    assert answer == relations.relation_answer(scene, 0, direction)


@given(SCENE, st.sampled_from([("left", "right"), ("above", "below")]))
def test_directions_are_opposite(scene, opposite):
    there = relations.place_answer(scene, 0, 1, opposite[0])
    assert relations.place_answer(scene, 1, 0, opposite[1]) == there
    back = relations.place_answer(scene, 0, 1, opposite[1])
    assert {there, back} in ({None}, {"Yes", "No"})


@given(SCENE, st.sampled_from([("left", 1, -1), ("right", 1, 1), ("higher", 2, -1), ("lower", 2, 1)]))
def test_comparisons_name_the_extreme(scene, comparison):
    word, axis, sign = comparison
    answer = relations.comparison_answer(scene, 0, 1, word)
    kinds = [kind for kind, _, _ in scene]
    gap = abs(scene[0][axis] - scene[1][axis])
    assume(abs(gap - 0.05) > 1e-9)
    if kinds.count(kinds[0]) > 1 or kinds.count(kinds[1]) > 1 or gap < 0.05:
        assert answer is None
    else:
        assert answer == names(max(scene[:2], key=lambda instance: sign * instance[axis])[0])[0]


def test_every_direction_has_many_wordings_that_no_other_has():
    for groups in (relations.RELATION_QUESTIONS, relations.PLACE_QUESTIONS, relations.COMPARISON_QUESTIONS):
        wordings = [template for templates in groups.values() for template in templates]
        assert len(set(wordings)) == len(wordings)
        assert min(map(len, groups.values())) >= 8


def test_questions_name_what_they_are_about():
    rng = random.Random(1)
    dog, key = ("dog", "dogs"), ("key", "keys")
    for _ in range(300):
        direction = rng.choice(DIRECTIONS)
        comparison = rng.choice(("left", "right", "higher", "lower"))
        one = ask(rng, relations.RELATION_QUESTIONS[direction], "dog").lower()
        two = [relations.place_question(rng, direction, dog, key).lower(),
               ask(rng, relations.COMPARISON_QUESTIONS[comparison], "dog", "key").lower()]  # fmt: skip
        assert re.search(r"\bdog\b", one)
        assert all(text.index("dog") < text.index("key") for text in two)
        assert not any(mark in text for text in (one, *two) for mark in "{}")


def test_things_without_singular_are_spoken_of_as_many():
    rng = random.Random(2)
    scissors, dog = ("scissors", "scissors"), ("dog", "dogs")
    for _ in range(200):
        assert not re.match("is .*scissors.*dog", relations.place_question(rng, "left", scissors, dog).lower())
        assert not re.match("are ", relations.place_question(rng, "left", dog, scissors).lower())
