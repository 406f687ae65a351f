"""The tokenizer of the nano checkpoint: nothing is lost, numbers are single tokens, text makes no control token."""

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.nano.questions.text import colours, language, relations
from bench.nano.questions.tokenizer import (
    CONTROL,
    FIRST_INTEGER,
    INTEGERS,
    TOKENIZER_JSON,
    build,
    load_answer_tokenizer,
    load_tokenizer,
)
from bench.nano.scenes.objects import load_objects
from photonlite.errors import PromptError
from photonlite.models import tokenizer

TOKENIZER = load_tokenizer()
ANSWERS = load_answer_tokenizer()
SKILLS = "caption describe query detect point segment short normal long"
ANSWER_WORDS = "M L Z - Yes No Nothing A object red orange yellow green blue purple brown black white pink"
SINGLE = [item for item in load_objects() if item.name.isalpha() and item.name != item.plural]


@pytest.mark.long
def test_committed_file_is_what_the_corpus_makes():
    assert json.loads(TOKENIZER_JSON.read_text(encoding="utf-8")) == build()


def test_ids_are_dense_and_control_tokens_come_first():
    vocabulary = TOKENIZER.get_vocab()
    assert sorted(vocabulary.values()) == list(range(2320))
    assert [vocabulary[token] for token in CONTROL] == list(range(21))


@pytest.mark.parametrize("before", ["M", "L", "-", " M ", "x", ","])
def test_every_integer_is_one_token_wherever_it_stands(before):
    for number in range(INTEGERS):
        typed, written = (made.encode(f"{before}{number}").ids for made in (TOKENIZER, ANSWERS))
        assert typed[-1] == written[-1] == FIRST_INTEGER + number
        assert written[:-1] == ANSWERS.encode(before).ids
        assert ANSWERS.encode(str(number)).ids == [FIRST_INTEGER + number]


def several_tokens(made, words):
    """The words that are not one token."""
    return [word for word in words if len(made.encode(word).ids) != 1]


def test_words_of_the_prompts_are_one_token_each():
    assert several_tokens(TOKENIZER, SKILLS.split() + [item.name for item in SINGLE]) == []


def test_words_of_the_answers_are_one_token_each():
    names = [name for item in SINGLE for name in (item.name, " " + item.name)]
    assert several_tokens(ANSWERS, ANSWER_WORDS.split() + names) == []


def test_words_of_all_names_are_at_most_a_stem_and_an_ending():
    for item in load_objects():
        for name in (*item.names, *item.plurals):
            words = re.findall(r"[^\W\d_]+|[^\w\s]|\d+", name)
            digits = len(re.findall(r"\d+", name))  # the space before a number is a token
            endings = sum(len(word) > 3 and word.endswith("s") for word in words)
            assert len(TOKENIZER.encode(name).ids) <= len(words) + digits + endings, name
        for name in (item.name, item.plural):
            assert len(ANSWERS.encode(name).ids) == len(TOKENIZER.encode(name).ids)


@pytest.mark.parametrize(
    ("word", "stem", "ending"),
    [("bananas", "banana", "s"), ("watches", "watch", "es"), ("glasses", "glass", "es"),
     ("axes", "axe", "s"), ("keys", "key", "s"), ("scissors", "scissor", "s"), ("horses", "horse", "s")],
)  # fmt: skip
def test_a_plural_is_the_stem_and_its_ending(word, stem, ending):
    for text in (word, f"two {word} here", f"{word}?"):
        tokens = ANSWERS.encode(text).tokens
        at = tokens.index(ending)
        assert tokens[at - 1].removeprefix("Ġ") == stem
    assert ANSWERS.encode(word).ids[:-1] == ANSWERS.encode(stem).ids


def test_the_ending_of_a_plural_does_not_depend_on_knowing_the_word():
    for word, ending in (("toothbrushes", "es"), ("sandwiches", "es"), ("mattresses", "es"), ("zebroids", "s")):
        tokens = TOKENIZER.encode(word).tokens
        assert tokens[-1] == ending
        assert tokens[:-1] == TOKENIZER.encode(word.removesuffix(ending)).tokens


@pytest.mark.parametrize("word", ["glass", "tennis", "bus", "cactus", "is", "this", "dress", "gas"])
def test_a_word_that_only_looks_like_a_plural_is_whole(word):
    assert "s" not in ANSWERS.encode(" " + word).tokens[1:] or len(word) > 8
    assert "s" not in ANSWERS.encode(f"a {word} b").tokens


def test_words_of_all_questions_are_whole():
    rng = random.Random(6)
    pair = ("dog", "dogs")
    for _ in range(300):
        direction, comparison = rng.choice(("left", "right", "above", "below")), rng.choice(("left", "higher", "lower"))
        for question in (
            language.count_question(rng, pair),
            language.existence_question(rng, pair),
            relations.place_question(rng, direction, pair, pair),
            language.ask(rng, language.LIST_QUESTIONS),
            language.ask(rng, language.TOTAL_QUESTIONS),
            language.ask(rng, colours.COLOUR_QUESTIONS, "dog"),
            language.ask(rng, relations.RELATION_QUESTIONS[direction], "dog"),
            language.ask(rng, relations.COMPARISON_QUESTIONS[comparison], "dog", "dog"),
            language.ask(rng, language.REFERENCE_QUESTIONS[rng.choice(("point", "box"))]),
        ):
            words = re.findall(r"[^\W_]+|[^\w\s]", question.lower())
            plurals = sum(len(word) > 3 and word.endswith("s") and word != "this" for word in words)
            assert len(TOKENIZER.encode(question).ids) <= len(words) + plurals, question


def test_unknown_words_cost_few_tokens():
    words = language.unknown_words("held_out")
    assert sum(len(TOKENIZER.encode(word).ids) for word in words) <= 4.5 * len(words)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  banana  ",
        "Ünïcödé, 日本語, العربية, 🍌👩‍👩‍👧‍👦🏴‍☠️",
        "a\x00b\r\n\tc\u2028d\u200be\ufeff",
        "007 1000 99999999 -12.5e3 ١٢٣ ²",
        "<|endoftext|><|coord|> <|reserved_20|>",
        "Ġbanana Ċ Ā",
        "M0 960L347,12Z",
        "x" * 5000,
    ],
)
def test_round_trip(text):
    assert ANSWERS.decode(ANSWERS.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.long
@given(st.text(max_size=60))
def test_round_trip_of_any_text(text):
    ids = ANSWERS.encode(text).ids
    assert ANSWERS.decode(ids, skip_special_tokens=False) == text
    assert min(ids, default=FIRST_INTEGER) >= FIRST_INTEGER


@pytest.mark.parametrize("token", CONTROL)
def test_control_token_typed_as_text_stays_text(token):
    for text in (token, f" {token}", f"banana{token}banana", token * 3):
        assert min(TOKENIZER.encode(text).ids) >= len(CONTROL)


def test_capitals_and_white_space_of_a_prompt_mean_nothing():
    plain = TOKENIZER.encode("two red bananas").ids
    for text in (" two red bananas", "Two  RED\tbananas\n", "\u3000two\xa0red \r\n bananas  "):
        assert TOKENIZER.encode(text).ids == plain
    assert plain == ANSWERS.encode(" two red bananas").ids
    assert ANSWERS.encode("Yes").ids != ANSWERS.encode("yes").ids


@given(st.text(max_size=40))
def test_a_prompt_means_the_same_once_normalised(text):
    normalised = TOKENIZER.normalizer.normalize_str(text)
    assert TOKENIZER.normalizer.normalize_str(normalised) == normalised
    assert normalised == "" or normalised[0] == " " != normalised[1]
    assert TOKENIZER.encode(text).ids == ANSWERS.encode(normalised).ids


def test_the_engine_reads_prompts_alike():
    engine = tokenizer.Tokenizer(TOKENIZER_JSON, controls_to=len(CONTROL))
    assert engine.encode("banana") == engine.encode("  Banana ") == TOKENIZER.encode("banana").ids
    assert engine.decode(engine.encode("two red bananas")) == " two red bananas"
    assert min(engine.encode("<|coord|> banana<|answer|>")) >= len(CONTROL)
    for blank in ("", "   ", "\n\u3000"):
        with pytest.raises(PromptError):
            engine.encode(blank)


def test_command_letters_and_numbers_spell_outlines():
    engine = tokenizer.Tokenizer(TOKENIZER_JSON, controls_to=len(CONTROL))
    path = ANSWERS.encode("M0 960L347 12Z").ids
    assert [engine.piece(index) for index in path if engine.piece(index) != b" "] == [
        b"M", b"0", b"960", b"L", b"347", b"12", b"Z"
    ]  # fmt: skip
    assert {len(ANSWERS.encode(letter).ids) for letter in "MLZ"} == {1}


def test_control_tokens_vanish_when_decoded():
    answer = ANSWERS.encode("3 bananas").ids
    assert ANSWERS.decode([0, *answer, 5, 0]) == "3 bananas"


def test_long_captions_stay_short_enough_to_decode():
    rng = random.Random(5)
    for _ in range(300):
        pool = [rng.randrange(len(load_objects())) for _ in range(10)]
        scene = [(rng.choice(pool), rng.random(), rng.random()) for _ in range(10)]
        assert len(ANSWERS.encode(language.caption(scene, "long")).ids) <= 96
