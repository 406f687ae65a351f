"""Where answers of two engines may differ: numbers within limits, tokens where either may come."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from photonlite.grammar.decoding.grammars import TextGrammar, Vocabulary
from photonlite.request import Request, SamplingSettings, Token
from photonlite.verification.answers import Answer, _OneOf, compare

END = 0
PROMPT = (Token(7), Token(8))


class Reference:
    """Stands for a model that is asked which of two tokens comes."""

    def __init__(self, *scores: float) -> None:
        self.asked: list[Request] = []
        self._scores = scores
        self._session = SimpleNamespace(launch=self.launch)

    def launch(self, task: Any) -> Any:
        self.asked.append(task.request)
        ids = task.request.grammar.allowed.ids
        return SimpleNamespace(result=lambda: SimpleNamespace(tokens=(Token(ids[0], scores=self._scores),)))


def answer_of(*tokens: Token | int, **result: Any) -> Answer:
    grammar = TextGrammar(Vocabulary(end=END, answer=-1, coordinate=-1, size=-1), 9)
    request = Request("query", PROMPT, grammar, 9, SamplingSettings())
    made = tuple(Token(token) if isinstance(token, int) else token for token in tokens)
    return Answer(request, (), made, result)


def verdict(one: Answer, other: Answer, *, exact: bool = True, scores: tuple[float, ...] = (1.0, 0.0)) -> str:
    reference: Any = Reference(*scores)
    return compare(reference, one, other, exact=exact)


def place(value: float, *, mass: float = 0.9, going: float = 1.0) -> Token:
    return Token(5, (value,), going, (mass,))


def test_numbers_may_differ_by_what_other_batches_and_threads_round() -> None:
    boxes = answer_of(place(0.5, mass=0.9, going=0.99), END)

    assert verdict(boxes, answer_of(place(0.5, mass=0.90001, going=0.99001), END)) == "same"
    assert verdict(boxes, answer_of(place(0.5, mass=0.87, going=0.99), END)) == "differs"
    assert verdict(boxes, answer_of(place(0.5, mass=0.87, going=0.99), END), exact=False) == "same"
    assert verdict(boxes, answer_of(place(0.5, mass=float("nan"), going=0.99), END), exact=False) == "differs"


def test_texts_may_part_where_the_reference_finds_either_token_as_good() -> None:
    one, other = answer_of(3, 4, 4, END), answer_of(3, 6, END)
    reference: Any = Reference(0.5001, 0.4999)

    assert compare(reference, one, other, exact=True) == "tie"
    assert [(asked.prompt, asked.grammar.allowed.ids) for asked in reference.asked] == [((*PROMPT, Token(3)), (4, 6))]
    assert verdict(one, other, scores=(0.6, 0.4)) == "differs"
    assert verdict(one, other, scores=(0.6, 0.4), exact=False) == "tie"
    assert verdict(one, other, scores=(0.9, 0.1), exact=False) == "differs"
    assert verdict(one, other, scores=(1.0, 0.0), exact=False) == "differs"


def test_an_answer_that_goes_on_behind_the_end_of_the_other_differs() -> None:
    assert verdict(answer_of(3, 4), answer_of(3), scores=(0.5, 0.5)) == "differs"
    assert verdict(answer_of(3, 4), answer_of(3, 4)) == "same"


@pytest.mark.parametrize(
    ("value", "mass", "exact", "expected"),
    [
        (0.505, 0.9, True, "tie"),  # a neighbour
        (0.54, 0.9, True, "differs"),
        (0.54, 0.9, False, "tie"),
        (0.9, 0.9, False, "differs"),  # far away, and both are sure
        (0.9, 0.4, False, "tie"),  # far away, and neither is
        (0.9, 0.2, False, "differs"),
        (0.9, 0.4, True, "differs"),
    ],
)
def test_places_may_differ_where_others_are_as_good(value: float, mass: float, exact: bool, expected: str) -> None:
    own_mass = 0.4 if mass < 0.5 else 0.9
    one, other = answer_of(place(0.5, mass=own_mass), END), answer_of(place(value, mass=mass), END)

    assert verdict(one, other, exact=exact) == expected


def test_lists_may_end_where_going_on_is_as_good() -> None:
    for going, expected in ((0.5005, "tie"), (0.56, "differs")):
        assert verdict(answer_of(place(0.5, going=going), END), answer_of(END)) == expected
        assert verdict(answer_of(END), answer_of(place(0.5, going=going), END)) == expected
    assert verdict(answer_of(END), answer_of(place(0.5, going=0.56), END), exact=False) == "tie"


def test_wholly_different_boxes_differ() -> None:
    one = answer_of(place(0.1), place(0.2), place(0.3), END)
    other = answer_of(place(0.7), place(0.8), place(0.9), END)

    assert verdict(one, other) == verdict(one, other, exact=False) == "differs"


def test_scores_of_choices_are_compared_by_value() -> None:
    one = answer_of(3, END, answer="yes", scores={"yes": 0.51, "no": 0.49})

    assert verdict(one, answer_of(4, END, answer="no", scores={"yes": 0.48, "no": 0.52}), exact=False) == "same"
    assert verdict(one, answer_of(4, END, answer="no", scores={"yes": 0.48, "no": 0.52})) == "differs"


def test_a_turn_behind_another_answer_is_another_question() -> None:
    one = answer_of(3, END)
    other = dataclasses.replace(one, request=dataclasses.replace(one.request, prompt=(Token(9),)))

    assert verdict(one, dataclasses.replace(other, tokens=(Token(4),)), scores=(1.0, 0.0)) == "tie"


def test_the_grammar_of_a_choice_between_tokens() -> None:
    grammar = _OneOf((3, 4))

    assert (grammar.allowed.ids, grammar.allowed.scored) == ((3, 4), (3, 4))
    grammar.accept(Token(4))
    assert grammar.finish_reason == "stop"
