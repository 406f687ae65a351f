import math
import pickle
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.automata import builder as module
from photonlite.grammar.automata.alphabet import BOX
from photonlite.grammar.automata.builder import FEW, TokenSetWriter, build_automaton
from photonlite.grammar.automata.dfa import compile_dfa
from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.automata.trie import CLOSING, OPENING, STEADY
from photonlite.grammar.decoding.automaton import Automaton, TokenBytes
from photonlite.grammar.decoding.grammars import MaskCache
from photonlite.grammar.decoding.typed import TypedGrammar
from photonlite.request import Allowed, Token
from tests.grammar.reference import PATTERNS, Matcher, text
from tests.grammar.vocabularies import COORDINATE, END, EVERYTHING, SINGLES, SIZE, VOCABULARIES, Vocabulary, follow

PLENTY = 10_000


def listed(allowed: Allowed, vocab_size: int) -> set[int]:
    if allowed.mask is None:
        return {index for index in range(vocab_size) if allowed.permits(index)}
    bits = np.unpackbits(allowed.mask.astype("<i4").view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def built(pattern: str, vocabulary: Vocabulary = EVERYTHING, *, native: bool = True) -> Automaton:
    return vocabulary.automaton(compile_dfa(pattern, native=native))


def against_the_reference(pattern: Any, vocabulary: Vocabulary, budget: int | None, seed: int) -> None:
    """Write one answer at random, and compare what is allowed at each step with every token of the vocabulary."""
    draw, matcher = random.Random(seed), Matcher(pattern)
    automaton = built(text(pattern), vocabulary, native=False)
    over = PLENTY if budget is None else budget
    # An answer of no token at all exists, a budget of none does not.
    grammar, written = TypedGrammar(automaton, max(1, automaton.shortest + over)), b""
    steps, limited = 0, False
    while not grammar.finished:
        allowed = listed(grammar.allowed, vocabulary.ids.vocab_size)
        wanted = {index for index in vocabulary.spelled() if matcher.permits(written + vocabulary.pieces[index])}
        wanted |= {END} if matcher.accepts(written) else set()
        assert allowed <= wanted
        assert allowed == wanted or (budget is not None)
        limited |= allowed != wanted
        assert allowed
        if budget is None and steps >= 6:
            return
        chosen = draw.choice(sorted(allowed))
        grammar.accept(Token(chosen))
        written, steps = written + vocabulary.letters(chosen), steps + 1
    assert grammar.finish_reason == ("length" if limited else "stop")
    assert matcher.accepts(written)
    assert steps <= automaton.shortest + over


@pytest.mark.long
@settings(max_examples=60, derandomize=True, database=None)
@given(PATTERNS, VOCABULARIES, st.integers(0, 2**32))
def test_allowed_is_what_the_reference_permits_token_by_token(pattern: Any, vocabulary: Vocabulary, seed: int) -> None:
    against_the_reference(pattern, vocabulary, None, seed)


@pytest.mark.long
@settings(max_examples=60, derandomize=True, database=None)
@given(PATTERNS, VOCABULARIES, st.integers(0, 30), st.integers(0, 2**32))
def test_every_answer_is_complete_within_its_budget(pattern: Any, vocabulary: Vocabulary, over: int, seed: int) -> None:
    against_the_reference(pattern, vocabulary, over, seed)


@pytest.mark.slow
@settings(max_examples=500, derandomize=True, database=None)
@given(PATTERNS, VOCABULARIES, st.none() | st.integers(0, 30), st.integers(0, 2**32))
def test_thousands_of_patterns(pattern: Any, vocabulary: Vocabulary, over: int | None, seed: int) -> None:
    against_the_reference(pattern, vocabulary, over, seed)


NATIVE = r'\{"box": ?' + BOX + r'(?:,"text":"[^"]{0,9}")?\}|"[ab]*"|' + "(?:" + BOX + "|null){2}"


@pytest.mark.long
@pytest.mark.parametrize("pattern", [NATIVE, "a*", "(?:ab|a{60}){1,3}", '"(?:[^"]){0,90}"', "é+|😀", "(?:a|b)*7{3}"])
def test_the_rows_of_every_state_are_right(pattern: str) -> None:
    """All three sets, worked out token by token from the tables."""
    dfa = compile_dfa(pattern, native=True)
    automaton = built(pattern)
    tables = automaton.tables

    for state in range(len(dfa.delta)):
        after = {index: follow(dfa, state, EVERYTHING.letters(index)) for index in EVERYTHING.permitted(dfa, state)}
        gain = {
            index: (0 if index == END else int(tables.distance[target])) - int(tables.distance[state])
            for index, target in after.items()
        }
        rows_of = [set(tables.rows.ids(row)) for row in tables.row_of[state]]
        assert rows_of == [{index for index, more in gain.items() if more < most} for most in (math.inf, 1, 0)]
        assert tables.longer[state] == max([0, *gain.values()])
        assert all(automaton.after(state, index) == target for index, target in after.items() if index != END)


def test_distance_is_the_least_number_of_tokens_that_end_an_answer() -> None:
    assert built("abab").shortest == 4
    assert built("a|abab").shortest == 2  # the letter and the end, as the answer might go on
    assert built("a*").shortest == 1
    assert built(f"{BOX}!").shortest == 4
    assert built("é").shortest == 2


def test_a_vocabulary_without_some_bytes_leaves_out_what_it_cannot_finish() -> None:
    few = Vocabulary((b"a", b"b", b"c", b"ax", b"xy", b"bx"))

    automaton = built("axy|abc|bx+", few)  # no x by itself: `ax` has no way out, byte by byte
    allowed = automaton.allowed(automaton.start, PLENTY)

    assert listed(allowed, few.ids.vocab_size) == {few.pieces.index(b"a")}
    with pytest.raises(GrammarError, match="no tokens for the single bytes 0x78"):
        built("ax", few)


def test_an_answer_ends_where_no_continuation_can_be_spelled() -> None:
    few = Vocabulary((b"a", b"ax"))

    automaton = built("a|ax", few)

    assert automaton.shortest == 1 + 1  # `ax` is a way to go on
    assert built("a|axx", few).shortest == 1


def test_special_ids_never_stand_for_their_bytes() -> None:
    pieces = (b"a", b"b", b"c", *SINGLES)
    vocabulary = Vocabulary(SINGLES)
    vocabulary.trie = type(vocabulary.trie)(pieces)
    ids = SpecialIds(end=0, coordinate=1, size=2, vocab_size=len(pieces))

    automaton = Automaton(build_automaton(compile_dfa("[abc]d", native=True), vocabulary.trie, ids), TokenBytes(pieces))
    allowed = automaton.allowed(automaton.start, PLENTY)

    assert listed(allowed, len(pieces)) == {3 + byte for byte in b"abc"}


def test_boxes_need_the_ids_that_carry_them() -> None:
    bare = SpecialIds(end=0, coordinate=None, size=None, vocab_size=EVERYTHING.ids.vocab_size)

    with pytest.raises(GrammarError, match="no coordinates"):
        build_automaton(compile_dfa(BOX, native=True), EVERYTHING.trie, bare)
    with pytest.raises(GrammarError, match="no sizes"):
        build_automaton(compile_dfa(BOX, native=True), EVERYTHING.trie, SpecialIds(0, 1, None, bare.vocab_size))
    assert build_automaton(compile_dfa("a", native=True), EVERYTHING.trie, bare).distance.max() == 1


def test_coordinate_and_size_ids_are_given_only_where_allowed() -> None:
    automaton = built(f"(?:{BOX}|[ab]{{40}})")
    first = automaton.allowed(automaton.start, PLENTY)
    second = automaton.allowed(automaton.after(automaton.start, COORDINATE), PLENTY)
    third = automaton.allowed(automaton.after(automaton.after(automaton.start, COORDINATE), COORDINATE), PLENTY)

    assert (first.coordinate, first.size, first.forced) == (COORDINATE, None, None)
    assert (second.coordinate, second.size, second.forced) == (COORDINATE, None, COORDINATE)
    assert (third.coordinate, third.size, third.forced) == (None, SIZE, SIZE)
    text_only = automaton.allowed(automaton.after(automaton.start, EVERYTHING.pieces.index(b"a")), PLENTY)
    assert (text_only.coordinate, text_only.size) == (None, None)


def test_allowed_objects_are_shared() -> None:
    automaton = built('"[^"]*"')
    state = automaton.after(automaton.start, EVERYTHING.pieces.index(b'"'))

    assert automaton.allowed(state, PLENTY) is automaton.allowed(state, PLENTY - 1)
    assert automaton.allowed(state, PLENTY).mask is not None


def test_an_automaton_survives_pickling() -> None:
    automaton = built(NATIVE)
    first = automaton.allowed(automaton.start, PLENTY)

    copy = Automaton(pickle.loads(pickle.dumps(automaton.tables)), automaton.pieces)

    again, size = copy.allowed(copy.start, PLENTY), EVERYTHING.ids.vocab_size
    assert listed(again, size) == listed(first, size)


def test_rows_of_long_answers_are_few() -> None:
    automaton = built('"[^"]{0,400}"').tables

    assert len(automaton.delta) > 400
    assert len(automaton.rows) < len(automaton.delta)
    assert not np.isin(automaton.row_of, range(len(automaton.rows)), invert=True).any()


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STEPS", 1000)
    with pytest.raises(GrammarTooLargeError, match="over 1000 pairs"):
        built('"[^"]{0,9}"')
    monkeypatch.undo()
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(GrammarTooLargeError, match="MiB"):
        built('"[^"]{0,90}"')


def test_token_sets_are_stored_once_as_lists_or_bits() -> None:
    writer = TokenSetWriter(100)
    many = np.arange(0, 2 * FEW + 2, 2, dtype=np.int32)
    kinds = np.full(len(many), OPENING, np.uint8)
    kinds[:3], kinds[3:5] = STEADY, CLOSING
    places = [writer.add(many, kinds), writer.add(many[::-1].copy(), kinds[::-1].copy())]
    places.append(writer.add(np.array([9, 3], np.int32), np.array([CLOSING, CLOSING], np.uint8)))

    rows, row_of = writer.sets(), writer.numbered(np.array(places, np.int32))

    assert [rows.ids(row) for row in row_of[0]] == [tuple(many.tolist()), (0, 2, 4, 6, 8), (6, 8)]
    assert (row_of[0] == row_of[1]).all()
    assert [rows.ids(row) for row in row_of[2]] == [(3, 9)] * 3
    assert len(rows) == 4
    assert (len(rows.masks), rows.mask(row_of[2, 0])) == (1, None)


def test_bits_are_laid_out_as_steps_upload_them() -> None:
    writer, out = TokenSetWriter(100), np.zeros(4, np.int32)
    ids = np.arange(7, 7 + FEW + 1, dtype=np.int32)
    (place, *_) = writer.add(ids, np.full(len(ids), STEADY, np.uint8))
    row = int(writer.numbered(np.array(place))[()])
    MaskCache(100).fill(Allowed(tuple(ids.tolist())), out)

    mask = writer.sets().mask(row)

    assert mask is not None
    assert (mask == out).all()
