"""Jobs that wait for a worker: each once, however many futures wait for it, in fair turns by caller.

```
add ──> waiting ──take──> running ──finish──> gone
           └── all its futures are cancelled ──^
```

The next job is of the caller that has used the least worker time. A caller that returns after a pause starts at the
time of the job that was taken last: pauses earn no credit. (Start-time fair queueing: Goyal, Vin and Cheng, 1996.)

Futures stay pending until the end, so each can be cancelled at any time. A running job whose last future is cancelled
runs on: its result serves the next request for it.
"""

import contextlib
import copy
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial

from photonlite.errors import GrammarBusyError
from photonlite.grammar.automata.tables import Automaton
from photonlite.grammar.spec import GrammarSpec

Outcome = Automaton | Exception


@dataclass(eq=False, slots=True)
class CompileJob:
    """A spec to compile for one caller, the futures that wait for it, and the workers lost with it by reason."""

    spec: GrammarSpec
    cache_salt: str = ""
    caller: str = ""
    waiters: "list[Future[Automaton]]" = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)

    @property
    def key(self) -> tuple[str, str, GrammarSpec]:
        return self.caller, self.cache_salt, self.spec


class _CallerQueue:
    """One caller's jobs. `time` is the worker time it has used, in the virtual time of the queue."""

    __slots__ = ("running", "time", "waiting")

    def __init__(self, time: float) -> None:
        self.time = time
        self.waiting: deque[CompileJob] = deque()
        self.running: dict[CompileJob, float] = {}  # and when each was taken


class FairQueue:
    """Waiting and running jobs by caller; not locked. Of several workers no named caller gets all."""

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._clock = clock
        self._now = 0.0
        self._callers: dict[str, _CallerQueue] = {}

    @property
    def waiting(self) -> int:
        return sum(len(queue.waiting) for queue in self._callers.values())

    @property
    def running(self) -> int:
        return sum(len(queue.running) for queue in self._callers.values())

    @property
    def eligible(self) -> int:
        """How many waiting jobs may run now, if there are workers for them."""
        return sum(min(len(queue.waiting), self._room(caller)) for caller, queue in self._callers.items())

    @property
    def jobs(self) -> list[CompileJob]:
        return [job for queue in self._callers.values() for job in queue.waiting]

    def add(self, job: CompileJob, *, first: bool = False) -> None:
        queue = self._callers.setdefault(job.caller, _CallerQueue(self._now))
        if not queue.waiting and not queue.running:
            queue.time = max(queue.time, self._now)
        (queue.waiting.appendleft if first else queue.waiting.append)(job)

    def take(self) -> CompileJob | None:
        """Start the next job; None where none may run."""
        ready = [queue for caller, queue in self._callers.items() if queue.waiting and self._room(caller)]
        if not ready:
            return None
        queue = min(ready, key=lambda one: one.time)
        self._now = queue.time
        job = queue.waiting.popleft()
        queue.running[job] = self._clock()
        return job

    def end(self, job: CompileJob) -> None:
        """Charge a running job's time to its caller; other jobs are left as they are."""
        queue = self._callers.get(job.caller)
        if queue is None or job not in queue.running:
            return
        queue.time += self._clock() - queue.running.pop(job)
        self._forget_idle()

    def remove(self, job: CompileJob) -> bool:
        """Take a waiting job out; returns whether it was waiting."""
        queue = self._callers.get(job.caller)
        if queue is None or job not in queue.waiting:
            return False
        queue.waiting.remove(job)
        return True

    def make_room(self, caller: str) -> CompileJob | None:
        """Take out the newest job of the caller with the most; None where `caller` would then have as many."""
        own = self._callers.get(caller)
        longest = max(self._callers.values(), key=lambda queue: len(queue.waiting))
        if len(longest.waiting) <= (len(own.waiting) if own else 0) + 1:
            return None
        return longest.waiting.pop()

    def clear(self) -> None:
        for queue in self._callers.values():
            queue.waiting.clear()

    def _room(self, caller: str) -> int:
        """How many more jobs of a caller may run, if there are workers for them."""
        if not caller or self._workers == 1:
            return len(self._callers[caller].waiting)
        return self._workers - 1 - len(self._callers[caller].running)

    def _forget_idle(self) -> None:
        """Forget callers without jobs or time to make up for; forget all where there are no jobs."""
        if not self.waiting and not self.running:
            self._callers.clear()
            self._now = 0.0
        for caller, queue in list(self._callers.items()):
            if not queue.waiting and not queue.running and queue.time <= self._now:
                del self._callers[caller]


class JobQueue:
    """The jobs of one compiler; used from any thread.

    At most `max_waiting` jobs wait. A further one is refused, or replaces the newest job of the caller with the most.
    """

    def __init__(self, max_waiting: int, workers: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_waiting = max_waiting
        self._open: dict[tuple[str, str, GrammarSpec], CompileJob] = {}
        self._queue = FairQueue(workers, clock)
        self._ended: Exception | None = None
        # Reentrant: a future's callback may cancel another future in the middle of anything.
        self._changed = threading.Condition(threading.RLock())

    @property
    def ended(self) -> bool:
        """Whether every further job fails."""
        return self._ended is not None

    @property
    def waiting(self) -> int:
        with self._changed:
            return self._queue.waiting

    @property
    def running(self) -> int:
        with self._changed:
            return self._queue.running

    def wants_more(self, workers: int) -> bool:
        """Whether one worker more than these would have a job."""
        with self._changed:
            return self._queue.eligible > workers - self._queue.running

    def add(self, spec: GrammarSpec, cache_salt: str = "", caller: str = "") -> "Future[Automaton]":
        """Ask for a spec; a refusal is the future's error."""
        future: Future[Automaton] = Future()
        key = caller, cache_salt, spec
        error: Exception | None = None
        dropped = None
        with self._changed:
            job = self._open.get(key)
            if self._ended is not None:
                error = self._ended
            elif job is None and self.waiting >= self._max_waiting and not (dropped := self._queue.make_room(caller)):
                error = self._busy()
            else:
                if job is None:
                    job = self._open[key] = CompileJob(spec, cache_salt, caller)
                    self._queue.add(job)
                    self._changed.notify_all()
                job.waiters.append(future)
                future.add_done_callback(partial(self._leave, job))
        if dropped is not None:
            self.finish(dropped, self._busy())
        if error is not None:
            settle_future(future, error)
        return future

    def take(self) -> CompileJob | None:
        """Wait for the next job; None once the queue has ended."""
        with self._changed:
            self.wait()
            return self._queue.take()

    def wait(self) -> None:
        """Wait until a job may run, or the queue has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue.eligible or self.ended)

    def put_back(self, job: CompileJob) -> None:
        """Make a running job its caller's next one; drop it where no future waits for it any more."""
        with self._changed:
            self._queue.end(job)
            if self._open.get(job.key) is job and job.waiters:
                self._queue.add(job, first=True)
            else:
                self._open.pop(job.key, None)
            self._changed.notify_all()

    def finish(self, job: CompileJob, outcome: Outcome) -> None:
        """Settle all futures of a job."""
        with self._changed:
            self._queue.end(job)
            self._changed.notify_all()  # another job of its caller may run now
            if self._open.get(job.key) is job:
                del self._open[job.key]
            waiters, job.waiters = job.waiters, []
        for future in waiters:
            settle_future(future, outcome)

    def fail_waiting(self, error: Exception) -> None:
        """Fail the jobs that wait; running ones continue."""
        with self._changed:
            jobs = self._queue.jobs
            self._queue.clear()
        for job in jobs:
            self.finish(job, error)

    def end(self, error: Exception) -> None:
        """Fail all jobs, running ones too, and every later one; a second call changes nothing."""
        with self._changed:
            self._ended = self._ended or error
            jobs = list(self._open.values())
            self._queue.clear()
            self._changed.notify_all()
        for job in jobs:
            self.finish(job, error)

    def _busy(self) -> GrammarBusyError:
        return GrammarBusyError(
            f"{self._max_waiting} grammars wait to be compiled, which is the limit: try again in a moment, or raise "
            "grammar_workers of the engine"
        )

    def _leave(self, job: CompileJob, future: "Future[Automaton]") -> None:
        """Forget a cancelled future, and its job where no other future waits for it and it has not begun."""
        if not future.cancelled():
            return
        with self._changed:
            if future in job.waiters:
                job.waiters.remove(future)
            if not job.waiters and self._queue.remove(job):
                del self._open[job.key]
        future.set_running_or_notify_cancel()  # wakes `concurrent.futures.wait`


def settle_future(future: "Future[Automaton]", outcome: Outcome) -> None:
    """Set a future that may have been cancelled. Each gets its own copy of an error: raising adds frames to it."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(outcome, Exception):
            future.set_exception(copy.copy(outcome).with_traceback(None))
        else:
            future.set_result(outcome)
