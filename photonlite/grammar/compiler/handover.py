"""What workers are told once, the vocabulary above all, and what their answers leave out because everybody knows it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from photonlite.grammar.automata.tables import Automaton, SpecialIds
from photonlite.grammar.automata.trie import TokenBytes
from photonlite.grammar.compiler.frames import encode
from photonlite.grammar.compiler.process import MEMORY


class Handover:
    """A vocabulary and the limits of a job; used from any thread.

    Args:
        pieces: Gives the bytes of every token by id; called once, at the first use, and then forgotten.
        ids: Those that grammars speak of.
        limit_s: Seconds of a job.
    """

    def __init__(self, pieces: Callable[[], Sequence[bytes]], ids: SpecialIds, limit_s: float) -> None:
        self._source: Callable[[], Sequence[bytes]] | None = pieces
        self._ids = ids
        self._limit_s = limit_s
        self._made: tuple[bytes, TokenBytes] | None = None
        self._lock = threading.Lock()

    @property
    def frame(self) -> bytes:
        """The first frame of a worker."""
        return self._parts()[0]

    def completed(self, automaton: Automaton) -> Automaton:
        """Put the vocabulary into an automaton that a worker has sent; all share one copy."""
        return replace(automaton, pieces=self._parts()[1])

    def renew_lock(self) -> None:
        """Make a new lock, in a process that was forked: nobody there would release the old one."""
        self._lock = threading.Lock()

    def _parts(self) -> tuple[bytes, TokenBytes]:
        with self._lock:
            if self._made is None:
                assert self._source is not None
                listed = list(self._source())
                self._made = encode((listed, self._ids, self._limit_s, MEMORY)), TokenBytes(listed)
                self._source = None
            return self._made
