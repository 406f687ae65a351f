"""A pool of processes that open and decode untrusted images.

```
decode ─> first come, first served ─> a thread and its process, which decodes one image at a time
             more than SLOW_S of CPU time:   lower priority, and another worker takes its place
             over its limit of CPU time:     the kernel ends it, and another one is started
             cancelled:                      killed, and another one is started
```

A hostile image costs its sender an error, and everybody else a worker for a moment. The process pools of libraries
(Pebble, loky, anyio, concurrent.futures) do not fit. They import the caller's main module, with PyTorch, into each
worker, or share a pipe and its lock among workers, so that a worker killed at the wrong moment stops or breaks the
whole pool. They limit wall time only. And they unpickle what a worker says, which a decoder that was taken over could
write. Here each worker has a socket of its own, messages are JSON, and pixels come through nameless shared memory.
"""

import asyncio
import atexit
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from photonlite.config import ImageLimits
from photonlite.errors import (
    EngineError,
    ImageBusyError,
    ImageTooLargeError,
    ModelError,
    RequestCancelledError,
    SettingsError,
)
from photonlite.images.decode import DecodedImage
from photonlite.images.decode_process import Admit, DecodeProcess, WorkerLostError

MOST_SLOW: Final = 4
"""Slow images that are decoded beside the pool's own workers. Further ones keep their places in it."""

MOST_WAITING: Final = 1024
"""Images that may wait for a worker."""


@dataclass(eq=False)
class _Job:
    data: bytes
    admit: Admit | None
    future: "Future[DecodedImage]" = field(default_factory=Future)
    cancelled: bool = False


class DecodePool:
    """Decodes images in processes that are killed when one costs too much.

    Args:
        limits: How large images may be, and how much CPU time they may take.
        workers: Processes that wait for images. Up to `MOST_SLOW` more run while slow images are decoded.
        start: Makes a worker that is told what to call when its image is slow.

    Attributes:
        limits: As given.
        most_running: Images that are decoded at a time, at most.

    Raises:
        SettingsError: The system lacks what isolation needs: it takes Linux.
        EngineError: The processes do not start.
    """

    def __init__(
        self,
        limits: ImageLimits,
        workers: int,
        start: Callable[[Callable[[], None]], DecodeProcess] = DecodeProcess,
    ) -> None:
        if not can_isolate():
            raise SettingsError("images can be decoded in processes of their own on Linux only: turn isolation off")
        self.limits = limits
        self.most_running = workers + MOST_SLOW
        self._start = start
        self._queue: queue.Queue[_Job | None] = queue.Queue()
        self._lock = threading.Lock()
        self._closed = False
        self._running: dict[_Job, DecodeProcess] = {}
        self._workers: set[DecodeProcess] = set()
        self._threads: set[threading.Thread] = set()
        self._slow = 0
        _pools.add(self)
        try:
            first = [self._new_worker() for _ in range(workers)]  # they import what they need at the same time
            for worker in first:
                worker.wait_ready()
        except BaseException:
            self.close()
            raise
        for worker in first:
            self._begin(worker)

    @property
    def waiting(self) -> int:
        """Images that wait for a worker."""
        return self._queue.qsize()

    @property
    def running(self) -> int:
        """Images that are being decoded."""
        return len(self._running)

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes."""
        with self._lock:
            return [worker.pid for worker in self._workers]

    def decode(self, data: bytes, admit: Admit | None = None) -> DecodedImage:
        """Open and decode an image, and wait for it.

        Args:
            data: The file.
            admit: Told how many bytes decoding will take, before they are taken; on another thread. What it raises
                ends the job, and is raised here.

        Raises:
            ImageError: What `load_image` raises; `ImageTimeoutError` for an image that takes more CPU time than its
                size allows, `ImageTooLargeError` for more memory, `ImageBusyError` where too many wait.
            EngineError: Workers were killed by somebody else, or do not start.
            ModelError: The pool is closed.
        """
        job = self._submit(data, admit)
        try:
            return job.future.result()
        except BaseException:
            self._cancel(job)
            raise

    async def adecode(self, data: bytes, admit: Admit | None = None) -> DecodedImage:
        """Do the same for coroutines. Cancelling the task kills the worker that is at the image."""
        job = self._submit(data, admit)
        try:
            return await asyncio.wrap_future(job.future)
        except BaseException:
            self._cancel(job)
            raise

    def close(self) -> None:
        """Kill all workers, fail what waits, and wait until the threads have ended."""
        with self._lock:
            self._closed = True
            workers, threads = list(self._workers), list(self._threads)
        for worker in workers:
            worker.kill()
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        self._fail_waiting()
        for worker in workers:
            worker.close()

    def forget(self) -> None:
        """Let go of the workers in a process that was forked from the one that started them."""
        self._closed, self._lock = True, threading.Lock()
        for worker in self._workers:
            worker.forget()
        self._workers, self._threads = set(), set()

    def _submit(self, data: bytes, admit: Admit | None) -> _Job:
        if len(data) > self.limits.max_bytes:
            raise ImageTooLargeError(
                f"the image has {len(data)} bytes, over the limit of {self.limits.max_bytes}: "
                "compress it, or raise max_bytes (PHOTONLITE_MAX_BYTES)"
            )
        job = _Job(data, admit)
        with self._lock:
            if self._closed:
                raise _closed()
            if self._queue.qsize() >= MOST_WAITING:
                raise ImageBusyError(f"{MOST_WAITING} images wait to be decoded, the limit: try again later")
            self._queue.put(job)
        return job

    def _cancel(self, job: _Job) -> None:
        """Take a job back: one that waits is skipped, one that runs loses its worker."""
        with self._lock:
            job.cancelled = True
            worker = self._running.get(job)
            if worker is not None:
                worker.kill()

    def _new_worker(self) -> DecodeProcess:
        worker = self._start(self._replace_slow)
        with self._lock:
            self._workers.add(worker)
            if self._closed:
                worker.kill()
        return worker

    def _discard(self, worker: DecodeProcess | None) -> None:
        if worker is not None:
            with self._lock:
                self._workers.discard(worker)
            worker.close()

    def _begin(self, worker: DecodeProcess | None) -> None:
        """Start a thread that uses a worker, or one that it starts itself."""
        thread = threading.Thread(target=self._run, args=(worker,), name="photonlite-decode", daemon=True)
        with self._lock:
            if not self._closed:
                self._threads.add(thread)
                thread.start()

    def _replace_slow(self) -> None:
        """Have another worker take the place of one that is at a slow image, unless there are many of those."""
        with self._lock:
            if self._slow >= MOST_SLOW:
                return
            self._slow += 1
        self._begin(None)

    def _run(self, worker: DecodeProcess | None) -> None:
        try:
            while not self._closed:
                try:
                    worker = self._usable(worker)
                except EngineError:
                    worker = None  # for the next job it is tried again, and that one is told
                if (job := self._queue.get()) is None:
                    return
                was_slow = worker
                worker = self._serve(job, worker)
                del job  # it holds a file, and this thread may wait long for the next one
                if was_slow is not None and was_slow.slow and self._was_replaced():
                    return
        finally:
            self._discard(worker)
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _was_replaced(self) -> bool:
        with self._lock:
            replaced = self._slow > 0
            self._slow -= replaced
        return replaced

    def _usable(self, worker: DecodeProcess | None) -> DecodeProcess:
        """Return a worker for the next job: this one, or a new one if it has ended or is slow.

        Raises:
            EngineError: It does not start.
        """
        if worker is not None and not worker.ended and not worker.slow:
            return worker
        self._discard(worker)
        fresh = self._new_worker()
        try:
            fresh.wait_ready()
        except BaseException:
            self._discard(fresh)
            raise
        return fresh

    def _serve(self, job: _Job, worker: DecodeProcess | None) -> DecodeProcess | None:
        """Give a job its result; returns the worker that is left."""
        if not job.future.set_running_or_notify_cancel():
            return worker
        try:
            worker = worker or self._usable(None)
            try:
                decoded = self._decode(job, worker)
            except WorkerLostError:
                if job.cancelled or self._closed:
                    raise
                ended, worker = worker, None
                worker = self._usable(ended)
                decoded = self._decode(job, worker)
        except WorkerLostError as lost:
            job.future.set_exception(self._why_lost(job, lost))
        except BaseException as error:
            job.future.set_exception(error)
        else:
            job.future.set_result(decoded)
        return worker

    def _why_lost(self, job: _Job, lost: WorkerLostError) -> Exception:
        if self._closed:
            return _closed()
        if job.cancelled:
            return RequestCancelledError("the image is not wanted any more")
        return EngineError(f"the process that decoded the image was killed twice ({lost}): ask again")

    def _decode(self, job: _Job, worker: DecodeProcess) -> DecodedImage:
        with self._lock:
            if job.cancelled or self._closed:
                raise WorkerLostError("it was given up")
            self._running[job] = worker
        try:
            return worker.decode(job.data, self.limits, job.admit)
        finally:
            with self._lock:  # from here on nobody kills the worker for this job
                del self._running[job]

    def _fail_waiting(self) -> None:
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return
            if job is not None and job.future.set_running_or_notify_cancel():
                job.future.set_exception(_closed())


def can_isolate() -> bool:
    """Whether this system has what isolation needs: memory without a name, and limits of CPU time and memory."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def default_workers() -> int:
    """Number of workers for this machine: one for each core, from 6 to 8; 0 where the system cannot isolate.

    More than cores, because a few that are at hostile images must not keep others from being decoded at once.
    """
    return min(8, max(6, os.cpu_count() or 1)) if can_isolate() else 0


def _closed() -> ModelError:
    return ModelError("the model is closed: load it again")


_pools: "weakref.WeakSet[DecodePool]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_all)
