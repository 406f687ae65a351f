"""Places of typed answers that are spelled as whole numbers."""

import json
from typing import Any

import pytest

from photonlite.grammar.decoding.grammars import Vocabulary
from photonlite.grammar.decoding.numbers import NumberAutomaton
from photonlite.request import Token
from photonlite.skills.base import read_text
from photonlite.skills.typed.numbers import NumberReader
from tests.grammar.decoding.test_numbers import DIGITS, END, MIXED, NUMBER, PIECES
from tests.skills.fake import FakePrompts

STATES = NumberAutomaton(MIXED, (1000, 500))
TEXT = '{"name":"ab","boxes":[[900, 50, 100, 250],[0, 0, 1000, 500]],"count":77,"at":[500, 125]}'


class Spelling:
    def feed(self, token_id: int, /) -> str:
        return PIECES[token_id].decode()

    def flush(self) -> str:
        return ""


class NumberPrompts(FakePrompts):
    vocabulary = Vocabulary(END, -1, NUMBER, -1, digits=DIGITS)

    def detokenizer(self) -> Any:
        return Spelling()


def tokens_of(text: str, scores: Any = lambda digit: ()) -> list[Token]:
    """Spell a text byte by byte; `scores` returns what the model thought of each digit in the place of one."""
    return [Token(2 + byte, scores=scores(chr(byte))) for byte in text.encode()] + [Token(END)]


def read(tokens: list[Token]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_text(NumberReader(NumberPrompts(), STATES), tokens))
    return found


def test_places_become_shares_of_the_image_and_other_numbers_stay() -> None:
    found = read(tokens_of(TEXT))

    assert found["boxes"] == [
        {"x_min": 0.1, "y_min": 0.1, "x_max": 0.9, "y_max": 0.5, "score": 1.0},
        {"x_min": 0.0, "y_min": 0.0, "x_max": 1.0, "y_max": 1.0, "score": 1.0},
    ]
    assert found["at"] == {"x": 0.5, "y": 0.25, "score": 1.0}
    assert (found["name"], found["count"]) == ("ab", 77)


def test_pieces_join_to_the_same_text_and_hold_no_part_of_a_place() -> None:
    reader = NumberReader(NumberPrompts(), STATES)
    pieces = [piece for token in tokens_of(TEXT) if (piece := reader.feed(token))]

    assert json.loads("".join(pieces) + reader.flush()) == read(tokens_of(TEXT))
    assert sum('{"x_min":' in piece for piece in pieces) == 2
    assert "".join(pieces).startswith('{"name":"ab","boxes":[{')


@pytest.mark.parametrize("bound", [(1000, 500), (1000, 100)])
def test_a_number_above_its_bound_counts_as_the_bound(bound: tuple[int, int]) -> None:
    states = NumberAutomaton(MIXED, bound)
    text = '{"name":"b","boxes":[],"count":1,"at":[999, 499]}'
    found = json.loads(read_text(NumberReader(NumberPrompts(), states), tokens_of(text)))

    assert found["at"]["y"] == min(499, bound[1]) / bound[1]


def certain(character: str) -> tuple[float, ...]:
    """Every digit was certain, and so was the end of each number."""
    return tuple(float(str(digit) == character) for digit in range(10))


def flipped(character: str) -> tuple[float, ...]:
    """Every digit, and every end, was as probable as one other that is far away."""
    if not character.isdigit():
        return (0.5, *[0.0] * 9)
    return tuple(0.5 if digit in (int(character), (int(character) + 5) % 10) else 0.0 for digit in range(10))


def test_certain_digits_score_1_and_coin_flips_score_low() -> None:
    sure, torn = (read(tokens_of(TEXT, scores)) for scores in (certain, flipped))

    assert [box["score"] for box in (*sure["boxes"], sure["at"])] == [1.0] * 3
    assert all(box["score"] < 0.3 for box in (*torn["boxes"], torn["at"]))
