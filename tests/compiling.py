"""Grammars compiled in the process of a test, and a compiler whose futures the test settles."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

import pytest

from photonlite.api import session
from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.compiler.client import COUNTERS, GAUGES
from photonlite.grammar.compiler.worker import compile_with
from photonlite.grammar.decoding.automaton import Automaton, TokenBytes
from photonlite.grammar.spec import GrammarSpec


class Workshop:
    """Compiles for one vocabulary.

    Args:
        pieces: The bytes of every id.
        ids: Those that are no text.
    """

    def __init__(self, pieces: Sequence[bytes], ids: SpecialIds) -> None:
        self._pieces = TokenBytes(pieces)
        self._build = lru_cache(compile_with(pieces, ids))

    def automaton(self, spec: GrammarSpec) -> Automaton:
        return Automaton(self._build(spec), self._pieces)


class FakeCompiler:
    """Replaces a `GrammarCompiler`.

    Attributes:
        asked: The specs so far, and their futures.
        callers: The cache_salt and the caller of each.
        slow: Whether a test settles the futures itself; else they are settled at once.
        closed: How often it was closed.
        options: What it was made with.
    """

    def __init__(self, pieces: Callable[[], Sequence[bytes]], ids: SpecialIds, **options: Any) -> None:
        self.workshop = Workshop(pieces(), ids)
        self.asked: list[tuple[GrammarSpec, Future[Automaton]]] = []
        self.callers: list[tuple[str, str]] = []
        self.slow = False
        self.closed = 0
        self.options = options

    def compile(self, spec: GrammarSpec, *, cache_salt: str = "", caller: str = "") -> "Future[Automaton]":
        future: Future[Automaton] = Future()
        self.callers.append((cache_salt, caller))
        self.asked.append((spec, future))
        if not self.slow:
            self.finish()
        return future

    def finish(self) -> None:
        """Settle the newest future."""
        spec, future = self.asked[-1]
        try:
            automaton = self.workshop.automaton(spec)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(automaton)

    gauges = dict.fromkeys(GAUGES, 0)
    counters = dict.fromkeys(COUNTERS, 0)

    def close(self) -> None:
        self.closed += 1


def fake_compilers(monkeypatch: pytest.MonkeyPatch, *, slow: bool = False) -> list[FakeCompiler]:
    """Let sessions make fake compilers; returns the list that collects them."""
    made: list[FakeCompiler] = []

    def make(*arguments: Any, **options: Any) -> FakeCompiler:
        made.append(FakeCompiler(*arguments, **options))
        made[-1].slow = slow
        return made[-1]

    monkeypatch.setattr(session, "GrammarCompiler", make)
    return made
