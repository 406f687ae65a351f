import json
from typing import Any

import pytest

from photonlite.errors import GrammarError, SchemaError
from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.compiler.worker import compile_with
from photonlite.grammar.decoding.automaton import Automaton, TokenBytes
from photonlite.grammar.spec import GrammarSpec, Kind

BYTES = [bytes([byte]) for byte in range(256)]
PIECES = [*BYTES, b"", b"", b"", b'":', b"ab"]
END, COORDINATE, SIZE = 256, 257, 258
IDS = SpecialIds(END, COORDINATE, SIZE, len(PIECES))


@pytest.fixture(scope="module")
def build() -> Any:
    return compile_with(PIECES, IDS)


def permits(automaton: Automaton, *ids: int) -> bool:
    """Whether these ids, and then the end if it needs one, are an answer."""
    state = automaton.start
    for index in ids:
        allowed = automaton.allowed(state, 10**6)
        if not allowed.permits(index):
            return False
        state = automaton.after(state, index)
    return automaton.is_complete(state) or automaton.allowed(state, 10**6).permits(END)


def whole(build: Any, kind: Kind, source: str = "") -> Automaton:
    return Automaton(build(GrammarSpec(kind, source)), TokenBytes(PIECES))


def test_a_pattern_becomes_an_automaton(build: Any) -> None:
    automaton = whole(build, "regex", "(ab)+")

    assert permits(automaton, *b"abab")
    assert permits(automaton, 260, *b"ab")
    assert not permits(automaton, *b"aba")


def test_a_pattern_of_a_user_knows_no_numbers_of_the_model(build: Any) -> None:
    automaton = whole(build, "regex", "a.?")

    assert permits(automaton, *b"ab")
    assert not permits(automaton, ord("a"), COORDINATE)


def test_a_schema_becomes_an_automaton_with_numbers_of_the_model(build: Any) -> None:
    schema = {"type": "object", "properties": {"p": {"type": "object", "format": "point"}}, "required": ["p"]}
    automaton = whole(build, "schema", json.dumps(schema))

    assert permits(automaton, *b'{"p":', COORDINATE, COORDINATE, *b"}")
    assert permits(automaton, *b'{"p', 259, COORDINATE, COORDINATE, *b"}")
    assert not permits(automaton, *b'{"p":', COORDINATE, *b"}")
    assert not permits(automaton, *b'{"p":', SIZE)


def test_any_object_needs_no_source(build: Any) -> None:
    automaton = whole(build, "object")

    assert permits(automaton, *b'{"a":[1,{"b":null}]}')
    assert not permits(automaton, *b"[1]")


def test_compile_errors_are_typed(build: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        build(GrammarSpec("schema", '{"type": "integer", "multipleOf": 3}'))
    assert caught.value.keyword == "multipleOf"
    with pytest.raises(GrammarError):
        build(GrammarSpec("regex", "("))
