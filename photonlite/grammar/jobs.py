"""Languages that wait for a worker: in order, each once, however many ask for it.

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
from collections import deque
from concurrent.futures import Future, InvalidStateError
from functools import partial

from photonlite.errors import GrammarBusyError
from photonlite.grammar.language import Language
from photonlite.grammar.tables import Automaton

Outcome = Automaton | Exception


class Job:
    """A language, and those who want its automaton.

    Attributes:
        language: What is compiled.
        waiters: The futures that have not been cancelled.
        returned: How often it was put back.
    """

    __slots__ = ("language", "returned", "waiters")

    def __init__(self, language: Language) -> None:
        self.language = language
        self.returned = 0
        self.waiters: list[Future[Automaton]] = []


class JobQueue:
    """The jobs of one compiler; used from any thread.

    Args:
        max_waiting: Languages that may wait; those that workers are at do not count.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._open: dict[Language, Job] = {}
        self._waiting: deque[Job] = deque()
        self._ended: Exception | None = None
        # Reentrant, as whoever waits for a future may be told, and cancel another, in the middle of anything.
        self._changed = threading.Condition(threading.RLock())

    @property
    def ended(self) -> bool:
        """Whether there will be no more jobs."""
        return self._ended is not None

    def add(self, language: Language) -> Future[Automaton]:
        """Ask for a language; what is wrong with that reaches the future."""
        future: Future[Automaton] = Future()
        with self._changed:
            error = self._objection(language)
            if error is None:
                job = self._job(language)
                job.waiters.append(future)
        if error is not None:
            future.set_exception(error)
        else:
            future.add_done_callback(partial(self._leave, job))
        return future

    def take(self) -> Job | None:
        """Wait for the next job; None once the queue has ended."""
        with self._changed:
            self.wait()
            return self._waiting.popleft() if self._waiting else None

    def put_back(self, job: Job) -> None:
        """Let a job that was taken, and has not begun after all, be the next one."""
        with self._changed:
            job.returned += 1
            if self._open.get(job.language) is job and job.waiters:
                self._waiting.appendleft(job)
                self._changed.notify()
            else:
                self._open.pop(job.language, None)

    def wait(self) -> None:
        """Wait until there is a job, or the queue has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.ended)

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Tell all who wait for a job how it ended."""
        with self._changed:
            if self._open.get(job.language) is job:
                del self._open[job.language]
            waiters, job.waiters = job.waiters, []
        for future in waiters:
            settle(future, outcome)

    def fail_waiting(self, error: Exception) -> None:
        """Fail what waits; what runs goes on."""
        with self._changed:
            jobs = list(self._waiting)
            self._waiting.clear()
        for job in jobs:
            self.finish(job, error)

    def end(self, error: Exception) -> None:
        """Fail all jobs, those that run as well, and every later one; a second call changes nothing."""
        with self._changed:
            self._ended = self._ended or error
            jobs = list(self._open.values())
            self._waiting.clear()
            self._changed.notify_all()
        for job in jobs:
            self.finish(job, error)

    def _objection(self, language: Language) -> Exception | None:
        if self._ended is not None:
            return copy.copy(self._ended)
        if language not in self._open and len(self._waiting) >= self._max_waiting:
            return GrammarBusyError(
                f"{self._max_waiting} grammars wait to be compiled, which is the limit: try again in a moment, or "
                "raise grammar_workers of the engine"
            )
        return None

    def _job(self, language: Language) -> Job:
        job = self._open.get(language)
        if job is None:
            job = self._open[language] = Job(language)
            self._waiting.append(job)
            self._changed.notify()
        return job

    def _leave(self, job: Job, future: Future[Automaton]) -> None:
        """Forget a future that was cancelled, and its job, if nobody else waits for that and it has not begun."""
        if not future.cancelled():
            return
        with self._changed:
            if future in job.waiters:
                job.waiters.remove(future)
            if not job.waiters and job in self._waiting:
                self._waiting.remove(job)
                del self._open[job.language]
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
