"""What has been compiled, the least recently used forgotten first; and which languages cost too much the last time."""

import threading
import time
from collections import OrderedDict
from typing import Final

from photonlite.errors import GrammarError
from photonlite.grammar.language import Language
from photonlite.grammar.tables import Automaton

REFUSED_S: Final = 30.0
"""Seconds for which a refusal is remembered: a machine that was busy may manage the same language later."""

_REFUSALS: Final = 256
_REFUSED_LETTERS: Final = 4 << 20
"""Refusals that are remembered, and letters of their sources, at most; the oldest goes first."""


class Compiled:
    """Automata and refusals by language; used from any thread.

    Args:
        limit: Bytes of automata, as they came from the workers, and of their languages.

    Attributes:
        limit: As given.
        held: Bytes that there are.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._automata: OrderedDict[Language, tuple[Automaton, int]] = OrderedDict()
        self._refusals: OrderedDict[Language, tuple[GrammarError, float]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, language: Language) -> Automaton | GrammarError | None:
        """Give the automaton of a language, or why there is none; None where nothing is known."""
        with self._lock:
            if language in self._automata:
                self._automata.move_to_end(language)
                return self._automata[language][0]
            error, until = self._refusals.get(language, (None, 0.0))
            return error if time.monotonic() < until else None

    def keep(self, language: Language, automaton: Automaton, size: int) -> None:
        """Keep an automaton of so many bytes; one that is over the limit by itself is not kept."""
        size += len(language.source)
        with self._lock:
            self._refusals.pop(language, None)
            if size > self.limit or language in self._automata:
                return
            self._automata[language] = automaton, size
            self.held += size
            while self.held > self.limit:
                self.held -= self._automata.popitem(last=False)[1][1]

    def refuse(self, language: Language, error: GrammarError) -> None:
        """Remember for a while that a language cannot be had."""
        with self._lock:
            self._refusals.pop(language, None)
            self._refusals[language] = error, time.monotonic() + REFUSED_S
            while len(self._refusals) > _REFUSALS or self._refused_letters() > _REFUSED_LETTERS:
                self._refusals.popitem(last=False)

    def _refused_letters(self) -> int:
        return sum(len(language.source) for language in self._refusals)
