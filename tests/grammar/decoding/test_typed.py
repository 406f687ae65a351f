import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photonlite.errors import GrammarError
from photonlite.grammar.automata.alphabet import BOX
from photonlite.grammar.automata.dfa import compile_dfa
from photonlite.grammar.decoding.typed import TypedGrammar
from photonlite.request import Allowed, Token
from tests.grammar.reference import PATTERNS, text
from tests.grammar.vocabularies import COORDINATE, END, EVERYTHING, SIZE

LIST = r"\[(?:ab(?:, ?ab)*)?\]"


def typed(pattern: str, budget: int) -> TypedGrammar:
    return TypedGrammar(EVERYTHING.automaton(compile_dfa(pattern, native=True)), budget)


def token(text: str) -> int:
    return EVERYTHING.pieces.index(text.encode())


def write(grammar: TypedGrammar, *texts: str) -> TypedGrammar:
    for each in texts:
        grammar.accept(Token(token(each)))
    return grammar


def test_an_answer_is_written_token_by_token() -> None:
    grammar = write(typed(LIST, 20), "[", "ab", ", ", "a", "b")

    assert grammar.allowed.permits(token(","))
    assert grammar.allowed.permits(token("]"))
    assert not grammar.allowed.permits(END)
    with pytest.raises(ValueError, match="not allowed"):
        write(grammar, "a")
    assert write(grammar, "]").finish_reason == "stop"  # nothing may follow: no end id is asked for


def test_the_end_id_ends_what_might_go_on() -> None:
    grammar = write(typed("a+", 20), "a")

    assert grammar.allowed.permits(END)
    assert not grammar.finished
    grammar.accept(Token(END))
    assert grammar.finish_reason == "stop"


def test_the_one_token_that_may_stand_is_forced() -> None:
    grammar = typed("!" + BOX, 9)

    assert grammar.allowed.forced == token("!")
    write(grammar, "!")
    assert grammar.allowed == Allowed((COORDINATE,), coordinate=COORDINATE)
    grammar.accept(Token(COORDINATE, (0.5,)))
    grammar.accept(Token(COORDINATE, (0.5,)))
    assert grammar.allowed == Allowed((SIZE,), size=SIZE)
    grammar.accept(Token(SIZE, (0.1, 0.1)))
    assert grammar.finish_reason == "stop"


def test_a_budget_closes_an_answer_in_time() -> None:
    grammar = write(typed(LIST, 6), "[", "a")

    assert not grammar.allowed.permits(token("]"))
    write(grammar, "b")
    # 3 tokens are left: one more item takes a comma, two letters and the bracket.
    assert grammar.allowed == Allowed((token("]"),))
    wider = write(typed(LIST, 7), "[", "a", "b")
    assert wider.allowed.permits(token(","))
    write(wider, ",", "a", "b")
    assert wider.allowed.forced == token("]")
    assert write(grammar, "]").finish_reason == write(wider, "]").finish_reason == "length"


def test_steady_tokens_are_allowed_while_a_token_is_left_over() -> None:
    grammar = write(typed('"[ab]*"!{3}', 7), '"')  # 6 left, 4 to the end

    assert grammar.allowed.permits(token("ab"))
    write(grammar, "ab", "ab")
    assert grammar.allowed == Allowed((token('"'),))


def test_the_smallest_budget_holds_the_shortest_answer_and_a_smaller_one_is_refused() -> None:
    grammar = typed(LIST, 2)
    write(grammar, "[", "]")
    assert grammar.finish_reason == "length"
    assert write(typed("ab", 2), "a", "b").finish_reason == "stop"  # there is no other answer

    with pytest.raises(GrammarError, match="takes 2 tokens, and 1 are left"):
        typed(LIST, 1)


def test_an_answer_that_ends_with_its_last_token_is_cut_only_if_it_might_have_gone_on() -> None:
    grammar = typed("7+", 2)
    write(grammar, "7")
    assert grammar.allowed == Allowed((END,))
    grammar.accept(Token(END))
    assert grammar.finish_reason == "length"
    assert write(typed("7|77", 3), "7", "7").finish_reason == "stop"


@pytest.mark.long
@settings(max_examples=100, derandomize=True, database=None)
@given(PATTERNS, st.integers(0, 12), st.integers(0, 2**32))
def test_an_answer_that_stopped_does_not_change_with_a_larger_budget(pattern: Any, over: int, seed: int) -> None:
    automaton = EVERYTHING.automaton(compile_dfa(text(pattern), native=False))

    def greedy(budget: int) -> tuple[list[int], str | None]:
        grammar, chosen = TypedGrammar(automaton, budget), list[int]()
        while not grammar.finished and len(chosen) < 60:
            allowed = (index for index in range(EVERYTHING.ids.vocab_size) if grammar.allowed.permits(index))
            # The likeliest token depends on what was written, as a model's does; the end grows likelier.
            weights = random.Random(f"{seed} {chosen}")
            likelihood = [weights.random() for _ in range(EVERYTHING.ids.vocab_size)]
            likelihood[END] += len(chosen) / 10
            chosen.append(max(allowed, key=likelihood.__getitem__))
            grammar.accept(Token(chosen[-1]))
        return chosen, grammar.finish_reason

    cut, reason = greedy(max(1, automaton.shortest + over))
    whole, at_leisure = greedy(10_000)
    assert at_leisure in ("stop", None)
    assert reason == "length" or cut == whole


def test_an_answer_of_nothing_is_over_before_it_begins() -> None:
    assert typed("", 3).finish_reason == "stop"


def test_answers_share_one_automaton_and_not_their_places() -> None:
    automaton = EVERYTHING.automaton(compile_dfa(LIST, native=True))
    one, other = TypedGrammar(automaton, 9), TypedGrammar(automaton, 9)

    write(one, "[", "]")

    assert one.finished
    assert not other.finished
    assert other.allowed.permits(token("["))
