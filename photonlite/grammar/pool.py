"""Threads that keep a worker process each, and give it one job after the other.

```
compile ──> JobQueue ──take──> thread ──ask──> worker process
               ^                  │ killed or lost: another one is started at once
               └──── finish ──────┘
```

The threads know the pool only, never the compiler in front of it, so that a compiler nobody refers to can end.
"""

import atexit
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
    ModelError,
    PhotonliteError,
)
from photonlite.grammar.compiled import Compiled
from photonlite.grammar.handover import Handover
from photonlite.grammar.jobs import Job, JobQueue, Outcome
from photonlite.grammar.language import Language
from photonlite.grammar.process import MEMORY, LateError, LostError, NotTakenError, WorkerProcess
from photonlite.grammar.tables import Automaton

COSTLY_S: Final = 0.25
"""Seconds from which on a refusal is remembered: quicker ones are found out again as easily."""

_RETURNS: Final = 2
"""How often a job is given to another worker, because the one before had ended by itself."""

_CLOSED: Final = "the model is closed: load it again"


class WorkerPool:
    """Compiles what a queue holds.

    Args:
        handover: What workers are told.
        command: Starts a worker.
        workers: Processes, and threads.
        limit_s: Seconds of a job at most, counted from when a worker that is ready gets it.
        compiled: Takes the results.
        max_waiting: Jobs that may wait.

    Attributes:
        jobs: What waits and runs.
        compiled: As given.
    """

    def __init__(
        self,
        handover: Handover,
        command: Sequence[str],
        workers: int,
        limit_s: float,
        compiled: Compiled,
        max_waiting: int,
    ) -> None:
        self.jobs = JobQueue(max_waiting)
        self.compiled = compiled
        self._handover = handover
        self._command = tuple(command)
        self._count = workers
        self._limit_s = limit_s
        self._max_waiting = max_waiting
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._workers: set[WorkerProcess] = set()
        _pools.add(self)

    def start(self) -> None:
        """Start threads and workers, unless they run."""
        with self._lock:
            if self._threads or self.jobs.ended:
                return
            for number in range(self._count):
                thread = threading.Thread(target=self._run, name=f"photonlite-grammar-{number}", daemon=True)
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
        self.jobs, self.compiled = JobQueue(self._max_waiting), Compiled(self.compiled.limit)
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

    def _serve(self, worker: WorkerProcess, job: Job) -> None:
        try:
            outcome = self.compiled.get(job.language) or self._compile(worker, job.language)
        except NotTakenError as error:
            if job.returned < _RETURNS:
                self.jobs.put_back(job)
            else:
                self.jobs.finish(job, _unforeseen(error))
        except Exception as error:  # a bug; it is this job that fails, not those behind it
            self.jobs.finish(job, _unforeseen(error))
        else:
            self.jobs.finish(job, outcome)

    def _compile(self, worker: WorkerProcess, language: Language) -> Outcome:
        begun = time.perf_counter()
        try:
            reply, size = worker.ask(language, self._limit_s)
        except (LateError, LostError) as lost:
            error = self._late(language) if isinstance(lost, LateError) else _lost(language, worker)
            self.compiled.refuse(language, error)
            return error
        if isinstance(reply, GrammarError) and time.perf_counter() - begun >= COSTLY_S:
            self.compiled.refuse(language, reply)
        if not isinstance(reply, Automaton):
            return reply if isinstance(reply, Exception) else TypeError(f"a worker answered {reply!r:.100}")
        automaton = self._handover.completed(reply)
        self.compiled.keep(language, automaton, size)
        return automaton

    def _late(self, language: Language) -> GrammarError:
        return GrammarTimeoutError(
            f"the {language.kind} was not compiled within {self._limit_s:g} s: make it smaller, or raise "
            "grammar_limit_s of the engine"
        )


def _unforeseen(error: Exception) -> EngineError:
    return EngineError(f"the grammar could not be compiled: {error!r:.300}")


def _lost(language: Language, worker: WorkerProcess) -> GrammarError:
    return GrammarTooLargeError(
        f"the process that compiled the {language.kind} ended with exit code {worker.exit_code}, as it does when "
        f"{MEMORY >> 20} MiB of memory are not enough: make it smaller"
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
