from dataclasses import fields
from typing import Any

import pytest

from photonlite.grammar.automata.tables import Automaton
from photonlite.grammar.compiler.frames import decode
from photonlite.grammar.compiler.handover import Handover
from photonlite.grammar.compiler.process import MEMORY
from tests.grammar.compiler.workers import IDS, PIECES


def automaton() -> Any:
    return Automaton(*[None] * len(fields(Automaton)))  # type: ignore[arg-type]


def test_the_frame_tells_the_vocabulary_the_ids_and_the_limits() -> None:
    told: Any = decode(Handover(lambda: PIECES, IDS, 1.5).frame)
    pieces, ids, limit_s, memory = told

    assert (pieces, ids.end, ids.vocab_size, limit_s, memory) == (list(PIECES), IDS.end, IDS.vocab_size, 1.5, MEMORY)


def test_the_vocabulary_is_asked_for_once_and_shared() -> None:
    asked = []
    handover = Handover(lambda: asked.append(1) or PIECES, IDS, 1.0)
    assert asked == []

    first, second = handover.completed(automaton()), handover.completed(automaton())
    assert handover.frame is handover.frame
    assert asked == [1]
    assert first.pieces is second.pieces
    assert [first.pieces[index] for index in range(len(PIECES))] == list(PIECES)


def test_a_vocabulary_that_could_not_be_had_is_asked_for_again() -> None:
    answers: list[Any] = [None, PIECES]
    handover = Handover(lambda: answers.pop(0), IDS, 1.0)

    with pytest.raises(TypeError):
        _ = handover.frame
    assert handover.frame


def test_a_lock_that_was_held_at_a_fork_is_replaced() -> None:
    handover = Handover(lambda: PIECES, IDS, 1.0)
    assert handover._lock.acquire()  # by a thread that is not there after a fork
    handover.renew_lock()

    assert handover.frame
