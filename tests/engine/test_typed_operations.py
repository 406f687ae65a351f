"""Cost of a typed answer on the engine thread, in operations, which do not depend on the machine's load."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest

from photonlite.grammar.automata.tables import SpecialIds, words
from photonlite.grammar.decoding.automaton import Automaton
from photonlite.grammar.decoding.grammars import MaskCache
from photonlite.grammar.decoding.typed import TypedGrammar
from photonlite.grammar.spec import GrammarSpec
from photonlite.kernels.columns import PARAM_COLUMNS
from photonlite.request import Request, SamplingSettings, Token
from photonlite.runner.sampling_params import write_params
from photonlite.sequence import Sequence
from tests.compiling import Workshop
from tests.engine.fakes import Bench, FakeSink

END, COORDINATE, SIZE = 0, 1, 2
TEXT = '{"type":"array","items":{"type":"string","maxLength":%d},"minItems":2,"maxItems":2}'


class Counter:
    """Counts the lines of Python that run, and the calls of C functions."""

    def __init__(self) -> None:
        self.operations = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        traced, profiled = sys.gettrace(), sys.getprofile()
        sys.settrace(self._trace)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.settrace(traced)
            sys.setprofile(profiled)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.operations += event == "line"
        return self._trace

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        self.operations += event == "c_call"


def automaton(vocab_size: int, length: int) -> tuple[Automaton, list[bytes]]:
    """Strings of up to so many characters, over single bytes and words of four."""
    pieces = [b""] * 3 + [bytes([byte]) for byte in range(256)]
    dice = random.Random(1)
    while len(pieces) < vocab_size:
        pieces.append(bytes(dice.choices(b"abcdefghijklmnopqrstuvwxyz", k=4)))
    workshop = Workshop(pieces, SpecialIds(END, COORDINATE, SIZE, vocab_size))
    return workshop.automaton(GrammarSpec("schema", TEXT % length)), pieces


def operations(vocab_size: int, length: int, told: bytes) -> int:
    """Write an answer letter by letter; returns the most operations that one token took."""
    made, _ = automaton(vocab_size, length)
    grammar = TypedGrammar(made, 5000)
    masks, row = MaskCache(vocab_size), np.zeros(PARAM_COLUMNS, np.int32)
    mask = np.zeros(words(vocab_size), np.int32)
    most = 0
    for byte in told:
        counter = Counter()
        with counter.counting():
            write_params(row, mask, masks, grammar.allowed, 0.0, 1.0, 0, 0)
            grammar.accept(Token(3 + byte))
        most = max(most, counter.operations)
    assert grammar.finished
    return most


@pytest.mark.long
def test_a_token_takes_as_many_operations_in_a_large_vocabulary_and_a_large_grammar_as_in_small_ones() -> None:
    told = b'["abc","defgh"]'
    small = operations(300, 8, told)

    assert small < 300  # with the first look at a state, and the counting itself
    assert operations(20_000, 8, told) <= small
    assert operations(300, 400, told) <= small


def test_a_long_token_takes_few_operations_per_byte() -> None:
    pieces = [b""] * 3 + [bytes([byte]) for byte in range(256)] + [b"a" * 10, b"a" * 100]
    workshop = Workshop(pieces, SpecialIds(END, COORDINATE, SIZE, len(pieces)))
    made = workshop.automaton(GrammarSpec("regex", "a*"))
    taken = []
    for index in (259, 260):
        grammar = TypedGrammar(made, 5000)
        grammar.accept(Token(index))  # tables are made at the first look
        counter = Counter()
        with counter.counting():
            grammar.accept(Token(index))
        taken.append(counter.operations)

    assert 90 <= taken[1] - taken[0] <= 90 * 4


@pytest.mark.long
@pytest.mark.parametrize("depth", [1, 2])
def test_a_tick_with_typed_rows_takes_as_many_operations_for_every_kind_of_grammar(depth: int) -> None:
    def ticks(vocab_size: int, length: int) -> int:
        made, _ = automaton(vocab_size, length)
        told = b'["abc","defgh"]'
        bench = Bench(lambda sequence, index: Token(3 + told[index]), depth=depth)
        for number in range(4):
            request = Request("query", (Token(1),), TypedGrammar(made, 100), 100, SamplingSettings())
            bench.hand_in(Sequence(number, request, FakeSink(), 1))
        most = 0
        for _ in range(100):
            counter = Counter()
            with counter.counting():
                busy = bench.core.tick()
            most = max(most, counter.operations)
            if not busy:
                return most
        raise AssertionError("the answers do not end")

    small = ticks(300, 8)
    assert ticks(20_000, 400) <= 1.05 * small  # heaps and logarithms of a few requests
