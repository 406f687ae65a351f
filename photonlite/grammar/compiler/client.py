"""Schemas and patterns to automata: in processes of their own, each spec once, remembered for the next time.

```
compile(spec) ──> known ──> done future
                        └─ not ─> a future that shares the job with the same caller's for the same spec
```

"Known" is meant by cache_salt: what one tenant has compiled neither serves another one nor answers it sooner.

Nothing of a model is held on to, and nothing is computed on the calling thread.
"""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from photonlite.grammar.automata.tables import Automaton, SpecialIds
from photonlite.grammar.compiler.cache import AutomatonCache
from photonlite.grammar.compiler.handover import Handover
from photonlite.grammar.compiler.jobs import settle
from photonlite.grammar.compiler.pool import WorkerPool
from photonlite.grammar.compiler.process import COMMAND
from photonlite.grammar.spec import GrammarSpec

__all__ = ["GrammarCompiler", "GrammarSpec"]

GAUGES: Final = ("grammar_workers", "grammar_running", "grammar_waiting", "grammar_cache_bytes")
"""Processes that run; specs that they are at; specs that wait for them; bytes of automata that are kept."""

COUNTERS: Final = ("grammars_compiled", "grammar_workers_lost")
"""Languages that workers have answered, with an automaton or an error; workers that ended while they were at one."""


class GrammarCompiler:
    """Compiles specs for one tokenizer. Used from any thread; processes that were forked get workers of their own.

    Args:
        pieces: Gives the bytes of every token by id, empty for special ones; called once, on another thread, when the
            workers start.
        ids: Those that grammars speak of.
        workers: Processes at most; each compiles one spec at a time. The first starts with the first spec,
            others when a spec would have to wait.
        limit_s: Seconds of a compilation at most, counted from when a worker that is ready begins with it.
        cache_bytes: Bytes of automata that are remembered, the last used ones.
        max_waiting: Languages that may wait for a worker.
        command: Starts a worker; the package's own unless given.
    """

    def __init__(
        self,
        pieces: Callable[[], Sequence[bytes]],
        ids: SpecialIds,
        *,
        workers: int = 2,
        limit_s: float = 2.0,
        cache_bytes: int = 256 << 20,
        max_waiting: int = 64,
        command: Sequence[str] = COMMAND,
    ) -> None:
        handover = Handover(pieces, ids, limit_s)
        self._pool = WorkerPool(handover, command, workers, limit_s, AutomatonCache(cache_bytes), max_waiting)
        # At the interpreter's exit the pool closes itself, and waits for its threads.
        weakref.finalize(self, self._pool.stop).atexit = False

    def start(self) -> None:
        """Start a worker, so that the first spec need not wait for that; returns at once."""
        self._pool.start()

    def compile(self, spec: GrammarSpec, *, cache_salt: str = "", caller: str = "") -> "Future[Automaton]":
        """Ask for the automaton of a spec; returns at once.

        A future that is cancelled gives up its place; the others that wait for the same spec keep theirs.

        Args:
            spec: What to compile.
            cache_salt: Whose automaton it is: nothing that was compiled for another cache_salt is used.
            caller: Who asks: callers share the workers' time, and none but the empty one ever has all of several.

        Returns:
            Its result is shared by all who asked. Its errors are `SchemaError`, or another `GrammarError`, for a
            spec that cannot be compiled; `GrammarTooLargeError` where it takes too much memory;
            `GrammarTimeoutError` where it takes too long; `GrammarBusyError` where too many wait; `GrammarWorkerError`
            where workers are killed or cannot be started; `ModelError` once closed. A spec that took too long or
            too much memory is refused at once for half a minute.
        """
        known = None if self._pool.jobs.ended else self._pool.compiled.get(spec, cache_salt)
        if known is None:
            future = self._pool.jobs.add(spec, cache_salt, caller)
            self._pool.start()
            return future
        done: Future[Automaton] = Future()
        settle(done, known)
        return done

    @property
    def gauges(self) -> dict[str, int]:
        """How the workers stand: `GAUGES` of the metrics."""
        pool = self._pool
        return dict(zip(GAUGES, (pool.alive, pool.jobs.running, pool.jobs.waiting, pool.compiled.held), strict=True))

    @property
    def counters(self) -> dict[str, int]:
        """What the workers have done: `COUNTERS` of the metrics."""
        return dict(zip(COUNTERS, (self._pool.finished, self._pool.lost), strict=True))

    def close(self) -> None:
        """End the workers; what was asked for fails. Closing twice is fine."""
        self._pool.close()
