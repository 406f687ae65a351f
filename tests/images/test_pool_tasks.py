import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from photonlite.images.pool import share_tasks
from tests.guard import GUARD


def test_every_task_runs_once_on_some_thread() -> None:
    with ThreadPoolExecutor(3) as executor:
        for helpers in (0, 1, 3):
            for count in (0, 1, 2, 50):
                done: list[int] = []
                share_tasks(executor, helpers, [partial(done.append, index) for index in range(count)])
                assert sorted(done) == list(range(count))


def test_helpers_work_at_the_same_time_as_the_caller() -> None:
    meeting = threading.Barrier(3)  # each task waits for the others: a single thread would block in the first
    with ThreadPoolExecutor(2) as executor:
        share_tasks(executor, 2, [lambda: meeting.wait(GUARD) and None] * 3)


def test_no_more_helpers_are_submitted_than_configured_and_none_without_tasks_to_share() -> None:
    class Counting(ThreadPoolExecutor):
        calls = 0

        def submit(self, *arguments, **options):  # type: ignore[no-untyped-def]
            self.calls += 1
            return super().submit(*arguments, **options)

    for pieces, calls in ((0, 0), (1, 0), (2, 1), (20, 2)):
        with Counting(4) as executor:
            share_tasks(executor, 2, [lambda: None] * pieces)
            assert executor.calls == calls


def test_the_caller_may_be_the_only_thread_of_the_executor() -> None:
    done = []
    with ThreadPoolExecutor(1) as executor:
        run = executor.submit(share_tasks, executor, 3, [lambda: done.append(threading.current_thread())] * 5)
        run.result(GUARD)
    assert len(done) == 5


def test_helpers_that_come_too_late_find_nothing_to_do() -> None:
    busy, done = threading.Event(), []
    with ThreadPoolExecutor(1) as executor:
        executor.submit(busy.wait, GUARD)
        share_tasks(executor, 1, [lambda: done.append(threading.current_thread())] * 3)
        busy.set()
    assert done == [threading.current_thread()] * 3


def test_tasks_whose_executor_is_shut_down_run_on_the_caller() -> None:
    executor, done = ThreadPoolExecutor(1), []
    executor.shutdown()
    share_tasks(executor, 1, [lambda: done.append(1)] * 3)
    assert done == [1, 1, 1]


@pytest.mark.parametrize("helpers", [0, 2])
def test_the_error_of_a_task_is_raised_when_the_others_are_done(helpers: int) -> None:
    done: list[int] = []

    def fail() -> None:
        raise MemoryError("no room")

    with ThreadPoolExecutor(2) as executor, pytest.raises(MemoryError, match="no room"):
        share_tasks(executor, helpers, [fail, *[lambda: done.append(1)] * 9])
    assert len(done) == 9
