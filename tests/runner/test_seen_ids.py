from typing import Any

import numpy as np

from photonlite.request import IMAGE, Request, SamplingSettings, Token
from photonlite.runner.seen_ids import SeenIds
from photonlite.sequence import Sequence

VOCAB = 70


def sequence(number: int, *prompt: Token) -> Sequence:
    request: Any = Request("query", prompt, None, 9, SamplingSettings())  # type: ignore[arg-type]
    return Sequence(number, request, None, 1)  # type: ignore[arg-type]


def seen(ids: SeenIds, one: Sequence, row: int) -> set[int]:
    out = np.full(3, 0x5A5A5A5A, np.int32)
    ids.fill(one, row, out)
    return {index for index in range(96) if int(out[index // 32]) >> index % 32 & 1}


def test_words_of_the_prompt_and_of_the_answer_are_seen_but_neither_images_nor_places() -> None:
    ids = SeenIds(VOCAB)
    one = sequence(0, Token(31), IMAGE, Token(69), Token(5, (0.5,)), Token(31))

    assert seen(ids, one, 2) == {31, 69}
    one.tokens += [Token(6, (0.5, 0.5)), Token(63), Token(0)]
    assert seen(ids, one, 2) == {31, 69, 63, 0}
    assert seen(ids, one, 2) == {31, 69, 63, 0}
    one.tokens.append(Token(5))
    assert seen(ids, one, 2) == {31, 69, 63, 0, 5}


def test_a_row_belongs_to_its_sequence_also_when_that_comes_back_to_it() -> None:
    ids = SeenIds(VOCAB)
    first, second = sequence(0, Token(1)), sequence(1, Token(2))

    assert seen(ids, first, 0) == {1}
    assert seen(ids, second, 0) == {2}
    first.tokens += [Token(7)]
    assert seen(ids, first, 3) == {1, 7}
    first.tokens += [Token(8)]
    assert seen(ids, first, 0) == {1, 7, 8}
    first.tokens += [Token(9)]
    assert seen(ids, first, 3) == {1, 7, 8, 9}
