"""Answers about frames or images, in their order, while more are read and earlier answers are used.

```
a thread           frames ──> one of `every` is asked about
threads of a pool                 └──> ask ──> answer
caller's thread                                  └──> (frame, answer), in order: draw it, write it
```

At most `window` frames exist at a time, however many there are.
"""

import math
import queue
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Frame = TypeVar("Frame")
R = TypeVar("R")


def answer_frames(
    frames: Iterable[Frame], ask: Callable[[Frame], R], *, every: int = 1, window: int = 16
) -> Generator[tuple[Frame, R | None], None, None]:
    """Yield every frame with what `ask` returns for it: the first, and every `every`-th after it; else None.

    `ask` runs on several threads at a time. What it or the source raises is raised here, in the place of the frame.
    """
    room, stopped = threading.Semaphore(window), threading.Event()
    entries: queue.SimpleQueue[tuple[Frame, Future[R] | None] | BaseException | None] = queue.SimpleQueue()

    def read() -> None:
        try:
            source = iter(frames)
            for number in range(1 << 62):
                room.acquire()
                if stopped.is_set() or (frame := next(source, None)) is None:
                    break
                entries.put((frame, pool.submit(ask, frame) if number % every == 0 else None))
        except BaseException as error:
            entries.put(error)
        else:
            entries.put(None)

    pool = ThreadPoolExecutor(math.ceil(window / every), thread_name_prefix="photonlite-video")
    reader = threading.Thread(target=read, name="photonlite-video-reader", daemon=True)
    reader.start()
    try:
        while (entry := entries.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            frame, future = entry
            yield frame, None if future is None else future.result()
            del entry, frame, future
            room.release()
    finally:
        stopped.set()
        room.release()
        reader.join()
        pool.shutdown(cancel_futures=True)
