"""Compiles schemas and patterns in worker processes, each spec once, and remembers the automata.

| how a worker is lost while it has a job | what becomes of the job |
|---|---|
| the job took more CPU time than its limit | `GrammarTimeoutError` |
| the job took `PATIENCE` times as many seconds, but less CPU time | `GrammarTimeoutError`, which says so |
| by itself: a crash, or memory beyond its limit (`RLIMIT_AS`) | once more; then `GrammarTooLargeError` |
| by SIGKILL or SIGTERM from outside, such as the kernel's for want of memory | once more; then `GrammarWorkerError` |
| before it took the job | twice more; then `GrammarWorkerError` |

The limits of CPU time and memory are those of one job: the first row and the third are the fault of the spec, the
others are not. The errors of the first three rows are remembered for `REFUSED_S`, so that a spec does not cost one
worker after the other.
"""

import copy
import logging
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from photonlite.errors import (
    EngineError,
    GrammarBusyError,
    GrammarError,
    GrammarTimeoutError,
    GrammarTooLargeError,
    GrammarWorkerError,
    PhotonliteError,
)
from photonlite.grammar.automata.tables import AutomatonTables, SpecialIds
from photonlite.grammar.compiler.cache import REFUSED_S, AutomatonCache
from photonlite.grammar.decoding.automaton import Automaton, TokenBytes
from photonlite.grammar.spec import GrammarSpec
from photonlite.processes.jobs import Job, JobQueue, copied, settle_future
from photonlite.processes.pool import WorkerPool
from photonlite.processes.worker import KILLED_FROM_OUTSIDE, WorkerLostError, WorkerProcess, module_command

LOGGER = logging.getLogger(__name__)

GAUGES: Final = ("grammar_workers", "grammar_running", "grammar_waiting", "grammar_cache_bytes")
COUNTERS: Final = ("grammars_compiled", "grammar_workers_lost")

COMMAND: Final = module_command("photonlite.grammar.compiler.worker")
MEMORY: Final = 2 << 30  # bytes of a worker's address space, where the system enforces such limits
PATIENCE: Final = 5.0  # a job's seconds over those of its CPU time: on a busy machine it gets little
_ALARM_S: Final = 5.0  # further seconds after which a worker whose client is gone ends
COSTLY_S: Final = 0.25  # seconds from which on a refusal is remembered: quicker ones are cheap to repeat
_RETRIES: Final = {"not taken": 2, "killed": 1, "crashed": 1, "late": 0, "starved": 0}  # by how the worker was lost

_Work = tuple[GrammarSpec, str]  # spec, cache salt


class GrammarCompiler:
    """Compiles specs for one tokenizer; used from any thread.

    `pieces` gives the bytes of every token by id, empty for special ones. It is called once, on another thread, when
    the first worker starts. A compilation has `limit_s` seconds of CPU time.
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
        def busy() -> GrammarBusyError:
            return GrammarBusyError(
                f"{max_waiting} grammars wait to be compiled, which is the limit: try again in a moment, or raise "
                "grammar_workers of the engine"
            )

        jobs: JobQueue[_Work, Automaton] = JobQueue(max_waiting, busy, workers=workers)
        self._pool = _CompilePool(jobs, AutomatonCache(cache_bytes), pieces, ids, tuple(command), workers, limit_s)
        # The pool does not know the compiler, so that a dropped one is collected, and its workers end.
        weakref.finalize(self, self._pool.stop).atexit = False

    def compile(self, spec: GrammarSpec, *, cache_salt: str = "", caller: str = "") -> "Future[Automaton]":
        """Return a future of a spec's automaton, at once.

        Equal specs of one caller and salt share a job; cancelling a future leaves the others alone. Callers share the
        workers' time, and no named caller gets all of several workers. Its errors are `GrammarError`,
        `GrammarBusyError` where too many specs wait, `GrammarWorkerError` where workers are killed or cannot be
        started, and `ModelError` once closed.
        """
        pool = self._pool
        known = None if pool.jobs.ended else pool.cache.get(spec, cache_salt)
        if known is None:
            future = pool.jobs.add((spec, cache_salt), (spec, cache_salt), caller)
            pool.start()
            return future
        done: Future[Automaton] = Future()
        settle_future(done, copied(known))
        return done

    @property
    def gauges(self) -> dict[str, int]:
        pool = self._pool
        return dict(zip(GAUGES, (len(pool.pids), pool.jobs.running, pool.jobs.waiting, pool.cache.held), strict=True))

    @property
    def counters(self) -> dict[str, int]:
        return dict(zip(COUNTERS, (self._pool.finished, self._pool.lost), strict=True))

    def close(self) -> None:
        """End the workers; open jobs fail. Closing twice is fine."""
        self._pool.close()


class CompileProcess(WorkerProcess):
    """A process that compiles one spec after the other. One thread uses it; any thread may kill it."""

    purpose = "compiles grammars"
    start_error = GrammarWorkerError

    def ask(self, spec: GrammarSpec, patience_s: float) -> tuple[object, int]:
        """Return an automaton or the worker's error, and its bytes; WorkerLostError with a reason of `_RETRIES`."""
        deadline, taken = time.monotonic() + patience_s, False
        try:
            self.send(pickle.dumps(spec))
            self.receive(deadline)
            taken = True
            data = self.receive(deadline)
        except TimeoutError as cause:
            self.close()
            raise WorkerLostError("starved") from cause
        except (OSError, EOFError) as cause:
            code = self.wait_exit()
            how = "late" if code == -signal.SIGPROF else "killed" if code in KILLED_FROM_OUTSIDE else "crashed"
            raise WorkerLostError(how if taken else "not taken") from cause
        # Only this program's own processes are trusted with this: a pickle from elsewhere could run anything.
        return pickle.loads(data), len(data)


class _CompilePool(WorkerPool[CompileProcess, _Work, Automaton]):
    """Threads with a worker each, started when they are needed."""

    def __init__(
        self,
        jobs: JobQueue[_Work, Automaton],
        cache: AutomatonCache,
        pieces: Callable[[], Sequence[bytes]],
        ids: SpecialIds,
        command: tuple[str, ...],
        workers: int,
        limit_s: float,
    ) -> None:
        super().__init__("photonlite-grammar", jobs)
        self.cache = cache
        self.lost = self.finished = 0  # workers; jobs that ended with an automaton or an error of their own
        self._pieces: Callable[[], Sequence[bytes]] | None = pieces
        self._ids = ids
        self._command = command
        self._count = workers
        self._limit_s = limit_s
        self._setup: tuple[bytes, TokenBytes] | None = None
        self._setup_lock = threading.Lock()

    def start(self) -> None:
        """Start a first worker, and a further one where a job waits that the others are too busy for."""
        with self._lock:
            running = len(self._threads)
            if running < self._count and (not running or self.jobs.wants_more(running)):
                self.start_thread()

    def make_process(self) -> CompileProcess:
        try:
            setup, _ = self._vocabulary()
        except Exception as error:
            raise _unforeseen(error) from error
        return CompileProcess(self._command, setup=setup)

    def attempt(self, process: CompileProcess, work: _Work, job: Job[_Work, Automaton]) -> Automaton | Exception | None:
        try:
            return self.cache.get(*work) or self._compile(process, job)
        except Exception as error:  # a bug: this job fails, the next ones go on
            return _unforeseen(error)

    def _vocabulary(self) -> tuple[bytes, TokenBytes]:
        """Return the first message to a worker, and the token bytes that all automata share."""
        with self._setup_lock:
            if self._setup is None:
                assert self._pieces is not None
                pieces = list(self._pieces())
                limits = self._limit_s, PATIENCE * self._limit_s + _ALARM_S, MEMORY
                self._setup = pickle.dumps((pieces, self._ids, *limits)), TokenBytes(pieces)
                self._pieces = None  # it may keep a model alive
            return self._setup

    def _compile(self, process: CompileProcess, job: Job[_Work, Automaton]) -> Automaton | Exception | None:
        begun = time.perf_counter()
        spec, cache_salt = job.work
        try:
            reply, size = process.ask(spec, PATIENCE * self._limit_s)
        except WorkerLostError as lost:
            return self._after_loss(process, job, lost.reason)
        with self._lock:
            self.finished += 1
        if isinstance(reply, GrammarError) and time.perf_counter() - begun >= COSTLY_S:
            self.cache.refuse(spec, copy.copy(reply), cache_salt)
        if not isinstance(reply, AutomatonTables):
            return reply if isinstance(reply, Exception) else TypeError(f"a worker answered {reply!r:.100}")
        automaton = Automaton(reply, self._vocabulary()[1])
        self.cache.keep(spec, automaton, size, cache_salt)
        return automaton

    def _after_loss(self, process: CompileProcess, job: Job[_Work, Automaton], reason: str) -> PhotonliteError | None:
        """Return the error of a job whose worker was lost; None where it is to be tried again. See the module."""
        with self._lock:
            self.lost += 1
        if not self.jobs.ended:
            LOGGER.warning("a grammar worker ended with exit code %s: %s", process.exit_code, reason)
        job.lost[reason] += 1
        if job.lost[reason] <= _RETRIES[reason]:
            return None
        spec, cache_salt = job.work
        if reason in ("killed", "not taken"):
            return GrammarWorkerError(
                f"the processes that should have compiled the {spec.kind} were killed from outside: try again later, "
                "and see whether this machine has too little memory"
            )
        error: GrammarError
        if reason == "late":
            error = GrammarTimeoutError(
                f"the {spec.kind} was not compiled within {self._limit_s:g} s of CPU time: make it smaller, or raise "
                "grammar_limit_s of the engine"
            )
        elif reason == "starved":
            error = GrammarTimeoutError(
                f"the {spec.kind} was not compiled within {PATIENCE * self._limit_s:g} s, in which it got less than "
                f"{self._limit_s:g} s of CPU time, its limit: try again in {REFUSED_S:g} s, when the machine may be "
                "less busy, or raise grammar_limit_s of the engine"
            )
        else:
            error = GrammarTooLargeError(
                f"two processes that compiled the {spec.kind} ended, the last with exit code {process.exit_code}, as "
                f"they do when {MEMORY >> 20} MiB of memory are not enough: make it smaller"
            )
        self.cache.refuse(spec, copy.copy(error), cache_salt)
        return error


def _unforeseen(error: Exception) -> Exception:
    if isinstance(error, PhotonliteError | MemoryError):  # callers are told of a shortage by its type
        return error
    return EngineError(f"the grammar could not be compiled: {error!r:.300}")
