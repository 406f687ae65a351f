"""Pool of processes that decode untrusted images.

```
decode ─> first come, first served ─> a thread and its process, which decodes one image at a time
             more than SLOW_S of CPU time:   lower priority, and another process is started beside it
             over its limit of CPU time:     killed by the kernel, and replaced
             cancelled:                      killed, and replaced
```

A hostile image costs its sender an error, and other requests one worker for a moment. Messages are JSON, and pixels
come through shared memory: a compromised decoder cannot send anything else.
"""

import asyncio
import contextlib
import os
import sys
from concurrent.futures import Future
from typing import Final

from photonlite.config import ImageLimits
from photonlite.errors import ImageBusyError, ImageWorkerError, SettingsError
from photonlite.images.isolation.process import Admit, DecodeProcess
from photonlite.images.source import DecodedImage, check_bytes
from photonlite.processes.jobs import Job, JobQueue
from photonlite.processes.pool import WorkerPool
from photonlite.processes.worker import WorkerLostError

MOST_SLOW: Final = 4  # slow images for which an additional process is started; further ones occupy the pool's own
MOST_WAITING: Final = 1024  # images that may wait for a worker

_Work = tuple[bytes, Admit | None]


class DecodePool(WorkerPool[DecodeProcess, _Work, DecodedImage]):
    """Decodes images in `workers` processes, and up to `MOST_SLOW` more; `ImageWorkerError` where none starts."""

    def __init__(self, limits: ImageLimits, workers: int) -> None:
        if not can_isolate():
            raise SettingsError("images can be decoded in processes of their own on Linux only: turn isolation off")
        self.limits = limits
        self.most_running = workers + MOST_SLOW

        def busy() -> ImageBusyError:
            return ImageBusyError(f"{MOST_WAITING} images wait to be decoded, the limit: try again later")

        super().__init__("photonlite-decode", JobQueue(MOST_WAITING, busy, on_abandoned=self.kill_worker))
        try:
            for started in [self.start_thread() for _ in range(workers)]:  # their imports run at the same time
                started.result()
        except BaseException:
            self.close()
            raise

    def decode(self, data: bytes, admit: Admit | None = None) -> DecodedImage:
        """Decode an image file, and wait for it; `admit` is called on another thread.

        Raises an ImageError, also where too many images wait; what `admit` raised; ImageWorkerError where workers
        were killed from outside or do not start; ModelError once the pool is closed.
        """
        future = self.submit(data, admit)
        try:
            return future.result()
        finally:
            future.cancel()

    async def adecode(self, data: bytes, admit: Admit | None = None) -> DecodedImage:
        """Decode for a coroutine; cancelling the task kills the image's worker."""
        future = self.submit(data, admit)
        try:
            return await asyncio.wrap_future(future)
        finally:
            future.cancel()

    def submit(self, data: bytes, admit: Admit | None = None) -> "Future[DecodedImage]":
        """Decode without waiting; cancelling the future ends the work. Raises `ImageTooLargeError`."""
        check_bytes("the image", len(data), self.limits)
        return self.jobs.add((data, admit))

    def make_process(self) -> DecodeProcess:
        process = DecodeProcess(lambda: self._replace(process))
        return process

    def attempt(
        self, process: DecodeProcess, work: _Work, job: Job[_Work, DecodedImage]
    ) -> DecodedImage | ImageWorkerError | None:
        """Decode an image, with a second attempt where its worker is killed from outside."""
        try:
            return process.decode(work[0], self.limits, work[1])
        except WorkerLostError as lost:
            job.lost["killed"] += 1
            if job.lost["killed"] == 1:
                return None
            return ImageWorkerError(f"the process that decoded the image was killed twice ({lost}): ask again")

    def _replace(self, slow: DecodeProcess) -> None:
        """Start another thread beside that of a slow process, which ends with its image."""
        with self._lock, contextlib.suppress(RuntimeError):  # no thread can be started: this one stays
            if sum(process.replaced for process in self._processes) < MOST_SLOW:
                self.start_thread()
                slow.replaced = True


def can_isolate() -> bool:
    """Whether this system has what isolation needs: anonymous memory, and limits of CPU time and memory."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def default_workers() -> int:
    """One for each core, at most 8; at least 6, so that a few hostile images do not delay others."""
    return min(8, max(6, os.cpu_count() or 1)) if can_isolate() else 0
