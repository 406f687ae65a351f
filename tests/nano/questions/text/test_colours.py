"""Colour questions: nouns that have a colour by name, answers only where one colour fits."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.nano.questions.text import colours
from bench.nano.questions.text.language import ask
from bench.nano.scenes.objects import COLOURS, index_of, load_objects

RED_APPLE, GREEN_APPLE, DOG, CAR, POLICE_CAR, TAXI = map(
    index_of, ("red apple", "green apple", "dog", "car", "police car", "taxi")
)


@pytest.mark.parametrize(
    ("scene", "noun", "answer"),
    [
        ([RED_APPLE], "apple", "red"),
        ([GREEN_APPLE, DOG], "apple", "green"),
        ([GREEN_APPLE, GREEN_APPLE], "apple", "green"),
        ([GREEN_APPLE, RED_APPLE], "apple", None),
        ([DOG], "apple", None),
        ([CAR, POLICE_CAR, TAXI], "car", "red"),
        ([POLICE_CAR], "car", None),
        ([TAXI, CAR], "cab", "yellow"),
        ([index_of("blue square"), index_of("red circle")], "square", "blue"),
    ],
)
def test_the_colour_is_told_where_there_is_one(scene, noun, answer):
    assert colours.colour_answer([(kind, 0.5, 0.5) for kind in scene], noun) == answer


@given(st.lists(st.integers(0, len(load_objects()) - 1), max_size=6), st.sampled_from(sorted(colours.COLOUR_NOUNS)))
def test_a_colour_is_that_of_every_thing_so_called(kinds, noun):
    answer = colours.colour_answer([(kind, 0.5, 0.5) for kind in kinds], noun)
    found = {colours.COLOUR_NOUNS[noun].get(kind) for kind in kinds} - {None}
    assert found == ({answer} if answer else found)
    assert answer is not None or len(found) != 1


def test_every_colour_stands_in_a_name_of_the_object():
    for noun, kinds in colours.COLOUR_NOUNS.items():
        for kind, colour in kinds.items():
            item = load_objects()[kind]
            assert any(name.startswith(f"{colour} ") for name in item.names)
            assert not set(COLOURS) & set(noun.split())


def test_a_noun_that_is_a_name_belongs_to_that_object_alone():
    for noun, kinds in colours.COLOUR_NOUNS.items():
        owner = index_of(noun)
        # "apple" alone means the red one to detect, but the green one is an apple too.
        assert owner is None or set(kinds) == {owner} or noun == "apple"


@pytest.mark.parametrize(
    "noun", ["wine", "wine glass", "flower", "orange", "large square", "triangle pointed up", "dog"]
)
def test_nouns_without_a_colour_of_their_own_are_not_asked_about(noun):
    with pytest.raises(KeyError):
        colours.colour_answer([], noun)


def test_questions_ask_for_the_noun_in_both_spellings():
    rng = random.Random(1)
    asked = {ask(rng, colours.COLOUR_QUESTIONS, "apple").lower() for _ in range(500)}
    assert {"what colour is the apple?", "what color is the apple?"} <= asked
    assert all("apple" in text and ("colour" in text or "color" in text) for text in asked)
