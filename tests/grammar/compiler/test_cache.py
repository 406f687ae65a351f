from typing import Any

import pytest

from photonlite.errors import GrammarTimeoutError
from photonlite.grammar.compiler import cache as module
from photonlite.grammar.compiler.cache import AutomatonCache
from tests.grammar.compiler.workers import spec

A, B, C, D = map(spec, "abcd")


def test_the_least_recently_used_is_forgotten_first() -> None:
    compiled: Any = AutomatonCache(10)
    for one, size in ((A, 3), (B, 3)):
        compiled.keep(one, one.source, size)
    assert compiled.get(A) == "a"
    compiled.keep(C, "c", 4)

    assert [compiled.get(one) for one in (A, B, C, D)] == ["a", None, "c", None]
    assert compiled.held == 9


def test_an_automaton_over_the_limit_is_not_kept_and_evicts_nothing() -> None:
    compiled: Any = AutomatonCache(10)
    compiled.keep(A, "a", 9)
    compiled.keep(B, "b", 10)

    assert (compiled.get(A), compiled.get(B), compiled.held) == ("a", None, 10)


def test_an_automaton_kept_twice_counts_once() -> None:
    compiled: Any = AutomatonCache(10)
    compiled.keep(A, "a", 6)
    compiled.keep(A, "other", 6)

    assert (compiled.get(A), compiled.held) == ("a", 7)


def test_refusals_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    compiled: Any = AutomatonCache(10)
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
    compiled = AutomatonCache(10)
    error = GrammarTimeoutError("late")
    for one in (A, B, A, C):
        compiled.refuse(one, error)

    assert [compiled.get(one) for one in (A, B, C)] == [error, None, error]


def test_long_specs_evict_refusals_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REFUSED_LETTERS", 10)
    compiled = AutomatonCache(10)
    error = GrammarTimeoutError("late")
    short, long, longer = (spec("x" * size) for size in (1, 9, 11))
    for one in (short, long):
        compiled.refuse(one, error)
    assert compiled.get(short) is compiled.get(long) is error
    compiled.refuse(A, error)
    assert [compiled.get(one) for one in (short, long, A)] == [None, error, error]
    compiled.refuse(longer, error)
    assert compiled.get(longer) is None


def test_salts_share_nothing() -> None:
    compiled: Any = AutomatonCache(100)
    compiled.keep(A, "a", 3, "one")
    compiled.refuse(B, GrammarTimeoutError("late"), "one")

    assert compiled.get(A, "one") == "a"
    assert [compiled.get(one, cache_salt) for one in (A, B) for cache_salt in ("two", "")] == [None] * 4


def test_the_salt_with_the_most_bytes_is_evicted_first() -> None:
    compiled: Any = AutomatonCache(20)
    compiled.keep(A, "mine", 3, "one")
    for one in (A, B, C):
        compiled.keep(one, one.source, 6, "two")

    assert compiled.get(A, "one") == "mine"
    assert [compiled.get(one, "two") for one in (A, B, C)] == [None, "b", "c"]
    assert compiled.held == 18
    compiled.keep(D, "d", 19, "three")
    assert [compiled.get(D, "three"), compiled.get(A, "one"), compiled.held] == [None, "mine", 18]
