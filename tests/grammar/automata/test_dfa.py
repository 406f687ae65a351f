import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.automata import dfa as module
from photonlite.grammar.automata.alphabet import BOX, POINT, RESERVED
from photonlite.grammar.automata.dfa import columns_of, compile_dfa, distances, edges_of, refine
from tests.grammar.vocabularies import accepts


def test_the_whole_text_must_match() -> None:
    dfa = compile_dfa("(?:ab)+", native=False)

    assert [accepts(dfa, text) for text in (b"ab", b"abab", b"", b"aba", b"abx")] == [True, True, False, False, False]


def test_bytes_of_characters_are_followed_one_by_one() -> None:
    dfa = compile_dfa("[é😀]", native=False)

    assert accepts(dfa, "é".encode())
    assert accepts(dfa, "😀".encode())
    assert not accepts(dfa, "é".encode()[:1])
    assert not accepts(dfa, b"\xc3\xc3")


def test_letters_that_stand_for_numbers_are_of_native_patterns_only() -> None:
    assert accepts(compile_dfa(f"x{BOX}|{POINT}", native=True), b"x\x04\x04\x05")
    for pattern in (".*", "[^a]*", r"[\x00-\x1f]*", r"\W*", r"[^\w]*", r"\p{Cc}*", r"[\s\S]*"):
        dfa = compile_dfa(pattern, native=False)
        assert not any(accepts(dfa, bytes([letter])) for letter in RESERVED)
        assert (dfa.delta[:, RESERVED] == -1).all()
    assert accepts(compile_dfa(r"[\x00-\x1f]*", native=False), b"\x01\x06\x1f")


@pytest.mark.parametrize("pattern", ["a\x03|b", r"\x02", r"[\x04]", r"a\x{5}", r"\u0003"])
def test_a_pattern_that_spells_such_a_letter_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="control character"):
        compile_dfa(pattern, native=False)


@pytest.mark.parametrize("pattern", ["a)|(?:b", ")(", "a){0}(?:b", "(?x)a # "])
def test_a_pattern_cannot_leave_the_group_around_it(pattern: str) -> None:
    with pytest.raises(GrammarError):
        compile_dfa(pattern, native=False)


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    for pattern in (r"[^\x00-\U0010ffff]", r"a[^\x00-\U0010ffff]b"):
        with pytest.raises(GrammarError, match="matches no text"):
            compile_dfa(pattern, native=False)


def test_the_empty_text_may_be_all_there_is() -> None:
    dfa = compile_dfa("", native=False)

    assert (len(dfa.delta), bool(dfa.accepts[dfa.start])) == (1, True)


def test_states_lead_somewhere_and_are_few() -> None:
    """Copies of one list item end up as one."""
    item = '"[ab]{2}"'
    dfa = compile_dfa(rf"\[(?:{item}(?:,{item})*)?\]", native=True)

    assert len(dfa.delta) == 8
    back = distances(edges_of(dfa.delta)[::-1], [(int(s), 0) for s in np.flatnonzero(dfa.accepts)], len(dfa.delta))
    assert (back >= 0).all()


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STATES", 10)
    with pytest.raises(GrammarTooLargeError, match="23 states, over the limit of 10: about 43 % of it fit"):
        compile_dfa("a{20}", native=True)
    monkeypatch.setattr(module, "MAX_PATTERN", 10)
    with pytest.raises(GrammarTooLargeError, match="11 characters, over the limit of 10"):
        compile_dfa("a" * 11, native=True)


def test_a_pattern_in_no_dialect_is_refused_with_its_text() -> None:
    with pytest.raises(GrammarError, match="cannot be compiled"):
        compile_dfa("(", native=True)
    with pytest.raises(GrammarError):
        compile_dfa("\ud800", native=True)
    with pytest.raises(GrammarError, match="cannot be compiled"):
        compile_dfa(r"\p{Nonsense}", native=False)


def test_distances_come_from_the_nearest_seed() -> None:
    edges = np.array([[0, 1, 2, 4], [1, 2, 3, 3]])

    assert distances(edges, [(0, 0)], 5).tolist() == [0, 1, 2, 3, -1]
    assert distances(edges, [(4, 0), (0, 1)], 5).tolist() == [1, 2, 3, 1, 0]


TARGETS = arrays.arrays(np.int32, (6, 2), elements=st.integers(-1, 5))
GAINS = arrays.arrays(np.int32, (6, 2), elements=st.integers(0, 2))


def behaviour(targets: np.ndarray, gains: np.ndarray, state: int, depth: int) -> object:
    """What can be seen from a state in so many steps."""
    if state < 0:
        return None
    steps = range(targets.shape[1]) if depth else ()
    return tuple(
        (int(gains[state, c]), behaviour(targets, gains, targets[state, c], depth - 1))
        if targets[state, c] >= 0
        else None
        for c in steps
    )


@given(TARGETS, GAINS, st.integers(0, 5))
def test_k_rounds_of_refinement_separate_states_that_differ_within_k_steps(
    targets: np.ndarray, gains: np.ndarray, rounds: int
) -> None:
    classes = np.zeros(6, np.int64)
    for _ in range(rounds):
        classes = refine(classes, targets, gains)

    seen = [behaviour(targets, gains, state, rounds) for state in range(6)]
    for one, other in itertools.combinations(range(6), 2):
        assert (classes[one] == classes[other]) == (seen[one] == seen[other])


@given(arrays.arrays(np.int32, (4, 256), elements=st.integers(-1, 1)))
def test_columns_are_those_of_the_table(delta: np.ndarray) -> None:
    columns, column = columns_of(delta)

    assert (columns[:, column] == delta).all()
    assert len(np.unique(columns, axis=1).T) == columns.shape[1]
