"""Reasoning: it points at what the answer counts, in reading order."""

from bench.nano.questions.text import language
from bench.nano.scenes.objects import index_of

BANANA, DOG = map(index_of, ("banana", "dog"))
SCENE = [(BANANA, 0.9, 0.1), (DOG, 0.5, 0.1), (BANANA, 0.1, 0.12), (BANANA, 0.1, 0.9)]


def test_it_points_at_what_is_asked_for_in_reading_order():
    assert language.grounded(SCENE, "count", BANANA) == [2, 0, 3]
    assert language.grounded(SCENE, "existence", DOG) == [1]
    assert language.grounded(SCENE, "total", None) == [2, 1, 0, 3]
    assert language.grounded(SCENE, "count", None) == []


def test_it_says_what_it_points_at():
    assert language.reasoning_text("count", BANANA, 3) == "bananas"
    assert language.reasoning_text("existence", DOG, 1) == "dogs"
    assert language.reasoning_text("total", None, 4) == "objects"
    assert language.reasoning_text("count", BANANA, 0) == "Nothing"
    assert language.reasoning_text("total", None, 0) == "Nothing"
