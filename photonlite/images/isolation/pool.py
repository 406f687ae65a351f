"""Pool of processes that decode untrusted images.

```
decode ─> first come, first served ─> a thread and its process, which decodes one image at a time
             more than SLOW_S of CPU time:   lower priority, and another process is started beside it
             over its limit of CPU time:     killed by the kernel, and replaced
             cancelled:                      killed, and replaced
```

A hostile image costs its sender an error, and other requests one worker for a moment. The process pools of libraries
(Pebble, loky, anyio, concurrent.futures) do not fit. They import the caller's main module, with PyTorch, into each
worker, or share a pipe and its lock among workers, so that a worker killed at the wrong moment stops or breaks the
whole pool. They limit wall time only. And they unpickle a worker's answers, which a compromised decoder could write.
Here each worker has a socket of its own, messages are JSON, and pixels come through anonymous shared memory.
"""

import asyncio
import atexit
import contextlib
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
from photonlite.images.isolation.process import Admit, DecodeProcess, DecoderLostError
from photonlite.images.source import DecodedImage

MOST_SLOW: Final = 4  # slow images for which an additional process is started; further ones occupy the pool's own
MOST_WAITING: Final = 1024  # images that may wait for a worker


@dataclass(eq=False)
class _Job:
    data: bytes
    admit: Admit | None
    future: "Future[DecodedImage]" = field(default_factory=Future)
    cancelled: bool = False


class DecodePool:
    """Decodes images in processes with limits of CPU time and memory.

    `workers` processes wait for images; up to `MOST_SLOW` more run beside slow images. `start` makes a process that
    calls its argument, on the thread that uses it, when an image is slow.

    Raises:
        SettingsError: The system is not Linux, which isolation needs.
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
        self._processes: set[DecodeProcess] = set()
        self._threads: set[threading.Thread] = set()
        self._replaced: set[threading.Thread] = set()
        _pools.add(self)
        try:
            first = [self._start_process() for _ in range(workers)]  # their imports run at the same time
            for process in first:
                process.wait_ready()
        except BaseException:
            self.close()
            raise
        for process in first:
            self._start_thread(process)

    @property
    def waiting(self) -> int:
        """Number of images that wait for a worker."""
        return self._queue.qsize()

    @property
    def running(self) -> int:
        """Number of images that are being decoded."""
        return len(self._running)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        with self._lock:
            return [process.pid for process in self._processes]

    def decode(self, data: bytes, admit: Admit | None = None) -> DecodedImage:
        """Decode an image file, and wait for it; `admit` is called on another thread.

        Raises:
            ImageError: What `load_image` raises; `ImageTimeoutError` for an image that takes more CPU time than its
                size allows, `ImageTooLargeError` for more memory, `ImageBusyError` where too many images wait.
            EngineError: Workers were killed from outside, or do not start.
            ModelError: The pool is closed.
            BaseException: What `admit` raised.
        """
        job = self._submit(data, admit)
        try:
            return job.future.result()
        except BaseException:
            self._cancel(job)
            raise

    async def adecode(self, data: bytes, admit: Admit | None = None) -> DecodedImage:
        """Decode for a coroutine; cancelling the task kills the image's worker."""
        job = self._submit(data, admit)
        try:
            return await asyncio.wrap_future(job.future)
        except BaseException:
            self._cancel(job)
            raise

    def close(self) -> None:
        """Kill all workers, fail the images that wait, and wait until the threads have ended."""
        with self._lock:
            self._closed = True
            processes, threads = list(self._processes), list(self._threads)
        for process in processes:
            process.kill()
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._queue.get_nowait()
                if job is not None and job.future.set_running_or_notify_cancel():
                    job.future.set_exception(_closed_error())
        for process in processes:
            process.close()

    def forget(self) -> None:
        """Release copies of the sockets in a forked process, where the threads do not exist."""
        self._closed, self._lock = True, threading.Lock()
        for process in self._processes:
            process.forget()
        self._processes, self._threads = set(), set()

    def _submit(self, data: bytes, admit: Admit | None) -> _Job:
        if len(data) > self.limits.max_bytes:
            raise ImageTooLargeError(
                f"the image has {len(data)} bytes, over the limit of {self.limits.max_bytes}: "
                "compress it, or raise max_bytes (PHOTONLITE_MAX_BYTES)"
            )
        job = _Job(data, admit)
        with self._lock:
            if self._closed:
                raise _closed_error()
            if self._queue.qsize() >= MOST_WAITING:
                raise ImageBusyError(f"{MOST_WAITING} images wait to be decoded, the limit: try again later")
            self._queue.put(job)
        return job

    def _cancel(self, job: _Job) -> None:
        """Skip a job that waits; kill the worker of one that runs."""
        with self._lock:
            job.cancelled = True
            process = self._running.get(job)
            if process is not None:
                process.kill()

    def _start_process(self) -> DecodeProcess:
        process = self._start(self._replace_slow)
        with self._lock:
            self._processes.add(process)
            if self._closed:
                process.kill()
        return process

    def _discard(self, process: DecodeProcess | None) -> None:
        if process is not None:
            with self._lock:
                self._processes.discard(process)
            process.close()

    def _start_thread(self, process: DecodeProcess | None) -> None:
        thread = threading.Thread(target=self._run, args=(process,), name="photonlite-decode", daemon=True)
        with self._lock:
            if not self._closed:
                self._threads.add(thread)
                thread.start()

    def _replace_slow(self) -> None:
        """Start another thread beside this one, whose image is slow; this one ends with its image."""
        with self._lock:
            if len(self._replaced) >= MOST_SLOW:
                return
            self._replaced.add(threading.current_thread())
        self._start_thread(None)

    def _run(self, process: DecodeProcess | None) -> None:
        """Decode one image after the other, in `process` or in one that this thread starts."""
        thread = threading.current_thread()
        try:
            while not self._closed and thread not in self._replaced:
                try:
                    process = self._usable(process)
                except EngineError:
                    process = None  # the next job tries again, and gets the error
                if (job := self._queue.get()) is None:
                    return
                process = self._serve(job, process)
                del job  # it holds a file, and this thread may wait long for the next one
        finally:
            self._discard(process)
            with self._lock:
                self._threads.discard(thread)
                self._replaced.discard(thread)

    def _usable(self, process: DecodeProcess | None) -> DecodeProcess:
        """Return this process, or a new one if it has ended or is slow.

        Raises:
            EngineError: The new one does not start.
        """
        if process is not None and not process.ended and not process.slow:
            return process
        self._discard(process)
        fresh = self._start_process()
        try:
            fresh.wait_ready()
        except BaseException:
            self._discard(fresh)
            raise
        return fresh

    def _serve(self, job: _Job, process: DecodeProcess | None) -> DecodeProcess | None:
        """Set the job's result, with a second attempt if its worker is killed from outside; return the last worker."""
        if not job.future.set_running_or_notify_cancel():
            return process
        try:
            for last in (False, True):
                process = self._usable(process)
                try:
                    job.future.set_result(self._decode(job, process))
                    break
                except DecoderLostError as lost:
                    if last or job.cancelled or self._closed:
                        raise self._lost_error(job, lost) from lost
        except BaseException as error:
            job.future.set_exception(error)
        return process

    def _lost_error(self, job: _Job, lost: DecoderLostError) -> Exception:
        if self._closed:
            return _closed_error()
        if job.cancelled:
            return RequestCancelledError("the image is not wanted any more")
        return EngineError(f"the process that decoded the image was killed twice ({lost}): ask again")

    def _decode(self, job: _Job, process: DecodeProcess) -> DecodedImage:
        with self._lock:
            if job.cancelled or self._closed:
                raise DecoderLostError("it was cancelled")
            self._running[job] = process
        try:
            return process.decode(job.data, self.limits, job.admit)
        finally:
            with self._lock:  # after this, `_cancel` no longer kills the process for this job
                del self._running[job]


def can_isolate() -> bool:
    """Whether this system has what isolation needs: anonymous memory, and limits of CPU time and memory."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def default_workers() -> int:
    """Number of workers for this machine: one for each core, from 6 to 8; 0 where the system cannot isolate.

    At least 6, so that a few hostile images do not delay others.
    """
    return min(8, max(6, os.cpu_count() or 1)) if can_isolate() else 0


def _closed_error() -> ModelError:
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
