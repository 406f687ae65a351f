"""Jobs of several callers: the next one is of the caller that has used the least of the workers' time.

A caller's time grows by the seconds that its jobs take. A caller that comes back after a pause starts where the job
that was taken last started, so that pauses earn nothing. (Start-time fair queueing: Goyal, Vin and Cheng, 1996.)
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from photonlite.grammar.automata.tables import Automaton
from photonlite.grammar.spec import GrammarSpec


class CompileJob:
    """A spec to compile, and those who want its automaton.

    Attributes:
        spec: What is compiled.
        cache_salt: Whose automaton it is: those of other salts are not told of it.
        caller: Who shares the workers with others; empty for nobody in particular.
        waiters: The futures that have not been cancelled.
        not_taken: How many workers had ended before they took it.
        killed: How many workers were killed from outside while they were at it.
        crashed: How many workers it brought down.
    """

    __slots__ = ("cache_salt", "caller", "crashed", "killed", "not_taken", "spec", "waiters")

    def __init__(self, spec: GrammarSpec, cache_salt: str = "", caller: str = "") -> None:
        self.spec = spec
        self.cache_salt = cache_salt
        self.caller = caller
        self.waiters: list[Future[Automaton]] = []
        self.not_taken = self.killed = self.crashed = 0

    @property
    def key(self) -> tuple[str, str, GrammarSpec]:
        """What makes two requests the same job."""
        return self.caller, self.cache_salt, self.spec


class _Line:
    """The jobs of one caller.

    Attributes:
        time: Seconds of work, in the queue's virtual time.
        waiting: Its jobs that no worker has.
        running: Its jobs that workers have, and when each was taken.
    """

    __slots__ = ("running", "time", "waiting")

    def __init__(self, time: float) -> None:
        self.time = time
        self.waiting: deque[CompileJob] = deque()
        self.running: dict[CompileJob, float] = {}


class FairQueue:
    """Waiting and running jobs by caller; whoever uses it from several threads locks it.

    Args:
        workers: How many take jobs. Of several workers no named caller has all: one stays free for the others.
        clock: Gives seconds.

    Attributes:
        waiting: How many jobs wait.
        running: How many jobs run.
    """

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.waiting = 0
        self.running = 0
        self._workers = workers
        self._clock = clock
        self._now = 0.0
        self._lines: dict[str, _Line] = {}

    @property
    def eligible(self) -> int:
        """How many of the waiting jobs may run now, workers permitting."""
        return sum(min(len(line.waiting), self._room(caller, line)) for caller, line in self._lines.items())

    @property
    def jobs(self) -> list[CompileJob]:
        """All jobs that wait."""
        return [job for line in self._lines.values() for job in line.waiting]

    def add(self, job: CompileJob, *, first: bool = False) -> None:
        """Let a job wait, behind the others of its caller or before them."""
        line = self._lines.setdefault(job.caller, _Line(self._now))
        if not line.waiting and not line.running:
            line.time = max(line.time, self._now)
        if first:
            line.waiting.appendleft(job)
        else:
            line.waiting.append(job)
        self.waiting += 1

    def take(self) -> CompileJob | None:
        """Return the next job, which runs from now on; None where none may run."""
        ready = [
            (line.time, order, line)
            for order, (caller, line) in enumerate(self._lines.items())
            if line.waiting and self._room(caller, line)
        ]
        if not ready:
            return None
        self._now, _, line = min(ready, key=lambda one: one[:2])
        job = line.waiting.popleft()
        line.running[job] = self._clock()
        self.waiting -= 1
        self.running += 1
        return job

    def end(self, job: CompileJob) -> None:
        """Count a job as running no more, and the time that it took as its caller's; other jobs stay as they are."""
        line = self._lines.get(job.caller)
        if line is None or job not in line.running:
            return
        line.time += self._clock() - line.running.pop(job)
        self.running -= 1
        self._forget_idle()

    def remove(self, job: CompileJob) -> bool:
        """Take a job out that waits; tell whether it did."""
        line = self._lines.get(job.caller)
        if line is None or job not in line.waiting:
            return False
        line.waiting.remove(job)
        self.waiting -= 1
        return True

    def make_room(self, caller: str) -> CompileJob | None:
        """Take out the newest job of the caller with the most waiting jobs, for one of a caller with fewer.

        Returns:
            That job; None where no caller would still have as many as this one would then have.
        """
        own = self._lines.get(caller)
        longest = max(self._lines.values(), key=lambda line: len(line.waiting))
        if len(longest.waiting) <= (len(own.waiting) if own else 0) + 1:
            return None
        self.waiting -= 1
        return longest.waiting.pop()

    def clear(self) -> None:
        """Forget all jobs that wait."""
        for line in self._lines.values():
            line.waiting.clear()
        self.waiting = 0

    def _room(self, caller: str, line: _Line) -> int:
        if not caller or self._workers == 1:
            return len(line.waiting)  # there are only so many workers to take them
        return self._workers - 1 - len(line.running)

    def _forget_idle(self) -> None:
        """Forget callers that have nothing open and no time to make up for; with nothing open at all, everybody."""
        if not self.waiting and not self.running:
            self._lines.clear()
            self._now = 0.0
            return
        for caller in [name for name, one in self._lines.items() if not one.waiting and not one.running]:
            if self._lines[caller].time <= self._now:
                del self._lines[caller]
