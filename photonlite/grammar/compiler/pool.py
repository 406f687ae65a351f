"""Threads that keep a worker process each, and give it one job after the other.

```
compile ──> JobQueue ──take──> thread ──ask──> worker process
               ^                  │ ended: another one is started at once
               └──── finish ──────┘
```

| how a worker ends while it is at a job | what becomes of the job |
|---|---|
| this process kills it, because the job took longer than its limit | `GrammarTimeoutError` |
| by itself: a crash, or memory beyond its own limit (`RLIMIT_AS`) | once more; then `GrammarTooLargeError` |
| by SIGKILL or SIGTERM from outside, such as the kernel's for want of memory | once more; then `GrammarWorkerError` |
| before it took the job | twice more; then `GrammarWorkerError` |

The first two are the client's, as both limits are those of one job; the others never are. A second worker starts when a
job would have to wait for the first one, and so on.

The threads know the pool only, never the compiler in front of it, so that a compiler nobody refers to can end.
"""

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
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
from photonlite.grammar.automata.tables import Automaton
from photonlite.grammar.compiler.cache import AutomatonCache
from photonlite.grammar.compiler.fair_queue import CompileJob
from photonlite.grammar.compiler.handover import Handover
from photonlite.grammar.compiler.jobs import JobQueue, Outcome
from photonlite.grammar.compiler.process import (
    MEMORY,
    CrashedError,
    KilledError,
    LateError,
    NotTakenError,
    WorkerProcess,
)
from photonlite.grammar.spec import GrammarSpec

LOGGER = logging.getLogger(__name__)

COSTLY_S: Final = 0.25
"""Seconds from which on a refusal is remembered: quicker ones are found out again as easily."""

_RETURNS: Final = 2
"""How often a job is given to another worker, because the one before had ended before it took the job."""

_RETRIES: Final = 1
"""How often a job is tried again that a worker did not survive."""

_CLOSED: Final = "the model is closed: load it again"


class WorkerPool:
    """Compiles what a queue holds.

    Args:
        handover: What workers are told.
        command: Starts a worker.
        workers: Processes at most, and threads.
        limit_s: Seconds of a job at most, counted from when a worker that is ready gets it.
        compiled: Takes the results.
        max_waiting: Jobs that may wait.

    Attributes:
        jobs: What waits and runs.
        compiled: As given.
        lost: Workers that ended while they were at a job, or had to be killed.
        finished: Jobs whose end was not an error of the pool: automata, and errors of specs.
    """

    def __init__(
        self,
        handover: Handover,
        command: Sequence[str],
        workers: int,
        limit_s: float,
        compiled: AutomatonCache,
        max_waiting: int,
    ) -> None:
        self.jobs = JobQueue(max_waiting, workers)
        self.compiled = compiled
        self.lost = 0
        self.finished = 0
        self._handover = handover
        self._command = tuple(command)
        self._count = workers
        self._limit_s = limit_s
        self._max_waiting = max_waiting
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._workers: set[WorkerProcess] = set()
        _pools.add(self)

    @property
    def alive(self) -> int:
        """Worker processes that run."""
        with self._lock:
            return sum(worker.exit_code is None for worker in self._workers)

    def start(self) -> None:
        """Start a first worker, and a further one where a job waits that all others are too busy for."""
        with self._lock:
            running = len(self._threads)
            if self.jobs.ended or running >= self._count or (running and not self.jobs.wants_more(running)):
                return
            thread = threading.Thread(target=self._run, name=f"photonlite-grammar-{running}", daemon=True)
            thread.start()
            self._threads.append(thread)  # those that have begun: nobody waits for another

    def stop(self) -> None:
        """Fail all jobs, take no more, and end the workers, without waiting for the threads."""
        self.jobs.end(ModelError(_CLOSED))
        with self._lock:
            for worker in self._workers:
                worker.kill()

    def close(self) -> None:
        """The same, and wait until the threads have ended."""
        self.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def forget(self) -> None:
        """Begin anew in a process that was forked: its threads, its workers and what was asked are not here."""
        ended = self.jobs.ended
        for worker in self._workers:
            worker.disown()
        self._workers, self._threads = set(), []
        self._lock = threading.RLock()
        self._handover.renew_lock()
        self.jobs, self.compiled = JobQueue(self._max_waiting, self._count), AutomatonCache(self.compiled.limit)
        if ended:
            self.jobs.end(ModelError(_CLOSED))

    def _run(self) -> None:
        worker: WorkerProcess | None = None
        try:
            while (worker := self._ready(worker)) is not None:
                job = self.jobs.take()
                if job is None:
                    return
                self._serve(worker, job)
        finally:
            self._discard(worker)

    def _ready(self, worker: WorkerProcess | None) -> WorkerProcess | None:
        """Give the worker, or another one where it has ended; None once the pool has."""
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
                self.jobs.wait()  # the next job is a reason to try again
        return worker

    def _start_worker(self) -> WorkerProcess:
        setup = self._handover.frame
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

    def _serve(self, worker: WorkerProcess, job: CompileJob) -> None:
        try:
            outcome = self.compiled.get(job.spec, job.cache_salt) or self._compile(worker, job)
        except Exception as error:  # a bug; it is this job that fails, not those behind it
            outcome = _unforeseen(error)
        if outcome is None:
            self.jobs.put_back(job)
        else:
            self.jobs.finish(job, outcome)

    def _compile(self, worker: WorkerProcess, job: CompileJob) -> Outcome | None:
        """Have a job done; None where it is to be tried again."""
        spec = job.spec
        begun = time.perf_counter()
        try:
            reply, size = worker.ask(spec, self._limit_s)
        except (NotTakenError, KilledError, CrashedError, LateError) as lost:
            return self._after_loss(worker, job, lost)
        with self._lock:
            self.finished += 1
        if isinstance(reply, GrammarError) and time.perf_counter() - begun >= COSTLY_S:
            self.compiled.refuse(spec, reply, job.cache_salt)
        if not isinstance(reply, Automaton):
            return reply if isinstance(reply, Exception) else TypeError(f"a worker answered {reply!r:.100}")
        automaton = self._handover.completed(reply)
        self.compiled.keep(spec, automaton, size, job.cache_salt)
        return automaton

    def _after_loss(self, worker: WorkerProcess, job: CompileJob, lost: Exception) -> Outcome | None:
        """Return the error of a job whose worker has ended; None where it is to be tried again. See the module."""
        with self._lock:
            self.lost += 1
        if not self.jobs.ended:
            LOGGER.warning("a grammar worker ended with exit code %s: %s", worker.exit_code, type(lost).__name__)
        if isinstance(lost, NotTakenError):
            job.not_taken += 1
            return None if job.not_taken <= _RETURNS else _killed(job.spec)
        if isinstance(lost, KilledError):
            job.killed += 1
            return None if job.killed <= _RETRIES else _killed(job.spec)
        if isinstance(lost, CrashedError):
            job.crashed += 1
            if job.crashed <= _RETRIES:
                return None
        error = self._late(job.spec) if isinstance(lost, LateError) else _crashed(job.spec, worker)
        self.compiled.refuse(job.spec, error, job.cache_salt)
        return error

    def _late(self, spec: GrammarSpec) -> GrammarError:
        return GrammarTimeoutError(
            f"the {spec.kind} was not compiled within {self._limit_s:g} s: make it smaller, or raise "
            "grammar_limit_s of the engine"
        )


def _unforeseen(error: Exception) -> EngineError:
    return EngineError(f"the grammar could not be compiled: {error!r:.300}")


def _killed(spec: GrammarSpec) -> GrammarWorkerError:
    return GrammarWorkerError(
        f"the processes that should have compiled the {spec.kind} were killed from outside: try again later, and "
        "see whether this machine has too little memory"
    )


def _crashed(spec: GrammarSpec, worker: WorkerProcess) -> GrammarError:
    return GrammarTooLargeError(
        f"two processes that compiled the {spec.kind} ended, the last with exit code {worker.exit_code}, as they "
        f"do when {MEMORY >> 20} MiB of memory are not enough: make it smaller"
    )


# A worker must not outlive its interpreter, nor a thread be at work when that goes away.
_pools: "weakref.WeakSet[WorkerPool]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_all)
