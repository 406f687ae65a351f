"""Jobs that wait for a worker: each once, however many futures wait for it, in fair turns by caller.

```
add ──> waiting ──take──> running ──finish──> gone
           └── all its futures are cancelled ──^
```

The next job is of the caller that has used the least worker time. A caller that returns after a pause starts at the
time of the job that was taken last: pauses earn no credit. (Start-time fair queueing: Goyal, Vin and Cheng, 1996.)
Futures stay pending until the end, so each can be cancelled at any time.
"""

import contextlib
import copy
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class Job(Generic[Work, Result]):
    work: Work
    key: Hashable
    caller: str = ""
    begun: float | None = None  # when it was taken; None while it waits
    waiters: "list[Future[Result]]" = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)  # workers, by reason


class JobQueue(Generic[Work, Result]):
    """Jobs of several callers for several workers; used from any thread.

    Of several workers no named caller gets all. At most `max_waiting` jobs wait: a further one is refused, or replaces
    the newest job of the caller with the most; who is refused gets `busy()`. `on_abandoned` is called with a running
    job whose last future is cancelled; the job runs on, and its result serves the next request for it.
    """

    def __init__(
        self,
        max_waiting: int,
        busy: Callable[[], Exception] = Exception,
        *,
        workers: int = 1,
        clock: Callable[[], float] = time.monotonic,
        on_abandoned: Callable[[Job[Work, Result]], None] = lambda job: None,
    ) -> None:
        self._max_waiting = max_waiting
        self._busy = busy
        self._workers = workers
        self._clock = clock
        self._on_abandoned = on_abandoned
        self._jobs: dict[Hashable, Job[Work, Result]] = {}  # oldest first
        self._used: dict[str, float] = {}  # worker time of callers, in the virtual time of the queue
        self._now = 0.0
        self._ended: Exception | None = None
        # Reentrant: a callback, or a collection of garbage, may cancel a future or end the queue on any line.
        self._changed = threading.Condition(threading.RLock())

    @property
    def ended(self) -> bool:
        return self._ended is not None

    @property
    def waiting(self) -> int:
        return len(self._waiting())

    @property
    def running(self) -> int:
        with self._changed:
            return len(self._jobs) - self.waiting

    def wants_more(self, workers: int) -> bool:
        """Whether one worker more than these would have a job."""
        with self._changed:
            return len(self._eligible()) > workers - self.running

    def add(self, work: Work, key: Hashable = None, caller: str = "") -> "Future[Result]":
        """Ask for a job, or join the caller's open one with an equal key; a refusal is the future's error."""
        future: Future[Result] = Future()
        job: Job[Work, Result] = Job(work, object() if key is None else (key, caller), caller)
        refused: list[Job[Work, Result]] = []
        with self._changed:
            if job.key in self._jobs or self._has_room(job, refused):
                if not any(one.caller == caller for one in self._open()):
                    self._used[caller] = max(self._used.get(caller, 0.0), self._now)
                job = self._jobs.setdefault(job.key, job)
                self._changed.notify_all()
            else:
                refused.append(job)
            job.waiters.append(future)
            if self._ended is not None:  # asked last: a collection of garbage may have ended the queue just now
                refused.append(job)
        for one in refused:
            self.finish(one, copied(self._ended) if self._ended is not None else self._busy())
        future.add_done_callback(partial(self._leave, job))
        return future

    def take(self) -> Job[Work, Result] | None:
        """Wait for the next job; None once the queue has ended."""
        with self._changed:
            self._wait()
            ready = self._eligible()
            if self.ended or not ready:
                return None
            job = min(ready, key=lambda one: self._used[one.caller])
            self._now = self._used[job.caller]
            job.begun = self._clock()
            return job

    def put_back(self, job: Job[Work, Result]) -> None:
        """Make a running job its caller's next one; drop it where no future waits for it any more."""
        with self._changed:
            if not job.waiters:
                self._jobs.pop(job.key, None)
            self._charge(job)
            self._changed.notify_all()

    def finish(self, job: Job[Work, Result], outcome: Result | BaseException) -> None:
        with self._changed:
            if self._jobs.get(job.key) is job:
                del self._jobs[job.key]
                self._charge(job)
                self._changed.notify_all()  # another job of its caller may run now
            waiters, job.waiters = job.waiters, []
        for place, future in enumerate(waiters):
            settle_future(future, outcome if place == 0 else copied(outcome))

    def fail_waiting(self, error: Exception) -> None:
        """Fail the jobs that wait; running ones continue."""
        for job in self._waiting():
            self.finish(job, copied(error))

    def end(self, error: Exception) -> None:
        """Fail all jobs, running ones too, and every later one; a second call changes nothing."""
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()
        for job in self._open():
            self.finish(job, copied(error))

    def _wait(self) -> None:
        self._changed.wait_for(lambda: self._eligible() or self.ended)

    def _open(self) -> list[Job[Work, Result]]:
        return list(self._jobs.values())  # a copy: the queue may end in the middle of a loop

    def _waiting(self) -> list[Job[Work, Result]]:
        return [job for job in self._open() if job.begun is None]

    def _eligible(self) -> list[Job[Work, Result]]:
        """Return the waiting jobs that may run now if there are workers for them; those of a caller in their order."""
        if self._workers == 1:
            return self._waiting()
        running = Counter(job.caller for job in self._open() if job.begun is not None)
        found = []
        for job in self._waiting():
            running[job.caller] += 1
            if not job.caller or running[job.caller] < self._workers:
                found.append(job)
        return found

    def _has_room(self, job: Job[Work, Result], dropped: list[Job[Work, Result]]) -> bool:
        """Whether a new job may wait; in a full queue only in place of another one, which is added to `dropped`."""
        waiting = self._waiting()
        if len(waiting) < self._max_waiting:
            return True
        counts = Counter(one.caller for one in waiting)
        greedy, most = max(counts.items(), key=lambda item: item[1], default=("", 0))
        if most <= counts[job.caller] + 1:
            return False
        newest = [one for one in waiting if one.caller == greedy][-1]
        del self._jobs[newest.key]
        dropped.append(newest)
        return True

    def _charge(self, job: Job[Work, Result]) -> None:
        """Charge the time of a running job to its caller, and forget callers without jobs or time to make up for."""
        if job.begun is not None and job.caller in self._used:
            self._used[job.caller] += self._clock() - job.begun
        job.begun = None
        callers = {one.caller for one in self._open()}
        if not callers:
            self._now = 0.0
        self._used = {one: used for one, used in self._used.items() if one in callers or (callers and used > self._now)}

    def _leave(self, job: Job[Work, Result], future: "Future[Result]") -> None:
        """Forget a cancelled future, and its job where no other future waits for it and it has not begun."""
        if not future.cancelled():
            return
        with self._changed:
            if future in job.waiters:
                job.waiters.remove(future)
            abandoned = not job.waiters and self._jobs.get(job.key) is job
            if abandoned and job.begun is None:
                del self._jobs[job.key]
        if abandoned:
            self._on_abandoned(job)
        future.set_running_or_notify_cancel()  # wakes `concurrent.futures.wait`


def settle_future(future: "Future[Result]", outcome: Result | BaseException) -> None:
    """Set a future that may have been cancelled."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def copied(outcome: Result | BaseException) -> Result | BaseException:
    """Return an outcome for one more future: each gets its own copy of an error, since raising adds frames to it."""
    return copy.copy(outcome).with_traceback(None) if isinstance(outcome, BaseException) else outcome
