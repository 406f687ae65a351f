import functools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photonlite.errors import GrammarError
from photonlite.grammar.compiler.worker import compile_with
from photonlite.grammar.decoding.automaton import Automaton, TokenBytes
from photonlite.grammar.decoding.typed import JsonPosition, TypedGrammar, UniqueNamesGrammar
from photonlite.grammar.spec import GrammarSpec
from photonlite.request import Allowed, Token
from tests.grammar.vocabularies import SINGLES, Vocabulary

WORDS = (b'a"', b'":', b'","', b',"', b'{"', b'":{"', b'a":0,"a', b'\\"', b'"a"', b"ab", b'b":', b'a":1,"b":', b'""')
VOCABULARY = Vocabulary((*SINGLES, *WORDS, "é".encode(), b'\xa9"'))
PLAIN = Vocabulary(SINGLES)
BUILD = compile_with(VOCABULARY.pieces, VOCABULARY.ids)
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
MAP = {"type": "object", "additionalProperties": DIGIT}
NESTED = {"type": "object", "additionalProperties": MAP}
MIXED = {"type": "object", "properties": {"a": MAP, "b": {"type": "array", "items": MAP}}, "required": ["a", "b"]}
MAPS = {"map": MAP, "nested": NESTED, "mixed": MIXED, "free": {"type": "object"}}


@functools.cache
def compiled(name: str, *, plain: bool = False) -> Automaton:
    pieces = (PLAIN if plain else VOCABULARY).pieces
    build = compile_with(pieces, PLAIN.ids) if plain else BUILD
    return Automaton(build(GrammarSpec("schema", json.dumps(MAPS[name]))), TokenBytes(pieces))


def token(text: str) -> Token:
    return Token(VOCABULARY.pieces.index(text.encode()))


def listed(allowed: Allowed) -> list[int]:
    count = VOCABULARY.ids.vocab_size
    return [index for index in range(count) if allowed.permits(index)]


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs), f"a name comes twice: {pairs}"
    return dict(pairs)


def written(grammar: TypedGrammar, draw: random.Random, favourites: bytes) -> tuple[bytes, int]:
    """Write an answer at random, mostly of a few letters, so that names are alike."""
    text, steps = b"", 0
    while not grammar.finished:
        ids = listed(grammar.allowed)
        liked = [index for index in ids if set(VOCABULARY.pieces[index] or b"?") <= set(favourites)]
        chosen = draw.choice(liked if liked and draw.random() < 0.9 else ids)
        grammar.accept(Token(chosen))
        text, steps = text + VOCABULARY.letters(chosen), steps + 1
    return text, steps


@settings(max_examples=150, derandomize=True, database=None)
@given(st.sampled_from(list(MAPS)), st.booleans(), st.integers(0, 60), st.integers(0, 2**32))
def test_no_name_comes_twice_and_every_answer_ends_in_time(name: str, plain: bool, over: int, seed: int) -> None:
    automaton, draw = compiled(name, plain=plain), random.Random(seed)
    budget = automaton.shortest + over
    text, steps = written(UniqueNamesGrammar(automaton, budget), draw, b'ab0",:{}')

    json.loads(text, object_pairs_hook=unique)
    assert steps <= budget


def test_without_it_names_do_come_twice() -> None:
    """The test above would see it."""
    repeated = 0
    for seed in range(40):
        text, _ = written(TypedGrammar(compiled("map"), 60), random.Random(seed), b'ab0",:{}')
        names = [name for name, _ in json.loads(text, object_pairs_hook=lambda pairs: pairs)]
        repeated += len(set(names)) < len(names)
    assert repeated > 10


@pytest.mark.long
@settings(max_examples=60, derandomize=True, database=None)
@given(st.sampled_from(["map", "nested", "mixed"]), st.integers(0, 2**32))
def test_only_the_tokens_that_repeat_a_name_are_left_out(name: str, seed: int) -> None:
    automaton, draw = compiled(name), random.Random(seed)
    grammar, free = UniqueNamesGrammar(automaton, 500), TypedGrammar(automaton, 500)
    text = b""
    for _ in range(25):
        if grammar.finished:
            break
        for index in set(listed(free.allowed)) ^ set(listed(grammar.allowed)):
            assert repeats(text + VOCABULARY.pieces[index])
        for index in listed(grammar.allowed):
            assert not repeats(text + VOCABULARY.pieces[index])
        liked = [index for index in listed(grammar.allowed) if set(VOCABULARY.pieces[index]) <= set(b'a"0:,{')]
        chosen = Token(draw.choice(liked or listed(grammar.allowed)))
        grammar.accept(chosen)
        free.accept(chosen)
        text += VOCABULARY.letters(chosen.id)


def repeats(text: bytes) -> bool:
    """Whether some beginning of JSON has a name twice in one object, read in the plainest way."""
    open_: list[list[str] | None] = []
    at, expects = 0, False
    while at < len(text):
        letter = chr(text[at])
        if letter == '"':
            end = at + 1
            while end < len(text) and chr(text[end]) != '"':
                end += 2 if chr(text[end]) == "\\" else 1
            if end >= len(text):
                return False
            names = open_[-1] if open_ else None
            if expects and names is not None:
                name = text[at + 1 : end].decode("latin-1")
                if name in names:
                    return True
                names.append(name)
                expects = False
            at = end
        elif letter in "{[":
            open_.append([] if letter == "{" else None)
            expects = letter == "{"
        elif letter in "}]":
            open_.pop()
        elif letter == ",":
            expects = open_[-1] is not None
        at += 1
    return False


def test_a_name_may_share_its_beginning_with_another() -> None:
    grammar = UniqueNamesGrammar(compiled("map"), 100)
    for text in ('{"', "a", '":', "1", ","):
        grammar.accept(token(text))
    grammar.accept(token('"'))

    permitted = grammar.allowed.permits
    assert not any(permitted(token(text).id) for text in ('a"', 'a":0,"a', 'a":1,"b":'))
    assert all(permitted(token(text).id) for text in ("a", '"', '\\"', "ab", 'b":'))
    grammar.accept(token("a"))
    assert not grammar.allowed.permits(token('"').id)
    assert not grammar.allowed.permits(token('":').id)
    assert grammar.allowed.permits(token('b":').id)


def test_names_of_different_objects_may_be_the_same() -> None:
    grammar = UniqueNamesGrammar(compiled("nested"), 100)
    for text in ('{"', "a", '":{"', "a", '":', "1", "}", ","):
        grammar.accept(token(text))
    grammar.accept(token('"'))
    assert not grammar.allowed.permits(token('a"').id)
    grammar.accept(token('b":'))
    grammar.accept(token('{"'))

    assert grammar.allowed.permits(token('a"').id)


def test_the_budget_pays_for_one_more_letter_where_only_a_repeated_name_would_fit() -> None:
    automaton = compiled("map", plain=True)
    words = ["{", '"', "a", '"', ":", "1", ",", '"', "a"]
    grammar = UniqueNamesGrammar(automaton, len(words) + 5)  # behind them: a letter, a quotation mark, `:1}`
    for text in words:
        grammar.accept(token(text))

    assert not grammar.allowed.permits(token('"').id)
    assert grammar.allowed.permits(token("b").id)
    for text in ("b", '"', ":", "1", "}"):
        grammar.accept(token(text))
    assert grammar.finish_reason == "length"


@pytest.mark.parametrize("name", ["", "a", "ab"])
@pytest.mark.parametrize("plain", [True, False])
def test_a_model_that_would_repeat_a_name_for_ever_ends_in_time_under_every_budget(name: str, plain: bool) -> None:
    automaton = compiled("map", plain=plain)
    wanted = b'{"%s":1' % name.encode() + b',"%s":1' % name.encode() * 20
    for budget in range(automaton.shortest, 60):
        grammar, text = UniqueNamesGrammar(automaton, budget), b""
        while not grammar.finished:
            letter = wanted[len(text)] + 3  # single bytes have the first ids behind the special ones
            chosen = letter if grammar.allowed.permits(letter) else listed(grammar.allowed)[0]
            grammar.accept(Token(chosen))
            text += VOCABULARY.letters(chosen)
        json.loads(text, object_pairs_hook=unique)


def test_an_answer_with_room_to_spare_is_not_cut() -> None:
    grammar = UniqueNamesGrammar(compiled("map"), 100)
    for text in ('{"', "a", '":', "1", ",", '"', "ab", '":', "1", "}"):
        grammar.accept(token(text))
    assert grammar.finish_reason == "stop"


def test_a_budget_without_room_for_a_new_name_is_an_error() -> None:
    grammar = UniqueNamesGrammar(compiled("map"), 100)
    every = frozenset(bytes((letter,)) for letter in range(256))
    grammar._position = JsonPosition((every | {b""},), b"", quoted=True)
    grammar._state = automaton_state(b'{"')
    grammar._left = 1 + int(compiled("map").distance(grammar._state))

    with pytest.raises(GrammarError, match="no name fits the budget"):
        _ = grammar.allowed


def automaton_state(text: bytes) -> int:
    automaton = compiled("map")
    state = automaton.start
    for letter in text:
        state = int(automaton.tables.delta[state, automaton.tables.column[letter]])
    return state


@pytest.mark.long
def test_only_schemas_with_open_names_are_watched() -> None:
    closed = {"type": "object", "properties": {"a": DIGIT}}
    assert not BUILD(GrammarSpec("schema", json.dumps(closed))).free_names
    assert not BUILD(GrammarSpec("regex", "a+")).free_names
    assert BUILD(GrammarSpec("object")).free_names
    assert BUILD(GrammarSpec("schema", '{"type":"array"}')).free_names
    assert all(compiled(name).tables.free_names for name in MAPS)
