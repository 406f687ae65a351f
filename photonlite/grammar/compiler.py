"""Schemas and patterns to automata: in processes of their own, each language once, remembered for the next time.

```
compile(language) ──> known ──> done future
                        └─ not ─> a future that shares the job of all who ask for the same language meanwhile
```

Nothing of a model is held on to, and nothing is computed on the calling thread.
"""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from photonlite.grammar.compiled import Compiled
from photonlite.grammar.handover import Handover
from photonlite.grammar.jobs import settle
from photonlite.grammar.language import Language
from photonlite.grammar.pool import WorkerPool
from photonlite.grammar.process import COMMAND
from photonlite.grammar.tables import Automaton, Ids

__all__ = ["GrammarCompiler", "Language"]


class GrammarCompiler:
    """Compiles languages for one tokenizer. Used from any thread; processes that were forked get workers of their own.

    Args:
        pieces: Gives the bytes of every token by id, empty for special ones; called once, on another thread, when the
            workers start.
        ids: Those that grammars speak of.
        workers: Processes. Each compiles one language at a time.
        limit_s: Seconds of a compilation at most, counted from when a worker that is ready begins with it.
        cache_bytes: Bytes of automata that are remembered, the last used ones.
        max_waiting: Languages that may wait for a worker.
        command: Starts a worker; the package's own unless given.
    """

    def __init__(
        self,
        pieces: Callable[[], Sequence[bytes]],
        ids: Ids,
        *,
        workers: int = 1,
        limit_s: float = 2.0,
        cache_bytes: int = 256 << 20,
        max_waiting: int = 64,
        command: Sequence[str] = COMMAND,
    ) -> None:
        handover = Handover(pieces, ids, limit_s)
        self._pool = WorkerPool(handover, command, workers, limit_s, Compiled(cache_bytes), max_waiting)
        # At the interpreter's exit the pool closes itself, and waits for its threads.
        weakref.finalize(self, self._pool.stop).atexit = False

    def start(self) -> None:
        """Start the workers, so that the first language need not wait for that; returns at once."""
        self._pool.start()

    def compile(self, language: Language) -> "Future[Automaton]":
        """Ask for the automaton of a language; returns at once.

        A future that is cancelled gives up its place; the others that wait for the same language keep theirs.

        Returns:
            Its result is shared by all who asked. Its errors are `SchemaError`, or another `GrammarError`, for a
            language that cannot be compiled; `GrammarTooLargeError` where it takes too much memory;
            `GrammarTimeoutError` where it takes too long; `GrammarBusyError` where too many wait; `EngineError` where
            no worker can be started; `ModelError` once closed. A language that took too long or too much memory is
            refused at once for half a minute.
        """
        known = None if self._pool.jobs.ended else self._pool.compiled.get(language)
        if known is None:
            self._pool.start()
            return self._pool.jobs.add(language)
        future: Future[Automaton] = Future()
        settle(future, known)
        return future

    def close(self) -> None:
        """End the workers; what was asked for fails. Closing twice is fine."""
        self._pool.close()
