"""Tasks shared between the calling thread and helper threads, without a deadlock where all helpers are busy."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

Task = Callable[[], None]


class ParallelTasks:
    """Runs tasks on the calling thread and on up to `helpers` threads of an executor.

    The caller runs every task that no helper has begun, so it may itself occupy the executor's last free thread.
    `size` is the number of threads that may work at a time, the caller included.
    """

    def __init__(self, executor: Executor | None = None, helpers: int = 0) -> None:
        self.size = 1 + (helpers if executor is not None else 0)
        self._executor = executor

    def run_all(self, tasks: Sequence[Task]) -> None:
        """Run all tasks, in any order and at the same time, and wait until the last is done.

        Raises:
            BaseException: What the first task to fail raised. The other tasks are run nonetheless.
        """
        waiting = deque(tasks)
        done = threading.Semaphore(0)
        failures: list[BaseException] = []

        def work() -> None:
            while waiting:
                try:
                    task = waiting.popleft()
                except IndexError:
                    return  # another thread has just taken the last one
                try:
                    task()
                except BaseException as error:
                    failures.append(error)
                finally:
                    done.release()

        for _ in range(min(self.size, len(tasks)) - 1):
            assert self._executor is not None  # size is 1 without one
            try:
                self._executor.submit(work)
            except RuntimeError:
                break  # the executor is shutting down: the caller runs all tasks
        work()
        for _ in tasks:
            done.acquire()
        if failures:
            raise failures[0]


SERIAL: Final = ParallelTasks()  # the calling thread alone
