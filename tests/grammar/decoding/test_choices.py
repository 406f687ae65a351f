import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photonlite.errors import GrammarError, GrammarTooLargeError
from photonlite.grammar.decoding.choices import MAX_CHOICES, ChoiceGrammar, ChoiceTrie
from photonlite.request import MAX_SCORED, Allowed, Token

END = 0
YES, NO, NONE = 0, 1, 2
TRIE = ChoiceTrie([((12, 7), YES), ((31,), NO), ((31, 4, 4), NONE), ((9, 12), YES)], END)


def feed(grammar: ChoiceGrammar, *ids: int) -> ChoiceGrammar:
    for index in ids:
        grammar.accept(Token(index))
    return grammar


def test_children_are_listed_and_scored() -> None:
    grammar = ChoiceGrammar(TRIE, 9)

    assert grammar.allowed == Allowed((9, 12, 31), scored=(9, 12, 31))
    feed(grammar, 31)
    assert grammar.allowed == Allowed((END, 4), scored=(END, 4))
    feed(grammar, 4)
    assert grammar.allowed == Allowed((4,))
    assert feed(grammar, 4).finish_reason == "stop"


def test_a_choice_that_others_go_on_from_is_ended_by_the_end_id() -> None:
    assert feed(ChoiceGrammar(TRIE, 9), 31, END).finish_reason == "stop"
    assert feed(ChoiceGrammar(TRIE, 9), 12, 7).finish_reason == "stop"


def test_tokens_outside_the_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="not allowed"):
        feed(ChoiceGrammar(TRIE, 9), 12, 31)


def test_the_tree_lists_children_and_choices() -> None:
    assert (TRIE.shortest, TRIE.longest) == (2, 3)
    assert TRIE.children() == (9, 12, 31)
    assert TRIE.children((31,)) == (END, 4)
    assert TRIE.children((8,)) == TRIE.children((12, 7)) == ()
    assert TRIE.choices() == {YES, NO, NONE}
    assert TRIE.choices((31,)) == {NO, NONE}
    assert TRIE.choices((8, 8)) == frozenset()
    assert [TRIE.choice(ids) for ids in ((12, 7), (31, END), (9, 12), (31, 4), (8,), ())] == [
        YES,
        NO,
        YES,
        None,
        None,
        None,
    ]


def test_a_grammar_begins_behind_its_prefix() -> None:
    grammar = ChoiceGrammar(TRIE, 9, prefix=(31, 4))

    assert grammar.allowed == Allowed((4,))
    assert feed(grammar, 4).finish_reason == "stop"
    assert ChoiceGrammar(TRIE, 9, prefix=(31,)).allowed.scored == (END, 4)
    assert ChoiceGrammar(TRIE, 9, prefix=(12, 7)).finish_reason == "stop"
    with pytest.raises(GrammarError, match="no choice begins"):
        ChoiceGrammar(TRIE, 9, prefix=(12, 31))


def test_a_budget_leaves_choices_out_that_do_not_fit() -> None:
    grammar = ChoiceGrammar(TRIE, 2)

    feed(grammar, 31)
    assert grammar.allowed == Allowed((END,))
    with pytest.raises(GrammarError, match="takes 2 tokens, and 1 are left"):
        ChoiceGrammar(TRIE, 1)
    with pytest.raises(GrammarError, match="takes 2 tokens, and 1 are left"):
        ChoiceGrammar(ChoiceTrie([((1, 2, 3), NO)], END), 1, prefix=(1,))


def test_more_children_than_can_be_scored_are_only_listed() -> None:
    trie = ChoiceTrie([((1 + n, 7), n) for n in range(MAX_SCORED + 1)], END)

    assert ChoiceGrammar(trie, 9).allowed == Allowed(tuple(range(1, MAX_SCORED + 2)))


def test_what_is_allowed_at_a_place_is_made_once() -> None:
    assert ChoiceGrammar(TRIE, 9).allowed is ChoiceGrammar(TRIE, 8).allowed


@pytest.mark.parametrize(
    ("spellings", "message"),
    [
        ([], "nothing to choose"),
        ([((), 0)], "has ids"),
        ([((3, END), 0)], "end id"),
        ([((3, 4), 0), ((3, 4), 1)], "spelled alike"),
    ],
)
def test_overlapping_branches_of_one_of_are_refused(spellings: list[tuple[tuple[int, ...], int]], message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        ChoiceTrie(spellings, END)


def test_thousands_of_choices_and_no_more() -> None:
    many = [((1 + n // 71, 1 + n % 71, 5), n) for n in range(MAX_CHOICES)]

    assert ChoiceTrie(many, END).choices() == frozenset(range(MAX_CHOICES))
    with pytest.raises(GrammarTooLargeError, match="more than 5000"):
        ChoiceTrie([*many, ((999,), MAX_CHOICES)], END)


def test_a_spelling_may_be_longer_than_the_stack_is_deep() -> None:
    trie = ChoiceTrie([((1,) * 5000, 0), ((1,) * 4999, 1)], END)

    assert (trie.shortest, trie.longest) == (5000, 5000)


@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=5).map(tuple), min_size=1, max_size=9, unique=True),
    st.data(),
)
def test_every_answer_is_a_choice_and_every_choice_an_answer(ids: list[tuple[int, ...]], data: st.DataObject) -> None:
    trie = ChoiceTrie([(each, number) for number, each in enumerate(ids)], END)
    budget = data.draw(st.integers(trie.shortest, trie.longest + 2))
    draw = random.Random(data.draw(st.integers(0, 99)))
    grammar, written, limited = ChoiceGrammar(trie, budget), [], False
    while not grammar.finished:
        limited |= set(grammar.allowed.ids or ()) != set(trie.children(written))
        written.append(draw.choice(grammar.allowed.ids or ()))
        feed(grammar, written[-1])

    assert grammar.finish_reason == ("length" if limited else "stop")
    assert trie.choice(written) is not None
    for number, each in enumerate(ids):
        fitting = feed(ChoiceGrammar(trie, trie.longest), *each)
        if not fitting.finished:
            feed(fitting, END)
        assert (fitting.finish_reason, trie.choice(each)) == ("stop", number)


def test_a_tree_without_scores_asks_for_none_and_lists_its_children_once() -> None:
    grammar = ChoiceGrammar(ChoiceTrie([((12, 7), YES), ((31,), NO)], END, scored=False), 9)

    assert grammar.allowed == Allowed((12, 31))
    assert grammar.allowed is grammar.allowed


def test_a_run_goes_to_the_next_fork() -> None:
    trie = ChoiceTrie([((3, 4, 5, 6), YES), ((3, 4, 7), NO)], END)
    grammar = ChoiceGrammar(trie, 9)

    assert grammar.run == (3, 4)
    feed(grammar, 3, 4)
    assert grammar.run == ()
    assert feed(grammar, 5).run == (6,)
