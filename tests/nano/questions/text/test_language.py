"""The words about a scene: grammar of captions, questions that name their thing, absent things that are absent."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.nano.questions.text import language
from bench.nano.scenes.english import pluralize
from bench.nano.scenes.objects import index_of, load_objects

BANANA, DOG, KEY, SCISSORS, FISH = map(index_of, ("banana", "dog", "key", "scissors", "fish"))
FRACTION = st.floats(0, 1)


def test_short_caption_lists_kinds_in_reading_order_of_the_first_instance():
    scene = [(KEY, 0.9, 0.9), (BANANA, 0.5, 0.5), (DOG, 0.7, 0.1), (BANANA, 0.2, 0.11), (BANANA, 0.9, 0.8)]
    assert language.caption(scene, "short") == "3 bananas, 1 dog and 1 key."
    assert language.caption(scene, "normal") == "A picture of 3 bananas, 1 dog and 1 key."


def test_long_caption_says_where():
    scene = [(DOG, 0.1, 0.1), (BANANA, 0.5, 0.2), (BANANA, 0.5, 0.5), (BANANA, 0.9, 0.9)]
    assert language.caption(scene, "long") == (
        "A picture of 1 dog and 3 bananas. The dog is at the top left. "
        "The bananas are at the top, centre and bottom right."
    )


def test_long_caption_of_things_without_singular_and_of_many():
    assert language.caption([(SCISSORS, 0.5, 1.0)], "long").endswith("The scissors are at the bottom.")
    assert language.caption([(FISH, 1.0, 0.5)], "long").endswith("The fish is at the right.")
    corners = [(DOG, x, y) for x in (0.1, 0.9) for y in (0.1, 0.5, 0.9)]
    assert language.caption(corners, "long") == "A picture of 6 dogs. The dogs are everywhere."


def test_long_caption_places_the_first_four_kinds():
    scene = [(index, 0.5, index / 10) for index in range(6)]
    assert language.caption(scene, "long").count(".") == 5


def test_caption_of_nothing():
    assert language.caption([], "short") == "Nothing."
    assert language.caption([], "long") == "A picture of nothing."


def test_caption_length_is_checked():
    with pytest.raises(ValueError, match="tiny"):
        language.caption([], "tiny")


@given(st.lists(st.tuples(st.integers(0, len(load_objects()) - 1), FRACTION, FRACTION), min_size=1, max_size=10))
def test_counts_of_a_caption_add_up(scene):
    listing = language.caption(scene, "short").removesuffix(".")
    parts = re.split(r", | and (?=\d)", listing)
    for part in parts:
        number, name = part.split(" ", 1)
        item = load_objects()[index_of(name)]
        assert name == (item.name if number == "1" else item.plural)
        assert int(number) == sum(index_of(name) == index for index, _, _ in scene)
    assert len(parts) == len({index for index, _, _ in scene})


def test_reading_order_is_row_by_row():
    right, left, below = (0.8, 0.10, 0.9, 0.14), (0.1, 0.12, 0.2, 0.16), (0.0, 0.5, 0.1, 0.6)
    assert language.reading_order([below, right, left]) == [2, 1, 0]


def test_reading_order_does_not_depend_on_the_order_given():
    rng = random.Random(1)
    boxes = [(x, y, x + 0.1, y + 0.1) for x, y in ((rng.random(), rng.random()) for _ in range(10))]
    ordered = [boxes[i] for i in language.reading_order(boxes)]
    rng.shuffle(boxes)
    assert [boxes[i] for i in language.reading_order(boxes)] == ordered


def test_phrases_name_the_object():
    rng = random.Random(2)
    frames = {tuple(re.split(r"\{.\}", template)) for template, _ in language.PHRASES} | {("a ", ""), ("an ", "")}
    for index in range(len(load_objects())):
        for _ in range(20):
            text = language.phrase(rng, language.name_pair(rng, index)).lower()
            fitting = [(start, end) for start, end in frames if text.startswith(start) and text.endswith(end)]
            named = [text[len(start) : len(text) - len(end)] for start, end in fitting]
            assert index in map(index_of, named), text


def test_phrases_vary_as_people_type():
    rng = random.Random(3)
    seen = {language.phrase(rng, language.name_pair(rng, BANANA)) for _ in range(2000)}
    assert {"banana", "bananas", "a banana", "the bananas", "all bananas", "every banana", "Banana", "BANANA"} <= seen


def test_article_fits_and_things_without_singular_have_none():
    rng = random.Random(4)
    names = ("umbrella", "unicorn", "hourglass", "scissors", "pair of scissors", "fish", "grapes")
    phrases = {language.phrase(rng, (name, pluralize(name))).lower() for name in names for _ in range(200)}
    assert {"an umbrella", "a unicorn", "an hourglass", "scissors", "a pair of scissors", "a fish"} <= phrases
    assert not {"a umbrella", "a scissors", "an unicorn", "a grapes"} & phrases


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_unknown_words_are_in_no_vocabulary(split):
    words = language.unknown_words(split)
    assert len(words) >= 100
    assert not [word for word in words if index_of(word) is not None or index_of(pluralize(word)) is not None]


def test_held_out_words_are_never_trained_on():
    assert not set(language.unknown_words("train")) & set(language.unknown_words("held_out"))
    invented = {s: {language.nonsense_word(random.Random(i), s) for i in range(300)} for s in ("train", "held_out")}
    assert not invented["train"] & invented["held_out"]
    assert not [word for words in invented.values() for word in words if index_of(word) is not None]


def test_unknown_words_that_name_an_object_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "unknown.txt"
    path.write_text("toothbrush, aubergine\n", encoding="utf-8")
    monkeypatch.setattr(language, "UNKNOWN_FILE", path)
    with pytest.raises(ValueError, match="aubergine"):
        language.unknown_words.__wrapped__("train")


@pytest.mark.parametrize("ask", [language.count_question, language.existence_question])
@pytest.mark.parametrize("pair", [("umbrella", "umbrellas"), ("scissors", "scissors"), ("fish", "fish")])
def test_questions_name_the_thing_in_good_english(ask, pair):
    rng = random.Random(4)
    for _ in range(200):
        question = ask(rng, pair).lower()
        assert pair[0] in question
        assert not re.search(r"\ba (umbrella|scissors)\b|\ban scissors\b|\bis (there )?(any )?scissors\b", question)
        assert "{" not in question


@pytest.mark.parametrize("templates", [language.TOTAL_QUESTIONS, language.LIST_QUESTIONS])
def test_questions_about_everything_are_worded_in_many_ways(templates):
    rng = random.Random(5)
    assert len({language.ask(rng, templates).lower().rstrip("?.") for _ in range(500)}) >= 12


def test_same_seed_same_words():
    def said(seed: int) -> list[str]:
        rng = random.Random(seed)
        pair = language.unknown_pair(rng, "train")
        return [language.phrase(rng, language.name_pair(rng, DOG)), language.phrase(rng, pair),
                language.count_question(rng, pair), language.existence_question(rng, pair),
                language.ask(rng, language.TOTAL_QUESTIONS), language.ask(rng, language.LIST_QUESTIONS)]  # fmt: skip

    assert said(7) == said(7)
    assert said(7) != said(8)
