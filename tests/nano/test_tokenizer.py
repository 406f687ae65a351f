"""The tokenizer of the nano checkpoint: nothing is lost, numbers are single tokens, text makes no control token."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.nano import language
from bench.nano.objects import load_objects
from bench.nano.tokenizer import (
    CONTROL,
    FIRST_INTEGER,
    INTEGERS,
    TOKENIZER_JSON,
    build,
    load_answer_tokenizer,
    load_tokenizer,
)

TOKENIZER = load_tokenizer()
ANSWERS = load_answer_tokenizer()
WORDS = "caption describe query detect point segment short normal long M L Z - Yes No"


def test_committed_file_is_what_the_corpus_makes():
    assert json.loads(TOKENIZER_JSON.read_text(encoding="utf-8")) == build()


def test_ids_are_dense_and_control_tokens_come_first():
    vocabulary = TOKENIZER.get_vocab()
    assert sorted(vocabulary.values()) == list(range(1920))
    assert [vocabulary[token] for token in CONTROL] == list(range(21))


@pytest.mark.parametrize("before", ["", " ", "M", "L", "-", " M ", "x", ","])
def test_every_integer_is_one_token_wherever_it_stands(before):
    for number in range(INTEGERS):
        ids = TOKENIZER.encode(f"{before}{number}").ids
        assert ids[-1] == FIRST_INTEGER + number
        assert ids[:-1] == TOKENIZER.encode(before).ids


@pytest.mark.parametrize(
    "word",
    WORDS.split()
    + [f" {item.name}" for item in load_objects() if item.name.isalpha()]
    + [f" {item.plural}" for item in load_objects() if item.plural.isalpha()],
)
def test_word_of_the_prompts_and_captions_is_one_token(word):
    assert len(ANSWERS.encode(word).ids) == 1


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


@given(st.text(max_size=60))
def test_round_trip_of_any_text(text):
    ids = ANSWERS.encode(text).ids
    assert ANSWERS.decode(ids, skip_special_tokens=False) == text
    assert min(ids, default=FIRST_INTEGER) >= FIRST_INTEGER


@pytest.mark.parametrize("token", CONTROL)
def test_control_token_typed_as_text_stays_text(token):
    for text in (token, f" {token}", f"banana{token}banana", token * 3):
        assert min(TOKENIZER.encode(text).ids) >= len(CONTROL)


def test_capitals_of_a_prompt_mean_nothing():
    assert TOKENIZER.encode(" BaNANAS").ids == TOKENIZER.encode(" bananas").ids == ANSWERS.encode(" bananas").ids
    assert ANSWERS.encode("Yes").ids != ANSWERS.encode("yes").ids


def test_control_tokens_vanish_when_decoded():
    answer = TOKENIZER.encode("3 bananas").ids
    assert TOKENIZER.decode([0, *answer, 5, 0]) == "3 bananas"


def test_long_captions_stay_short_enough_to_decode():
    rng = random.Random(5)
    for _ in range(300):
        pool = [rng.randrange(len(load_objects())) for _ in range(10)]
        scene = [(rng.choice(pool), rng.random(), rng.random()) for _ in range(10)]
        assert len(ANSWERS.encode(language.caption(scene, "long")).ids) <= 96
