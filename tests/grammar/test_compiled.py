from typing import Any

import pytest

from photonlite.errors import GrammarTimeoutError
from photonlite.grammar import compiled as module
from photonlite.grammar.compiled import Compiled
from tests.grammar.workers import language

A, B, C, D = map(language, "abcd")


def test_the_least_recently_used_is_forgotten_first() -> None:
    compiled: Any = Compiled(10)
    for one, size in ((A, 3), (B, 3)):
        compiled.keep(one, one.source, size)
    assert compiled.get(A) == "a"
    compiled.keep(C, "c", 4)

    assert [compiled.get(one) for one in (A, B, C, D)] == ["a", None, "c", None]
    assert compiled.held == 9


def test_what_is_too_large_by_itself_is_not_kept_and_drives_nothing_out() -> None:
    compiled: Any = Compiled(10)
    compiled.keep(A, "a", 9)
    compiled.keep(B, "b", 10)

    assert (compiled.get(A), compiled.get(B), compiled.held) == ("a", None, 10)


def test_what_is_kept_twice_counts_once() -> None:
    compiled: Any = Compiled(10)
    compiled.keep(A, "a", 6)
    compiled.keep(A, "other", 6)

    assert (compiled.get(A), compiled.held) == ("a", 7)


def test_refusals_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    compiled: Any = Compiled(10)
    error = GrammarTimeoutError("late")
    compiled.refuse(A, error)

    now += module.REFUSED_S - 1
    assert compiled.get(A) is error
    now += 1
    assert compiled.get(A) is None
    compiled.refuse(A, error)
    assert compiled.get(A) is error
    compiled.keep(A, "a", 1)
    assert compiled.get(A) == "a"


def test_only_so_many_refusals_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REFUSALS", 2)
    compiled = Compiled(10)
    error = GrammarTimeoutError("late")
    for one in (A, B, A, C):
        compiled.refuse(one, error)

    assert [compiled.get(one) for one in (A, B, C)] == [error, None, error]


def test_long_refusals_drive_out_older_ones_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REFUSED_LETTERS", 10)
    compiled = Compiled(10)
    error = GrammarTimeoutError("late")
    short, long, longer = (language("x" * size) for size in (1, 9, 11))
    for one in (short, long):
        compiled.refuse(one, error)
    assert compiled.get(short) is compiled.get(long) is error
    compiled.refuse(A, error)
    assert [compiled.get(one) for one in (short, long, A)] == [None, error, error]
    compiled.refuse(longer, error)
    assert compiled.get(longer) is None
