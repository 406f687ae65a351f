"""Several threads at one piece of work, without a deadlock where the threads are few and busy."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

Piece = Callable[[], None]


class Crew:
    """The calling thread, and helpers from an executor as they come free.

    The caller does whatever no helper has begun, so that it may itself run on the last free thread of the executor. A
    helper that comes late finds nothing to do.

    Args:
        executor: Its threads help; None for a caller that works alone.
        helpers: How many of them at a time. More than there are cores to run them gains nothing.

    Attributes:
        size: Threads that may work at a time, the caller included.
    """

    def __init__(self, executor: Executor | None = None, helpers: int = 0) -> None:
        self.size = 1 + (helpers if executor is not None else 0)
        self._executor = executor

    def run(self, pieces: Sequence[Piece]) -> None:
        """Do all the pieces, in any order and at the same time, and wait until the last is done.

        Raises:
            BaseException: What the first piece to fail raised. The other pieces are done all the same.
        """
        waiting = deque(pieces)
        done = threading.Semaphore(0)
        failures: list[BaseException] = []

        def work() -> None:
            while waiting:
                try:
                    piece = waiting.popleft()
                except IndexError:
                    return  # another thread has just taken the last one
                try:
                    piece()
                except BaseException as error:
                    failures.append(error)
                finally:
                    done.release()

        self._call_helpers(work, min(self.size, len(pieces)) - 1)
        work()
        for _ in pieces:
            done.acquire()
        if failures:
            raise failures[0]

    def _call_helpers(self, work: Piece, count: int) -> None:
        for _ in range(count):
            assert self._executor is not None  # a crew without one has size 1
            try:
                self._executor.submit(work)
            except RuntimeError:
                return  # it is shutting down: nobody helps any more, and the caller does it all


ALONE: Final = Crew()
"""The calling thread by itself."""
