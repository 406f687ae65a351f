"""Threads that use a worker process each.

```
JobQueue ──take──> thread ──> its process       the process has ended: it is replaced, and the job decided by `attempt`
    ^────── put_back, finish ──┘                the pool is closed: all processes are killed, all jobs fail
```

Pools of libraries (Pebble, loky, anyio, concurrent.futures) import the caller's main module, with PyTorch, into each
worker, or share a pipe and its lock, so that a worker killed at the wrong moment breaks the pool. They limit wall time
only, and unpickle answers, which a compromised decoder could write. Here each worker has a socket of its own.
"""

import atexit
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from photonlite.errors import ModelError
from photonlite.processes.jobs import Job, JobQueue, Result, Work, settle_future
from photonlite.processes.worker import WorkerProcess

LOGGER = logging.getLogger(__name__)

Process = TypeVar("Process", bound=WorkerProcess)


class WorkerPool(ABC, Generic[Process, Work, Result]):
    """Threads with a process each, which do the jobs of a queue. It holds what they need until it is closed."""

    def __init__(self, name: str, jobs: JobQueue[Work, Result]) -> None:
        self.jobs = jobs
        self._name = name
        self._lock = threading.RLock()  # reentrant: garbage collection may stop a pool on any line
        self._threads: set[threading.Thread] = set()
        self._processes: set[Process] = set()
        self._serving: dict[Job[Work, Result], Process] = {}
        _pools.add(self)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that run."""
        with self._lock:
            return [process.pid for process in self._processes if process.exit_code is None]

    @abstractmethod
    def make_process(self) -> Process:
        """Start a process; it need not be ready."""

    @abstractmethod
    def attempt(self, process: Process, work: Work, job: Job[Work, Result]) -> Result | BaseException | None:
        """Do a job; return or raise its outcome, or return None where it is to be tried again."""

    def stop(self) -> None:
        """Fail all jobs, take no more, and kill the workers, without waiting for the threads."""
        self.jobs.end(ModelError("the model is closed: load it again"))
        with self._lock:
            for process in self._processes:
                process.kill()

    def close(self) -> None:
        """Stop, and wait for the threads."""
        self.stop()
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join()
        for process in list(self._processes):
            self._discard(process)

    def disown(self) -> None:
        """Refuse all jobs in a forked process. Threads and workers stayed behind, with any lock they held."""
        for process in self._processes:
            process.disown()
        self._processes, self._threads, self._lock = set(), set(), threading.RLock()
        self.jobs = JobQueue(0)
        self.jobs.end(
            ModelError("this process was forked, and the worker processes stayed behind: load the model here")
        )

    def start_thread(self) -> "Future[None]":
        """Start a thread that uses a process; the future has the error if that does not start."""
        started: Future[None] = Future()
        with self._lock:
            if not self.jobs.ended:
                thread = threading.Thread(target=self._run, args=(started,), name=self._name, daemon=True)
                thread.start()
                self._threads.add(thread)
        return started

    def kill_worker(self, job: Job[Work, Result]) -> None:
        with self._lock:
            if job in self._serving:
                self._serving[job].kill()

    def _run(self, started: "Future[None]") -> None:
        process = None  # of this thread, with which it ends
        try:
            while process is None or not process.replaced:
                process, error = self._usable(process)
                settle_future(started, error)
                job = self.jobs.take()
                if job is None:
                    return
                if process is None or not process.usable:  # it ended while it waited, or could not be started before
                    process, error = self._usable(process)
                if process is not None:
                    self._serve(process, job)
                elif error is not None:
                    self._fail(job, error)
                del job  # it may hold a file, and this thread may wait long for the next one
        finally:
            self._discard(process)
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _usable(self, process: Process | None) -> tuple[Process | None, Exception | None]:
        """Return a process that is ready, this one if it can be used, or why there is none."""
        if process is not None and process.usable:
            return process, None
        self._discard(process)
        fresh = None
        try:
            fresh = self.make_process()
            with self._lock:
                self._processes.add(fresh)
                if self.jobs.ended:  # the pool has killed its processes
                    fresh.kill()
            fresh.wait_ready()
        except Exception as error:
            self._discard(fresh)
            return None, error
        return fresh, None

    def _fail(self, job: Job[Work, Result], error: Exception) -> None:
        """Fail a job for which no process starts, and those that wait where no other process is left for them."""
        if not self.jobs.ended:
            LOGGER.error("a worker process does not start", exc_info=error)
        with self._lock:
            alone = not self._processes
        if alone:
            self.jobs.fail_waiting(error)
        self.jobs.finish(job, error)  # last: who asks again because of it gets a new attempt

    def _serve(self, process: Process, job: Job[Work, Result]) -> None:
        with self._lock:
            self._serving[job] = process
        outcome: Result | BaseException | None
        try:
            outcome = self.attempt(process, job.work, job) if job.waiters else None
        except BaseException as error:
            outcome = error
        finally:
            with self._lock:  # after this, `kill_worker` no longer kills the process for this job
                del self._serving[job]
        if outcome is None:
            self.jobs.put_back(job)
        else:
            self.jobs.finish(job, outcome)

    def _discard(self, process: Process | None) -> None:
        if process is not None:
            with self._lock:
                self._processes.discard(process)
            process.close()


# A worker must not outlive its interpreter, nor a thread be at work when that goes away.
_pools: "weakref.WeakSet[WorkerPool[Any, Any, Any]]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _disown_all() -> None:
    for pool in list(_pools):
        pool.disown()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_disown_all)
