import itertools
import json
import math

import numpy as np
import pytest

from photonlite.grammar.decoding.items import OVERSHOOT, Item, ItemFormat, ItemsGrammar
from photonlite.request import Token

END = 100
SPELLED = ['[{"box": [', "], ", "[", "]", ", ", '"label": "mug"}', ", {", '"box": [', *"0123456789"]
OPEN, CLOSE, LIST, STOP, COMMA, LABEL, NEXT, BOX = range(8)
DIGITS = tuple(range(8, 18))


def form(numbers: int = 4) -> ItemFormat:
    return ItemFormat(
        numbers=numbers,
        digits=DIGITS,
        separator=(COMMA,),
        first=(OPEN,),
        more=(CLOSE, LABEL, NEXT, BOX),
        last=(CLOSE, LABEL, STOP, END),
        none=(LIST, STOP, END),
    )


def text(tokens: list[Token]) -> str:
    return "".join(SPELLED[token.id] for token in tokens if token.id != END)


def sure(grammar: ItemsGrammar, token_id: int) -> Token:
    """A token that the model was certain of."""
    ids = grammar.allowed.scored
    return Token(token_id, scores=tuple(float(one == token_id) for one in ids))


def write(grammar: ItemsGrammar, *ids: int) -> list[Token]:
    tokens = []
    for token_id in ids:
        tokens.append(sure(grammar, token_id))
        grammar.accept(tokens[-1])
    return tokens


def number(value: int) -> list[int]:
    return [DIGITS[int(digit)] for digit in str(value)]


def box(*values: int) -> list[int]:
    first, *others = values
    return [*number(first), *(one for value in others for one in (COMMA, *number(value)))]


@pytest.mark.parametrize("numbers", [2, 4])
def test_every_random_answer_is_json_with_numbers_in_range(numbers: int) -> None:
    draw = np.random.default_rng(numbers)
    bounds = (1000, 640, 7, 99)[:numbers]
    ends = set()
    for _ in range(300):
        shape = form(numbers)
        grammar = ItemsGrammar(shape, bounds, shape.budget(6, bounds), max_items=6)
        tokens = []
        while not grammar.finished:
            ids = grammar.allowed.ids
            assert ids
            assert grammar.allowed.scored == (ids if len(ids) > 1 else ())
            tokens.append(Token(int(draw.choice(ids)), scores=tuple([1 / len(ids)] * len(ids))))
            grammar.accept(tokens[-1])
        ends.add(grammar.finish_reason)
        items = grammar.read(tokens)
        written = text(tokens)
        if grammar.finish_reason == "max_objects":
            assert len(items) == 6
            written += '"label": "mug"}]'
        read = json.loads(written)
        assert [item.numbers for item in items] == [
            tuple(min(value, bound) for value, bound in zip(one["box"], bounds, strict=True)) for one in read
        ]
        for one in read:
            for value, bound in zip(one["box"], bounds, strict=True):
                assert value <= OVERSHOOT * bound
                assert len(str(value)) <= len(str(bound))
        assert all(0 < item.score < 1 for item in items)
    assert ends == {"stop", "max_objects"}


def test_an_empty_list_is_an_answer() -> None:
    grammar = ItemsGrammar(form(), (9, 9, 9, 9), 20, 3)

    assert grammar.allowed.ids == (OPEN, LIST)
    tokens = write(grammar, LIST, STOP, END)

    assert (grammar.finish_reason, grammar.read(tokens)) == ("stop", [])


def test_a_number_has_no_leading_zero_and_no_more_digits_than_its_bound() -> None:
    grammar = ItemsGrammar(form(2), (640, 480), 20, 3)

    write(grammar, OPEN)
    assert grammar.allowed.ids == DIGITS
    write(grammar, DIGITS[0])
    assert grammar.allowed.forced == COMMA
    write(grammar, COMMA, *number(48))
    assert grammar.allowed.ids == (*DIGITS, CLOSE)
    write(grammar, DIGITS[1])
    assert grammar.allowed.forced == CLOSE


def test_a_number_above_the_bound_counts_as_the_bound() -> None:
    grammar = ItemsGrammar(form(2), (1000, 1000), 40, 3)

    tokens = write(grammar, OPEN, *box(1203, 999), CLOSE, LABEL, STOP, END)

    assert grammar.read(tokens) == [Item((1000, 999), 1.0)]


def test_a_number_ends_before_it_exceeds_twice_its_bound() -> None:
    grammar = ItemsGrammar(form(2), (1000, 640), 40, 3)

    write(grammar, OPEN, *number(341))
    assert grammar.run == (COMMA,)
    write(grammar, COMMA, *number(12))
    assert grammar.allowed.ids == (*DIGITS, CLOSE)

    grammar = ItemsGrammar(form(2), (1000, 640), 40, 3)
    write(grammar, OPEN, *number(200))
    assert grammar.allowed.ids == (DIGITS[0], COMMA)


def test_digits_that_may_not_stand_do_not_count_towards_the_mass_of_a_number() -> None:
    grammar = ItemsGrammar(form(2), (1000, 1000), 60, 3)
    tokens = write(grammar, OPEN, *number(200))
    tokens.append(Token(DIGITS[0], scores=(0.5, 0.5)))  # a fourth digit, or the end of the number
    grammar.accept(tokens[-1])
    tokens += write(grammar, COMMA, *number(7), CLOSE, LABEL, STOP, END)

    assert grammar.read(tokens) == [Item((1000, 7), pytest.approx(math.sqrt(0.5)))]


def test_the_same_format_serves_any_bounds() -> None:
    shared = form(2)
    for bound in (7, 64, 12_000):
        grammar = ItemsGrammar(shared, (bound, bound), 40, 1)
        tokens = write(grammar, OPEN, *box(bound, bound), CLOSE)
        assert grammar.finish_reason == "max_objects"
        assert grammar.read(tokens) == [Item((bound, bound), 1.0)]


def test_an_item_that_the_budget_cuts_is_left_out() -> None:
    grammar = ItemsGrammar(form(2), (99, 99), 1 + 5 + 4 + 3, 9)

    tokens = write(grammar, OPEN, *box(12, 34), CLOSE, LABEL, NEXT, BOX, *number(56), COMMA)

    assert grammar.finish_reason == "length"
    assert [item.numbers for item in grammar.read(tokens)] == [(12, 34)]


def test_the_budget_holds_the_longest_list() -> None:
    shape = form(4)
    bounds = (1000, 1000, 640, 640)
    grammar = ItemsGrammar(shape, bounds, shape.budget(2, bounds), 3)

    write(grammar, OPEN, *box(1000, 1000, 640, 640), CLOSE, LABEL, NEXT, BOX)
    write(grammar, *box(1000, 1000, 640, 640), CLOSE, LABEL, STOP)

    assert not grammar.finished


def test_a_token_that_may_not_stand_there_is_refused() -> None:
    grammar = ItemsGrammar(form(), (9, 9, 9, 9), 20, 3)

    with pytest.raises(ValueError, match="not allowed"):
        grammar.accept(Token(COMMA))


def chances(grammar: ItemsGrammar, **probabilities: float) -> tuple[float, ...]:
    """Probabilities of what may stand next, by its spelling; 0 for the others."""
    return tuple(
        probabilities.get(SPELLED[one] if one < len(SPELLED) else "end", 0.0) for one in grammar.allowed.scored
    )


def test_the_score_is_that_of_the_decision_times_the_mean_mass_of_the_numbers() -> None:
    grammar = ItemsGrammar(form(2), (1000, 1000), 60, 3)
    tokens = []

    def step(token_id: int, probabilities: dict[str, float]) -> None:
        tokens.append(Token(token_id, scores=chances(grammar, **probabilities)))
        grammar.accept(tokens[-1])

    step(OPEN, {SPELLED[OPEN]: 0.8, "[": 0.2})
    step(DIGITS[3], {"3": 0.5, "4": 0.5})  # hundreds: 400 is another place
    step(DIGITS[1], {"1": 0.6, "2": 0.1, "3": 0.1, "4": 0.2})  # tens: 10 and 20 away is near, 30 is not
    step(DIGITS[7], {"0": 0.5, "7": 0.1, ", ": 0.4})  # units: any is near, the end of the number is not
    step(COMMA, {", ": 1.0})
    step(DIGITS[5], {"5": 1.0})
    step(CLOSE, {"], ": 0.25, "0": 0.75})
    step(LABEL, {})
    step(STOP, {"]": 0.9, ", {": 0.1})
    step(END, {})

    [item] = grammar.read(tokens)
    assert item.numbers == (317, 5)
    assert item.score == pytest.approx(0.8 * math.sqrt(0.5 * 0.8 * 0.6 * 0.25))


def test_the_decision_before_an_item_belongs_to_that_item() -> None:
    grammar = ItemsGrammar(form(2), (9, 9), 60, 3)
    tokens = [Token(OPEN, scores=(0.5, 0.5))]
    grammar.accept(tokens[-1])
    tokens += write(grammar, *box(1, 2), CLOSE, LABEL)
    tokens.append(Token(NEXT, scores=chances(grammar, **{", {": 0.3, "]": 0.7})))
    grammar.accept(tokens[-1])
    tokens += write(grammar, BOX, *box(3, 4), CLOSE, LABEL, STOP, END)

    assert grammar.read(tokens) == [Item((1, 2), 0.5), Item((3, 4), pytest.approx(0.3))]


def test_ends_that_begin_differently_are_a_decision_and_not_a_doubt_about_the_number() -> None:
    shape = ItemFormat(2, DIGITS, (COMMA,), (OPEN,), (NEXT, BOX), (STOP, END), (LIST, STOP, END))
    grammar = ItemsGrammar(shape, (99, 99), 60, 3)
    tokens = write(grammar, OPEN, *box(1, 2))
    tokens.append(Token(NEXT, scores=chances(grammar, **{", {": 0.2, "]": 0.6, "5": 0.2})))
    grammar.accept(tokens[-1])
    tokens += write(grammar, BOX, *box(3, 4), STOP, END)

    assert grammar.read(tokens) == [
        Item((1, 2), pytest.approx(math.sqrt(0.8))),
        Item((3, 4), pytest.approx(0.2 / 0.8)),
    ]


def test_a_run_is_what_all_texts_share_that_may_stand_there() -> None:
    grammar = ItemsGrammar(form(2), (1000, 1000), 40, 3)

    assert grammar.run == ()  # a list, or an empty one
    write(grammar, OPEN, *number(1), COMMA, *number(20))
    assert grammar.run == ()
    write(grammar, CLOSE)
    assert grammar.run == (LABEL,)
    write(grammar, LABEL)
    assert grammar.run == ()  # one more item, or the end
    write(grammar, NEXT)
    assert grammar.run == (BOX,)
    write(grammar, BOX, *number(3), COMMA, *number(4), CLOSE, LABEL, STOP)
    assert grammar.run == (END,)
    assert ItemsGrammar(form(), (9,) * 4, 3, 3).run == ()


def test_what_follows_a_number_that_cannot_go_on_is_a_run() -> None:
    grammar = ItemsGrammar(form(2), (999, 999), 40, 3)
    write(grammar, OPEN, *number(12))
    assert grammar.run == ()  # a third digit may follow

    write(grammar, *number(3))
    assert grammar.run == (COMMA,)
    write(grammar, COMMA, *number(0))
    assert grammar.run == (CLOSE, LABEL)  # 0 has no further digit


def test_a_run_begins_with_the_list_and_ends_with_the_budget() -> None:
    shape = ItemFormat(2, DIGITS, (COMMA,), (LIST, OPEN, BOX), (CLOSE, NEXT), (CLOSE, STOP, END), (LIST, OPEN, END))

    assert ItemsGrammar(shape, (9, 9), 30, 3).run == (LIST, OPEN)
    assert ItemsGrammar(shape, (9, 9), 1, 3).run == (LIST,)


def test_a_list_expects_what_follows_a_number_that_the_next_digit_completes() -> None:
    grammar = ItemsGrammar(form(), (999,) * 4, 100, 4)
    expected = []
    for token_id in (OPEN, *box(123, 45, 0, 678), CLOSE, LABEL, NEXT, BOX):
        expected.append(grammar.expected_run)
        write(grammar, token_id)

    comma, ends = (COMMA,), (CLOSE, LABEL)
    # Each with the separator behind it. Of what comes behind an item, one more item is expected.
    numbers = [[(), (), comma, ()], [(), (), comma], [(), ()], [(), (), ends]]
    assert expected == [(), *itertools.chain(*numbers), (LABEL,), (), (BOX,), ()]


@pytest.mark.parametrize(
    ("bound", "digits", "expected"),
    [
        (1000, "34", (COMMA, BOX)),  # the third digit, behind which no fourth may stand
        (1000, "15", ()),  # a third digit, which need not be the last: 1500 is near enough to the bound
        (1000, "150", (BOX,)),  # it ends: no digit may follow within the bound
        (1000, "341", (BOX,)),
        (1000, "100", (COMMA, BOX)),  # the fourth digit of 1000
        (640, "7", ()),
        (640, "70", (BOX,)),
        (640, "64", (COMMA, BOX)),
        (9, "", (COMMA, BOX)),
    ],
)
def test_a_number_is_expected_to_end_before_it_exceeds_its_bound(
    bound: int, digits: str, expected: tuple[int, ...]
) -> None:
    shape = ItemFormat(2, DIGITS, (COMMA, BOX), (OPEN,), (CLOSE, NEXT), (CLOSE, STOP, END), (LIST, STOP, END))
    grammar = ItemsGrammar(shape, (bound, bound), 60, 3)
    write(grammar, OPEN, *(DIGITS[int(digit)] for digit in digits))

    assert grammar.expected_run == expected


def test_a_list_expects_no_more_than_its_budget() -> None:
    grammar = ItemsGrammar(form(), (9,) * 4, 9, 4)
    write(grammar, OPEN, *box(1, 2, 3))
    write(grammar, COMMA)
    assert grammar.expected_run == (CLOSE,)
