"""Jobs that wait for a worker, and those who wait for the jobs: each job once, however many ask for it.

```
add ──> waiting ──take──> running ──finish──> gone
           └── all who asked have cancelled ───^
```

Futures stay pending until the end, so that each can be cancelled at any time. What runs when the last one is cancelled
runs on: its result serves whoever asks next.
"""

import contextlib
import copy
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial

from photonlite.errors import GrammarBusyError
from photonlite.grammar.automata.tables import Automaton
from photonlite.grammar.compiler.fair_queue import CompileJob, FairQueue
from photonlite.grammar.spec import GrammarSpec

Outcome = Automaton | Exception


class JobQueue:
    """The jobs of one compiler; used from any thread.

    Args:
        max_waiting: Jobs that may wait; those that workers are at do not count. Where one more comes, the caller with
            the most waiting jobs loses its newest one.
        workers: How many take jobs; see `FairQueue`.
        clock: Gives seconds.
    """

    def __init__(self, max_waiting: int, workers: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_waiting = max_waiting
        self._open: dict[tuple[str, str, GrammarSpec], CompileJob] = {}
        self._queue = FairQueue(workers, clock)
        self._ended: Exception | None = None
        # Reentrant, as whoever waits for a future may be told, and cancel another, in the middle of anything.
        self._changed = threading.Condition(threading.RLock())

    @property
    def ended(self) -> bool:
        """Whether there will be no more jobs."""
        return self._ended is not None

    @property
    def waiting(self) -> int:
        """Jobs that no worker has."""
        return self._queue.waiting

    @property
    def running(self) -> int:
        """Jobs that workers are at."""
        return self._queue.running

    def wants_more(self, workers: int) -> bool:
        """Whether a further worker would have something to do beside so many."""
        with self._changed:
            return self._queue.eligible > workers - self._queue.running

    def add(self, spec: GrammarSpec, cache_salt: str = "", caller: str = "") -> Future[Automaton]:
        """Ask for a spec; what is wrong with that reaches the future."""
        future: Future[Automaton] = Future()
        with self._changed:
            error, dropped = self._objection(spec, cache_salt, caller)
            if error is None:
                job = self._job(spec, cache_salt, caller)
                job.waiters.append(future)
        if dropped is not None:
            self.finish(dropped, self._busy())
        if error is not None:
            future.set_exception(error)
        else:
            future.add_done_callback(partial(self._leave, job))
        return future

    def take(self) -> CompileJob | None:
        """Wait for the next job; None once the queue has ended."""
        with self._changed:
            self.wait()
            return self._queue.take()

    def put_back(self, job: CompileJob) -> None:
        """Let a job that was taken, and has not ended, be the next one of its caller."""
        with self._changed:
            self._queue.end(job)
            if self._open.get(job.key) is job and job.waiters:
                self._queue.add(job, first=True)
            else:
                self._open.pop(job.key, None)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until a job may run, or the queue has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue.eligible or self.ended)

    def finish(self, job: CompileJob, outcome: Outcome) -> None:
        """Tell all who wait for a job how it ended."""
        with self._changed:
            self._queue.end(job)
            self._changed.notify_all()  # its caller may have a worker again
            if self._open.get(job.key) is job:
                del self._open[job.key]
            waiters, job.waiters = job.waiters, []
        for future in waiters:
            settle(future, outcome)

    def fail_waiting(self, error: Exception) -> None:
        """Fail what waits; what runs goes on."""
        with self._changed:
            jobs = self._queue.jobs
            self._queue.clear()
        for job in jobs:
            self.finish(job, error)

    def end(self, error: Exception) -> None:
        """Fail all jobs, those that run as well, and every later one; a second call changes nothing."""
        with self._changed:
            self._ended = self._ended or error
            jobs = list(self._open.values())
            self._queue.clear()
            self._changed.notify_all()
        for job in jobs:
            self.finish(job, error)

    def _objection(self, spec: GrammarSpec, cache_salt: str, caller: str) -> tuple[Exception | None, CompileJob | None]:
        """Return why a job cannot be added, or the job that is dropped for it, if one is."""
        if self._ended is not None:
            return copy.copy(self._ended), None
        if (caller, cache_salt, spec) in self._open or self._queue.waiting < self._max_waiting:
            return None, None
        dropped = self._queue.make_room(caller)
        return (self._busy() if dropped is None else None), dropped

    def _busy(self) -> GrammarBusyError:
        return GrammarBusyError(
            f"{self._max_waiting} grammars wait to be compiled, which is the limit: try again in a moment, or raise "
            "grammar_workers of the engine"
        )

    def _job(self, spec: GrammarSpec, cache_salt: str, caller: str) -> CompileJob:
        job = self._open.get((caller, cache_salt, spec))
        if job is None:
            job = CompileJob(spec, cache_salt, caller)
            self._open[job.key] = job
            self._queue.add(job)
            self._changed.notify_all()
        return job

    def _leave(self, job: CompileJob, future: Future[Automaton]) -> None:
        """Forget a future that was cancelled, and its job, if nobody else waits for that and it has not begun."""
        if not future.cancelled():
            return
        with self._changed:
            if future in job.waiters:
                job.waiters.remove(future)
            if not job.waiters and self._queue.remove(job):
                del self._open[job.key]
        future.set_running_or_notify_cancel()  # `concurrent.futures.wait` is told as well


def settle(future: Future[Automaton], outcome: Outcome) -> None:
    """Give a future its outcome, unless it has been cancelled; of an error it gets a copy of its own.

    Whoever raises an error adds frames to it, which would keep what they hold from all the others' garbage.
    """
    with contextlib.suppress(InvalidStateError):
        if isinstance(outcome, Exception):
            future.set_exception(copy.copy(outcome).with_traceback(None))
        else:
            future.set_result(outcome)
