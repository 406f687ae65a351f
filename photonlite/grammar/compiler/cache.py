"""Compiled automata, least recently used forgotten first, and specs that were refused a short while ago."""

import threading
import time
from collections import Counter, OrderedDict
from typing import Final

from photonlite.errors import GrammarError
from photonlite.grammar.decoding.automaton import Automaton
from photonlite.grammar.spec import GrammarSpec

REFUSED_S: Final = 30.0  # a refusal is forgotten after that: a machine that was busy may manage the same spec later
_REFUSALS: Final = 256
_REFUSED_LETTERS: Final = 4 << 20


class AutomatonCache:
    """Automata and refusals by cache salt and spec; used from any thread.

    Salts share nothing: timing does not tell a tenant what another one compiled. Over `limit` bytes, the salt with the
    most bytes loses its least recently used automaton.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._automata: dict[str, OrderedDict[GrammarSpec, tuple[Automaton, int]]] = {}
        self._held: Counter[str] = Counter()
        self._refusals: OrderedDict[tuple[str, GrammarSpec], tuple[GrammarError, float]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes held."""
        return self._held.total()

    def get(self, spec: GrammarSpec, cache_salt: str = "") -> Automaton | GrammarError | None:
        """Return the automaton of a spec, or why there is none; None where nothing is known."""
        with self._lock:
            own = self._automata.get(cache_salt)
            if own is not None and spec in own:
                own.move_to_end(spec)
                return own[spec][0]
            error, until = self._refusals.get((cache_salt, spec), (None, 0.0))
            return error if time.monotonic() < until else None

    def keep(self, spec: GrammarSpec, automaton: Automaton, size: int, cache_salt: str = "") -> None:
        """Keep an automaton of `size` bytes; one over the limit by itself is not kept."""
        size += len(spec.source)
        with self._lock:
            self._refusals.pop((cache_salt, spec), None)
            if size > self.limit or spec in self._automata.get(cache_salt, {}):
                return
            self._automata.setdefault(cache_salt, OrderedDict())[spec] = automaton, size
            self._held[cache_salt] += size
            while self.held > self.limit:
                self._drop()

    def refuse(self, spec: GrammarSpec, error: GrammarError, cache_salt: str = "") -> None:
        """Remember for a while that a spec cannot be compiled."""
        with self._lock:
            self._refusals.pop((cache_salt, spec), None)
            self._refusals[cache_salt, spec] = error, time.monotonic() + REFUSED_S
            while (
                len(self._refusals) > _REFUSALS or sum(len(one.source) for _, one in self._refusals) > _REFUSED_LETTERS
            ):
                self._refusals.popitem(last=False)

    def _drop(self) -> None:
        cache_salt = max(self._held, key=self._held.__getitem__)
        _, (_, size) = self._automata[cache_salt].popitem(last=False)
        self._held[cache_salt] -= size
        if not self._automata[cache_salt]:
            del self._automata[cache_salt], self._held[cache_salt]
