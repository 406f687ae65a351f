import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.grammar.automata.tables import words
from photonlite.grammar.decoding.grammars import (
    ARITY,
    CACHED_ROWS,
    BudgetedGrammar,
    DetectGrammar,
    MaskCache,
    PathIds,
    PointGrammar,
    ReasoningGrammar,
    SegmentGrammar,
    TextGrammar,
    Vocabulary,
)
from photonlite.request import Allowed, Token

END, ANSWER, COORD, SIZE = 0, 3, 5, 6
PAIR = Vocabulary(END, ANSWER, COORD, SIZE, ground_start=7, ground_end=9, any_id_continues=False)
ANY = Vocabulary(
    END,
    ANSWER,
    COORD,
    SIZE,
    ground_start=7,
    ground_end=9,
    any_id_continues=True,
    suppressed_in_answer=(ANSWER,),
    suppressed_in_reasoning=(END, SIZE),
)
M, LINE, CLOSE, MINUS, H = 100, 101, 102, 103, 104
PATH = PathIds(
    commands={M: "M", LINE: "l", CLOSE: "z", H: "H"}, integers={200 + n: n for n in range(5)}, minus=frozenset({MINUS})
)

x = y = Token(COORD, (0.5,))
size = Token(SIZE, (0.2, 0.3))
end = Token(END)


def feed(grammar: BudgetedGrammar, tokens: Sequence[Token | int]) -> BudgetedGrammar:
    for token in tokens:
        grammar.accept(Token(token) if isinstance(token, int) else token)
    return grammar


def test_point_asks_for_x_or_end_then_forces_y() -> None:
    grammar = PointGrammar(PAIR, 10, 5)

    assert grammar.allowed == Allowed((COORD, END), coordinate=COORD, end=END)
    feed(grammar, [x])
    assert grammar.allowed.forced == COORD
    assert grammar.allowed.end is None
    feed(grammar, [y])
    assert grammar.allowed.permits(END)
    assert feed(grammar, [end]).finish_reason == "stop"


def test_detect_forces_y_and_size() -> None:
    grammar = feed(DetectGrammar(PAIR, 10, 5), [x])

    assert (grammar.allowed.forced, grammar.allowed.coordinate, grammar.allowed.size) == (COORD, COORD, None)
    feed(grammar, [y])
    assert (grammar.allowed.forced, grammar.allowed.coordinate, grammar.allowed.size) == (SIZE, None, SIZE)
    feed(grammar, [size])
    assert grammar.allowed.end == END
    assert not grammar.finished


def test_any_id_may_continue_where_the_family_says_so() -> None:
    allowed = DetectGrammar(ANY, 10, 5).allowed

    assert allowed == Allowed(None, coordinate=COORD, end=END)
    assert DetectGrammar(PAIR, 10, 5).allowed.ids == (COORD, END)


def test_an_empty_list_is_possible() -> None:
    for grammar in (PointGrammar(ANY, 10, 5), DetectGrammar(PAIR, 10, 5), SegmentGrammar(PAIR, PATH, 10)):
        assert feed(grammar, [end]).finish_reason == "stop"


def test_max_objects_ends_the_list_without_asking() -> None:
    assert feed(DetectGrammar(PAIR, 100, 2), [x, y, size, x, y]).finish_reason is None
    assert feed(DetectGrammar(PAIR, 100, 2), [x, y, size, x, y, size]).finish_reason == "max_objects"
    assert feed(PointGrammar(PAIR, 100, 1), [x, y]).finish_reason == "max_objects"


def test_the_budget_may_end_an_object_half_way() -> None:
    assert feed(DetectGrammar(PAIR, 5, 9), [x, y, size, x, y]).finish_reason == "length"
    assert feed(TextGrammar(PAIR, 2), [50, 51]).finish_reason == "length"


def test_an_end_on_the_last_token_of_the_budget_is_a_stop() -> None:
    assert feed(TextGrammar(PAIR, 2), [50, END]).finish_reason == "stop"


def test_nothing_follows_the_end() -> None:
    with pytest.raises(ValueError, match="after the end"):
        feed(PointGrammar(PAIR, 10, 5), [end, x])


@pytest.mark.parametrize("tokens", [[size], [x, end], [x, y, x]])
def test_a_token_that_is_not_allowed_is_refused(tokens: list[Token]) -> None:
    with pytest.raises(ValueError, match="not allowed"):
        feed(DetectGrammar(PAIR, 10, 5), tokens)


def test_a_budget_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        TextGrammar(PAIR, 0)


def test_text_suppresses_ids_after_the_first_token_only() -> None:
    grammar = TextGrammar(ANY, 10)

    assert grammar.allowed.permits(ANSWER)
    feed(grammar, [50])
    assert not grammar.allowed.permits(ANSWER)
    assert grammar.allowed.permits(COORD)
    assert grammar.allowed.coordinate is None
    with pytest.raises(ValueError, match="not allowed"):
        feed(grammar, [ANSWER])


def test_what_is_never_in_text_is_not_its_first_token_either() -> None:
    vocabulary = replace(ANY, never_in_text=(60, 61))
    grammar = TextGrammar(vocabulary, 10)
    assert grammar.allowed == Allowed(suppressed=(60, 61))
    assert feed(grammar, [ANSWER]).allowed == grammar.ahead == Allowed(suppressed=(ANSWER, 60, 61))

    reasoning = ReasoningGrammar(vocabulary, 100, 10)
    assert feed(reasoning, [60, ANSWER]).allowed == Allowed(suppressed=(60, 61))


def test_only_words_know_what_is_allowed_whatever_comes_before() -> None:
    words = TextGrammar(ANY, 10)
    for token_id in (ANSWER, 50, COORD):
        ahead = words.ahead
        feed(words, [token_id])
        assert words.allowed == ahead == Allowed(suppressed=(ANSWER,))

    for grammar in (PointGrammar(PAIR, 10, 5), DetectGrammar(ANY, 10, 5), ReasoningGrammar(ANY, 10, 5)):
        assert grammar.ahead is None


def test_reasoning_goes_over_into_an_answer() -> None:
    grammar = ReasoningGrammar(ANY, 100, 10)

    assert grammar.allowed == Allowed(coordinate=COORD)
    feed(grammar, [50])
    assert grammar.allowed == Allowed(suppressed=(END, SIZE), coordinate=COORD)
    feed(grammar, [Token(COORD, (0.1,)), ANSWER])
    assert grammar.allowed == Allowed()  # the first token of an answer
    feed(grammar, [60])
    assert grammar.allowed == Allowed(suppressed=(ANSWER,))
    assert feed(grammar, [END]).finish_reason == "stop"


def test_reasoning_goes_over_into_whatever_answer_it_is_given() -> None:
    answer = PointGrammar(PAIR, 6, 1)
    grammar = feed(ReasoningGrammar(PAIR, 100, 2, answer), [50, 51, ANSWER])

    assert grammar.allowed == answer.allowed
    assert feed(grammar, [x, y]).finish_reason == "max_objects"


def test_an_answer_that_has_ended_before_it_began_ends_with_the_reasoning() -> None:
    over = feed(PointGrammar(PAIR, 6, 1), [END])

    assert feed(ReasoningGrammar(PAIR, 100, 2, over), [50, ANSWER]).finish_reason == "stop"


def test_reasoning_that_reaches_its_limit_is_closed_by_force_and_answered() -> None:
    grammar = feed(ReasoningGrammar(PAIR, 100, 3), [50, 51, 52])

    assert grammar.allowed.forced == ANSWER
    assert feed(grammar, [ANSWER, 60, 61]).finish_reason is None
    assert feed(grammar, [62]).finish_reason == "length"


def test_reasoning_and_answer_share_the_context() -> None:
    assert feed(ReasoningGrammar(PAIR, 3, 10), [50, ANSWER, 60]).finish_reason == "length"


def test_without_suppression_the_end_id_does_not_end_reasoning() -> None:
    assert feed(ReasoningGrammar(PAIR, 100, 10), [50, END, 51]).finish_reason is None


def test_segment_goes_from_box_to_path_to_end() -> None:
    grammar = SegmentGrammar(PAIR, PATH, 100)
    feed(grammar, [x, y, size])

    assert grammar.allowed.ids == (M,)  # a path starts with a move
    feed(grammar, [M, 201])
    assert set(grammar.allowed.ids or ()) == {*PATH.integers, MINUS}  # the second number is missing
    feed(grammar, [MINUS])
    assert set(grammar.allowed.ids or ()) == set(PATH.integers)
    feed(grammar, [202])
    assert set(grammar.allowed.ids or ()) == {*PATH.integers, MINUS, *PATH.commands, END}
    feed(grammar, [CLOSE])
    assert set(grammar.allowed.ids or ()) == {*PATH.commands, END}
    assert feed(grammar, [END]).finish_reason == "stop"


def test_a_command_asks_for_as_many_integers_as_it_takes() -> None:
    grammar = feed(SegmentGrammar(PAIR, PATH, 100), [x, y, size, M, 201, 202, H])

    assert END not in (grammar.allowed.ids or ())
    assert END in (feed(grammar, [203]).allowed.ids or ())


def test_segment_counts_box_and_path_against_one_budget() -> None:
    assert feed(SegmentGrammar(PAIR, PATH, 5), [x, y, size, M, 201]).finish_reason == "length"


@given(st.data())
def test_every_path_that_a_grammar_lets_through_is_whole(data: st.DataObject) -> None:
    grammar = feed(SegmentGrammar(PAIR, PATH, 60), [x, y, size])
    taken: list[int] = []
    while not grammar.finished:
        taken.append(data.draw(st.sampled_from(grammar.allowed.ids)))
        feed(grammar, [taken[-1]])

    if grammar.finish_reason == "stop":
        path = [token for token in taken[:-1] if token != MINUS]
        starts = [index for index, token in enumerate(path) if token in PATH.commands]
        assert starts[0] == 0
        assert path[0] == M
        for start, stop in zip(starts, [*starts[1:], len(path)], strict=True):
            arity, count = ARITY[PATH.commands[path[start]].upper()], stop - start - 1
            assert count == 0 if arity == 0 else count > 0 and count % arity == 0


IDS = st.lists(st.integers(0, 69), min_size=1, unique=True).map(tuple)
ALLOWED = st.one_of(st.builds(Allowed, ids=IDS), st.builds(Allowed, suppressed=IDS), st.just(Allowed()))


def bits(masks: MaskCache, allowed: Allowed, vocab_size: int) -> list[bool]:
    """Bit by bit, as a device reads it; what was in the row before must not matter."""
    row = np.full(words(vocab_size), -1, np.int32)
    masks.fill(allowed, row)
    return [bool(int(row[i // 32]) >> (i % 32) & 1) for i in range(32 * len(row))]


def test_words_hold_the_vocabulary() -> None:
    assert [words(size) for size in (1, 32, 33, 51200)] == [1, 1, 2, 1600]


@given(st.lists(ALLOWED, min_size=1, max_size=4))
def test_bits_say_what_is_permitted_and_nothing_past_the_vocabulary(several: list[Allowed]) -> None:
    masks = MaskCache(70)

    for allowed in (*several, *several):  # the second time from the cache
        assert bits(masks, allowed, 70) == [i < 70 and allowed.permits(i) for i in range(96)]


def test_a_row_that_is_kept_cannot_be_changed_through_what_was_filled() -> None:
    masks, allowed = MaskCache(40), Allowed((3,))
    row = np.zeros(2, np.int32)
    masks.fill(allowed, row)
    row[:] = -1

    assert bits(masks, allowed, 40) == [i == 3 for i in range(64)]


def test_a_new_object_at_a_freed_address_gets_its_own_mask() -> None:
    masks = MaskCache(64)

    for number in range(4 * CACHED_ROWS):
        # Each is freed unless the cache holds it, and the next one may then live at the same address.
        wanted = number % 64
        assert bits(masks, Allowed((wanted,)), 64)[wanted]


def test_the_cache_is_bounded() -> None:
    masks, kinds = MaskCache(64), [Allowed((n % 64,)) for n in range(3 * CACHED_ROWS)]
    row = np.zeros(2, np.int32)
    for index in range(len(kinds)):
        masks.fill(kinds[index], row)

    references = [sys.getrefcount(allowed) for allowed in kinds]

    held = [count > references[0] for count in references]  # the first is long gone
    assert 0 < sum(held) <= CACHED_ROWS
    assert held[-1]


@pytest.mark.parametrize("allowed", [Allowed((3, 64)), Allowed((-1, 2)), Allowed(suppressed=(64,))])
def test_ids_that_do_not_exist_are_refused(allowed: Allowed) -> None:
    with pytest.raises(ValueError, match="vocabulary of 64"):
        MaskCache(64).fill(allowed, np.zeros(2, np.int32))
