"""Compiles schemas and patterns in worker processes, each spec once, and remembers the automata.

```
compile ──> AutomatonCache ──> done future
   └─ unknown ──> JobQueue ──take──> thread ──ask──> worker process
                     ^                  │ lost: another one is started at once
                     └───── finish ─────┘
```

| how a worker is lost while it has a job | what becomes of the job |
|---|---|
| this process kills it, because the job took longer than its limit | `GrammarTimeoutError` |
| by itself: a crash, or memory beyond its limit (`RLIMIT_AS`) | once more; then `GrammarTooLargeError` |
| by SIGKILL or SIGTERM from outside, such as the kernel's for want of memory | once more; then `GrammarWorkerError` |
| before it took the job | twice more; then `GrammarWorkerError` |

The first two are the fault of the spec, as both limits are those of one job; the others never are.
"""

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from photonlite.errors import (
    EngineError,
    GrammarError,
    GrammarTimeoutError,
    GrammarTooLargeError,
    GrammarWorkerError,
    ModelError,
    PhotonliteError,
)
from photonlite.grammar.automata.tables import Automaton, SpecialIds
from photonlite.grammar.automata.trie import TokenBytes
from photonlite.grammar.compiler.cache import AutomatonCache
from photonlite.grammar.compiler.process import COMMAND, MEMORY, GrammarWorkerLostError, WorkerProcess
from photonlite.grammar.compiler.queue import CompileJob, JobQueue, Outcome, settle_future
from photonlite.grammar.compiler.worker import encode
from photonlite.grammar.spec import GrammarSpec

LOGGER = logging.getLogger(__name__)

GAUGES: Final = ("grammar_workers", "grammar_running", "grammar_waiting", "grammar_cache_bytes")
"""Worker processes; specs being compiled; specs that wait; bytes of cached automata."""

COUNTERS: Final = ("grammars_compiled", "grammar_workers_lost")
"""Specs that workers answered with an automaton or an error; workers that were lost with a job."""

COSTLY_S: Final = 0.25
"""Seconds from which on a refusal is remembered: quicker ones are cheap to repeat."""

_RETRIES: Final = {"not taken": 2, "killed": 1, "crashed": 1, "late": 0}
"""How often a job is tried again, by how its worker was lost."""


class GrammarCompiler:
    """Compiles specs for one tokenizer; used from any thread.

    Args:
        pieces: Gives the bytes of every token by id, empty for special ones; called once, on another thread, when the
            first worker starts, and then forgotten.
        ids: Token ids that are not text.
        workers: Processes at most; each compiles one spec at a time. The first starts with the first spec, others when
            a spec would have to wait.
        limit_s: Seconds of a compilation at most, counted from when a worker that is ready gets it.
        cache_bytes: Bytes of automata that are remembered.
        max_waiting: Specs that may wait for a worker.
        command: Starts a worker.
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
        self._pool = _WorkerPool(pieces, ids, tuple(command), workers, limit_s, cache_bytes, max_waiting)
        # At the interpreter's exit the pool closes itself, and waits for its threads.
        weakref.finalize(self, self._pool.stop).atexit = False

    def compile(self, spec: GrammarSpec, *, cache_salt: str = "", caller: str = "") -> "Future[Automaton]":
        """Return a future of a spec's automaton, at once.

        Equal specs of one caller and salt share a job; cancelling a future leaves the others alone. Callers share the
        workers' time, and no named caller gets all of several workers.

        Its errors are `SchemaError` or another `GrammarError` for a spec that cannot be compiled,
        `GrammarTooLargeError` for too much memory, `GrammarTimeoutError` for too much time (both are then refused at
        once for half a minute), `GrammarBusyError` where too many specs wait, `GrammarWorkerError` where workers are
        killed or cannot be started, and `ModelError` once closed.
        """
        pool = self._pool
        known = None if pool.jobs.ended else pool.cache.get(spec, cache_salt)
        if known is None:
            future = pool.jobs.add(spec, cache_salt, caller)
            pool.start()
            return future
        done: Future[Automaton] = Future()
        settle_future(done, known)
        return done

    @property
    def gauges(self) -> dict[str, int]:
        """The metrics named in `GAUGES`."""
        pool = self._pool
        return dict(zip(GAUGES, (pool.alive, pool.jobs.running, pool.jobs.waiting, pool.cache.held), strict=True))

    @property
    def counters(self) -> dict[str, int]:
        """The metrics named in `COUNTERS`."""
        return dict(zip(COUNTERS, (self._pool.finished, self._pool.lost), strict=True))

    def close(self) -> None:
        """End the workers; open jobs fail. Closing twice is fine."""
        self._pool.close()


class _WorkerPool:
    """Threads that keep a worker process each. They do not know the compiler, so a dropped compiler can be collected.

    `lost` and `finished` count lost workers, and jobs that ended with an automaton or an error of their own.
    """

    def __init__(
        self,
        pieces: Callable[[], Sequence[bytes]],
        ids: SpecialIds,
        command: tuple[str, ...],
        workers: int,
        limit_s: float,
        cache_bytes: int,
        max_waiting: int,
    ) -> None:
        self.jobs = JobQueue(max_waiting, workers)
        self.cache = AutomatonCache(cache_bytes)
        self.lost = self.finished = 0
        self._pieces: Callable[[], Sequence[bytes]] | None = pieces
        self._ids = ids
        self._command = command
        self._count = workers
        self._limit_s = limit_s
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._workers: set[WorkerProcess] = set()
        self._setup: tuple[bytes, TokenBytes] | None = None
        self._setup_lock = threading.Lock()
        _pools.add(self)

    @property
    def alive(self) -> int:
        """Worker processes that run."""
        with self._lock:
            return sum(worker.exit_code is None for worker in self._workers)

    def start(self) -> None:
        """Start a first worker, and a further one where a job waits that the others are too busy for."""
        with self._lock:
            running = len(self._threads)
            if self.jobs.ended or running >= self._count or (running and not self.jobs.wants_more(running)):
                return
            thread = threading.Thread(target=self._run, name=f"photonlite-grammar-{running}", daemon=True)
            thread.start()
            self._threads.append(thread)  # after its start: a thread that could not start is not joined

    def stop(self) -> None:
        """Fail all jobs, take no more, and end the workers, without waiting for the threads."""
        self.jobs.end(ModelError("the model is closed: load it again"))
        with self._lock:
            for worker in self._workers:
                worker.kill()

    def close(self) -> None:
        """Stop, and wait for the threads."""
        self.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def disown(self) -> None:
        """Refuse all jobs in a forked process. Threads and workers stayed behind, with any lock they held."""
        for worker in self._workers:
            worker.disown()
        self._workers, self._threads, self._lock = set(), [], threading.RLock()
        self.jobs = JobQueue(0)
        self.jobs.end(ModelError("this process was forked, and the grammar workers stayed behind: load the model here"))

    def _run(self) -> None:
        worker: WorkerProcess | None = None
        try:
            while (worker := self._ready_worker(worker)) is not None:
                job = self.jobs.take()
                if job is None:
                    return
                self._serve(worker, job)
        finally:
            self._discard(worker)

    def _ready_worker(self, worker: WorkerProcess | None) -> WorkerProcess | None:
        """Return the worker, or another one where it has ended; None once the pool is closed."""
        while worker is None or not worker.alive:
            self._discard(worker)
            worker = None
            if self.jobs.ended:
                return None
            try:
                worker = self._start_worker()
            except Exception as error:
                if not self.jobs.ended:
                    LOGGER.error("a grammar worker does not start", exc_info=error)
                self.jobs.fail_waiting(error if isinstance(error, PhotonliteError) else _unforeseen(error))
                self.jobs.wait()  # try again with the next job
        return worker

    def _start_worker(self) -> WorkerProcess:
        setup, _ = self._vocabulary()
        worker = WorkerProcess(self._command)
        with self._lock:
            self._workers.add(worker)
            if self.jobs.ended:
                worker.kill()
        try:
            worker.prepare(setup)
        except BaseException:
            self._discard(worker)
            raise
        return worker

    def _discard(self, worker: WorkerProcess | None) -> None:
        if worker is not None:
            with self._lock:
                self._workers.discard(worker)
            worker.close()

    def _vocabulary(self) -> tuple[bytes, TokenBytes]:
        """Return the first frame of a worker, and the token bytes that all automata share."""
        with self._setup_lock:
            if self._setup is None:
                assert self._pieces is not None
                pieces = list(self._pieces())
                self._setup = encode((pieces, self._ids, self._limit_s, MEMORY)), TokenBytes(pieces)
                self._pieces = None  # it may keep a model alive
            return self._setup

    def _serve(self, worker: WorkerProcess, job: CompileJob) -> None:
        try:
            outcome = self.cache.get(job.spec, job.cache_salt) or self._compile(worker, job)
        except Exception as error:  # a bug: this job fails, the next ones go on
            outcome = _unforeseen(error)
        if outcome is None:
            self.jobs.put_back(job)
        else:
            self.jobs.finish(job, outcome)

    def _compile(self, worker: WorkerProcess, job: CompileJob) -> Outcome | None:
        """Have a job compiled; None where it is to be tried again."""
        begun = time.perf_counter()
        try:
            reply, size = worker.ask(job.spec, self._limit_s)
        except GrammarWorkerLostError as lost:
            return self._after_loss(worker, job, lost)
        with self._lock:
            self.finished += 1
        if isinstance(reply, GrammarError) and time.perf_counter() - begun >= COSTLY_S:
            self.cache.refuse(job.spec, reply, job.cache_salt)
        if not isinstance(reply, Automaton):
            return reply if isinstance(reply, Exception) else TypeError(f"a worker answered {reply!r:.100}")
        automaton = replace(reply, pieces=self._vocabulary()[1])
        self.cache.keep(job.spec, automaton, size, job.cache_salt)
        return automaton

    def _after_loss(self, worker: WorkerProcess, job: CompileJob, lost: GrammarWorkerLostError) -> Outcome | None:
        """Return the error of a job whose worker was lost; None where it is to be tried again. See the module."""
        with self._lock:
            self.lost += 1
        if not self.jobs.ended:
            LOGGER.warning("a grammar worker ended with exit code %s: %s", worker.exit_code, lost.reason)
        job.lost[lost.reason] += 1
        if job.lost[lost.reason] <= _RETRIES[lost.reason]:
            return None
        kind = job.spec.kind
        if lost.reason in ("killed", "not taken"):
            return GrammarWorkerError(
                f"the processes that should have compiled the {kind} were killed from outside: try again later, and "
                "see whether this machine has too little memory"
            )
        error: GrammarError = GrammarTimeoutError(
            f"the {kind} was not compiled within {self._limit_s:g} s: make it smaller, or raise grammar_limit_s of the "
            "engine"
        )
        if lost.reason == "crashed":
            error = GrammarTooLargeError(
                f"two processes that compiled the {kind} ended, the last with exit code {worker.exit_code}, as they do "
                f"when {MEMORY >> 20} MiB of memory are not enough: make it smaller"
            )
        self.cache.refuse(job.spec, error, job.cache_salt)
        return error


def _unforeseen(error: Exception) -> EngineError:
    return EngineError(f"the grammar could not be compiled: {error!r:.300}")


# A worker must not outlive its interpreter, nor a thread be at work when that goes away.
_pools: "weakref.WeakSet[_WorkerPool]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _disown_all() -> None:
    for pool in list(_pools):
        pool.disown()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_disown_all)
