"""Typed answers whose places are lists of whole numbers."""

import json
import random
from typing import Any

import pytest

from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.decoding.automaton import Automaton
from photonlite.grammar.decoding.numbers import NumberAutomaton
from photonlite.grammar.decoding.typed import TypedGrammar, UniqueNamesGrammar
from photonlite.grammar.spec import GrammarSpec
from photonlite.request import Token
from tests.compiling import Workshop

END, NUMBER = 0, 1
PIECES = [b"", b"", *(bytes([byte]) for byte in range(256)), b'"},', b"],", b"]}", b", ", b'":[', b'{"', b"ab", b"]}}"]
DIGITS = tuple(2 + ord(str(digit)) for digit in range(10))
WORKSHOP = Workshop(PIECES, SpecialIds(END, NUMBER, None, len(PIECES), DIGITS))
BOX, POINT = ({"type": "object", "format": name} for name in ("box", "point"))


def compiled(**properties: Any) -> Automaton:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return WORKSHOP.automaton(GrammarSpec("schema", json.dumps(schema)))


MIXED = compiled(
    name={"enum": ["ab", "b"]},
    boxes={"type": "array", "items": BOX, "maxItems": 3},
    count={"type": "integer", "minimum": 0, "maximum": 500},
    at={"anyOf": [POINT, {"type": "null"}]},
)
NAMED = compiled(places={"type": "object", "additionalProperties": POINT})


def write(grammar: TypedGrammar, draw: random.Random) -> str:
    tokens = []
    while not grammar.finished:
        allowed = grammar.allowed
        ids = allowed.ids or [index for index in range(len(PIECES)) if allowed.permits(index)]
        assert NUMBER not in ids
        tokens.append(draw.choice(ids))
        grammar.accept(Token(tokens[-1]))
    return b"".join(PIECES[index] for index in tokens).decode()


def numbers_of(text: str, automaton: NumberAutomaton) -> list[int]:
    read = json.loads(text)
    places = [*read.get("boxes", ()), read.get("at"), *read.get("places", {}).values()]
    found = [number for place in places if place for number in place]
    assert all(len(place) in (2, 4) for place in places if place)
    for place, number in enumerate(found):
        assert len(str(number)) <= len(str(automaton.bounds[place % 2]))
    return found


@pytest.mark.parametrize("bounds", [(1000, 1000), (644, 9), (7, 12345)])
def test_every_answer_is_json_with_numbers_as_long_as_their_bounds(bounds: tuple[int, int]) -> None:
    automaton = NumberAutomaton(MIXED, bounds)
    draw = random.Random(0)
    found: list[int] = []
    for _ in range(200):
        found += numbers_of(write(TypedGrammar(automaton, 400), draw), automaton)
    assert len({len(str(number)) for number in found}) == max(len(str(bound)) for bound in bounds)


def test_every_answer_is_complete_before_its_budget_ends() -> None:
    automaton = NumberAutomaton(MIXED, (1000, 1000))
    draw = random.Random(1)
    reasons = set()
    for budget in range(automaton.shortest, automaton.shortest + 40):
        for _ in range(6):
            grammar = TypedGrammar(automaton, budget)
            numbers_of(write(grammar, draw), automaton)
            reasons.add(grammar.finish_reason)
    assert reasons == {"stop", "length"}


@pytest.mark.long
def test_names_are_new_to_their_object_between_numbers_too() -> None:
    automaton = NumberAutomaton(NAMED, (99, 99))
    draw = random.Random(2)
    for _ in range(100):
        text = write(UniqueNamesGrammar(automaton, 120), draw)
        pairs = json.loads(text, object_pairs_hook=list)[0][1]
        assert len(dict(pairs)) == len(pairs)
        numbers_of(text, automaton)


def at_number(automaton: NumberAutomaton, text: str, budget: int = 60) -> TypedGrammar:
    grammar = TypedGrammar(automaton, budget)
    for letter in text.encode():
        grammar.accept(Token(2 + letter))
    return grammar


def test_digits_stand_in_place_of_a_number_and_their_probabilities_are_wanted() -> None:
    automaton = NumberAutomaton(compiled(at=POINT), (1000, 1000))
    grammar = at_number(automaton, '{"at":[')

    assert grammar.allowed.ids == grammar.allowed.scored == DIGITS
    grammar.accept(Token(DIGITS[3]))
    assert grammar.allowed.scored == DIGITS
    assert grammar.allowed.ids == (*DIGITS, 2 + ord(","), PIECES.index(b", "))


def test_nothing_follows_a_leading_zero_or_the_last_digit() -> None:
    automaton = NumberAutomaton(compiled(at=POINT), (99, 99))
    for text in ('{"at":[0', '{"at":[10', '{"at":[10, 0', '{"at":[10, 99'):
        grammar = at_number(automaton, text)
        assert not any(grammar.allowed.permits(digit) for digit in DIGITS)
        assert grammar.allowed.scored == ()


def test_horizontal_and_vertical_bounds_take_turns() -> None:
    automaton = NumberAutomaton(compiled(box=BOX), (1000, 9))
    grammar = at_number(automaton, '{"box":[123, 4')
    assert not grammar.allowed.permits(DIGITS[0])
    grammar = at_number(automaton, '{"box":[123, 4, 5')
    assert grammar.allowed.permits(DIGITS[0])


def test_one_automaton_serves_any_bounds() -> None:
    base = compiled(at=POINT)
    before = len(base.tables.delta)
    for bound in (9, 640, 99999):
        text = '{"at":[' + str(bound)
        grammar = at_number(NumberAutomaton(base, (bound, bound)), text)
        assert not grammar.allowed.permits(DIGITS[0])
    assert len(base.tables.delta) == before


@pytest.mark.parametrize(("more", "first", "reason"), [(0, "1", "length"), (1, "12", "length"), (9, "1", "stop")])
def test_further_digits_stand_while_the_budget_has_room(more: int, first: str, reason: str) -> None:
    automaton = NumberAutomaton(compiled(at=POINT), (999, 999))
    grammar = at_number(automaton, f'{{"at":[{first}', automaton.shortest + more)

    assert grammar.allowed.permits(DIGITS[1]) == (reason == "stop")
    for letter in b", 2]}":
        grammar.accept(Token(2 + letter))

    assert grammar.finish_reason == reason


def test_digits_stand_beside_whatever_may_follow_a_number() -> None:
    letters = [bytes([byte]) for byte in range(256)]
    pieces = [b"", b"", *letters, *[b"]"] * 60]
    automaton = Workshop(pieces, SpecialIds(END, NUMBER, None, len(pieces), DIGITS)).automaton(
        GrammarSpec("schema", json.dumps(POINT))
    )
    many = NumberAutomaton(automaton, (999, 999))
    state = many.start
    for letter in b"[1, 2":
        state = many.after(state, 2 + letter)

    allowed = many.allowed(state, 60)
    assert allowed.mask is not None
    assert {index for index in range(len(pieces)) if allowed.permits(index)} == {
        *DIGITS, 2 + ord("]"), *range(len(pieces) - 60, len(pieces))
    }  # fmt: skip


def test_states_tell_where_a_number_begins_and_goes_on() -> None:
    automaton = NumberAutomaton(compiled(at=POINT), (999, 999))
    state = automaton.start
    seen = []
    for letter in b'{"at":[12, 3]}':
        state = automaton.after(state, 2 + letter)
        seen.append((automaton.expects_number(state), automaton.in_number(state)))
    begins, goes_on = ("".join("x" if flag else "." for flag in flags) for flags in zip(*seen, strict=True))
    assert (begins, goes_on) == ("......x...x..."[:14], ".......xx..x.."[:14])
    assert automaton.is_complete(state)
