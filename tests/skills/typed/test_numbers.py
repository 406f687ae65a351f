"""Places of typed answers that are spelled as whole numbers."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.decoding.grammars import Vocabulary
from photonlite.grammar.decoding.numbers import NumberAutomaton
from photonlite.grammar.decoding.typed import TypedGrammar
from photonlite.grammar.spec import GrammarSpec
from photonlite.request import Token
from photonlite.skills.base import read_text
from photonlite.skills.typed.numbers import NumberReader
from tests.compiling import Workshop
from tests.grammar.decoding.test_numbers import BOX, DIGITS, END, MIXED, NUMBER, PIECES, POINT
from tests.skills.fake import FakePrompts

STATES = NumberAutomaton(MIXED, (1000, 500))
TEXT = '{"name":"ab","boxes":[[900, 50, 100, 250],[0, 0, 1000, 500]],"count":77,"at":[500, 125]}'


class Spelling:
    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def feed(self, token_id: int, /) -> str:
        return self._pieces[token_id].decode()

    def flush(self) -> str:
        return ""


class NumberPrompts(FakePrompts):
    vocabulary = Vocabulary(END, -1, NUMBER, -1, digits=DIGITS)

    def __init__(self, pieces: Sequence[bytes] = PIECES) -> None:
        super().__init__()
        self._pieces = pieces

    def detokenizer(self) -> Any:
        return Spelling(self._pieces)


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


PLACES = {
    "type": "object",
    "properties": {
        "say": {"enum": ["[1],", "[[", "]"]},
        "boxes": {"type": "array", "items": BOX, "minItems": 2, "maxItems": 4},
        "rows": {"type": "array", "items": {"type": "array", "items": POINT, "maxItems": 2}, "maxItems": 3},
        "count": {"type": "integer"},
        "at": {"anyOf": [POINT, {"type": "null"}]},
    },
    "required": ["say", "boxes", "rows", "count", "at"],
}
SPELLED = '{"say":"[1],","boxes":[[1, 2, 3, 4],[0, 1, 2, 3]],"rows":[[[1, 2],[3, 4]],[[5, 6]]],"count":17,"at":[1, 2]}'


def written(grammar: TypedGrammar, pieces: Sequence[bytes], draw: random.Random) -> list[Token]:
    """Write an answer; long tokens are preferred, as a tokenizer's own spelling would have them."""
    tokens: list[Token] = []
    while not grammar.finished:
        allowed = grammar.allowed
        ids = allowed.ids or [index for index in range(len(pieces)) if allowed.permits(index)]
        tokens.append(Token(draw.choices(ids, [1 + len(pieces[index]) ** 3 for index in ids])[0]))
        grammar.accept(tokens[-1])
    return tokens


def plain_reading(value: Any, size: tuple[int, int]) -> Any:
    """Replace lists of 2 and 4 whole numbers in JSON by places."""
    if isinstance(value, dict):
        return {name: plain_reading(one, size) for name, one in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) not in (2, 4) or not all(isinstance(one, int) for one in value):
        return [plain_reading(one, size) for one in value]
    x, y, *far = (min(1.0, number / size[place % 2]) for place, number in enumerate(value))
    if not far:
        return {"x": x, "y": y, "score": 1.0}
    (left, right), (top, bottom) = sorted((x, far[0])), sorted((y, far[1]))
    return {"x_min": left, "y_min": top, "x_max": right, "y_max": bottom, "score": 1.0}


@pytest.mark.parametrize("seed", range(3))
def test_a_place_is_read_from_tokens_however_the_text_around_its_numbers_is_merged(seed: int) -> None:
    draw, size = random.Random(seed), (100, 50)
    cuts = [sorted(draw.sample(range(len(SPELLED) + 1), 2)) for _ in range(150)]
    merged = sorted({SPELLED[start : min(end, start + 8)].encode() for start, end in cuts})
    pieces = [b"", b"", *(bytes([byte]) for byte in range(256)), b"],[", b"]],", b"],", b"[[", *merged]
    ids = SpecialIds(END, NUMBER, None, len(pieces), DIGITS)
    automaton = Workshop(pieces, ids).automaton(GrammarSpec("schema", json.dumps(PLACES)))
    states, prompts = NumberAutomaton(automaton, size), NumberPrompts(pieces)
    joined = 0
    for _ in range(40):
        tokens = written(TypedGrammar(states, 300), pieces, draw)
        text = b"".join(pieces[token.id] for token in tokens).decode()
        joined += sum(b"[" in pieces[token.id].partition(b"]")[2] for token in tokens)

        found = json.loads(read_text(NumberReader(prompts, states), tokens))

        assert found == plain_reading(json.loads(text), size), text
    assert joined > 20  # tokens that end a place and open another
