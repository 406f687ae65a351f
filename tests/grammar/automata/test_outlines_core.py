"""What outlines-core does that photonlite does not lean on: each is a reason for a module of its own."""

import json

import pytest
from outlines_core import Guide, Index, Vocabulary, json_schema

from photonlite.grammar.automata.dfa import compile_dfa
from tests.grammar.vocabularies import accepts

BYTES = {bytes([byte]): [byte] for byte in range(256)}


def bare(pattern: str, text: bytes) -> bool:
    """Whether an index over bytes says that a text is complete."""
    index = Index(pattern, Vocabulary(256, BYTES))
    state = index.get_initial_state()
    for byte in text:
        state = index.get_next_state(state, byte)
        if state is None:
            return False
    return index.is_final_state(state)


@pytest.mark.parametrize(("pattern", "text"), [(r"[0-9]+(\.[0-9]+)?", b"7.5"), ("car|car park", b"car park")])
def test_unwrapped_patterns_stop_at_the_first_end(pattern: str, text: bytes) -> None:
    """Thus two letters pin the ends of a pattern."""
    index = Index(pattern, Vocabulary(256, BYTES))
    shorter = text.split(b".")[0].split(b" ")[0]

    state = index.get_initial_state()
    for byte in shorter:
        state = index.get_next_state(state, byte)
    assert index.is_final_state(state)
    assert 256 in index.get_allowed_tokens(state)

    dfa = compile_dfa(pattern, native=False)
    assert accepts(dfa, text)
    assert accepts(dfa, shorter)
    assert not accepts(dfa, text + b".")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 3, "maximum": 4},
        {"type": "integer", "multipleOf": 7},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    ],
)
def test_its_converter_of_schemas_ignores_bounds_in_silence(schema: dict[str, object]) -> None:
    """Thus schemas have a converter of our own, which refuses what it cannot hold an answer to."""
    ignored = {"minimum", "maximum", "multipleOf", "uniqueItems"}
    without = {keyword: value for keyword, value in schema.items() if keyword not in ignored}

    given = json_schema.build_regex_from_schema(json.dumps(schema))

    assert given == json_schema.build_regex_from_schema(json.dumps(without))


def test_its_guide_raises_where_an_answer_ends() -> None:
    """Thus answers are followed through tables of our own."""
    guide = Guide(Index("a", Vocabulary(256, BYTES)))
    guide.advance(ord("a"))

    with pytest.raises(ValueError, match="No next state"):
        guide.advance(256)
