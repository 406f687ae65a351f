"""Turns between callers on a clock of the test's, and the futures that wait for jobs."""

from concurrent.futures import ALL_COMPLETED, CancelledError, Future, wait
from typing import Any

import pytest

from photonlite.errors import GrammarBusyError, GrammarError, ModelError
from photonlite.processes.jobs import Job, JobQueue, settle_future
from tests.guard import GUARD


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_queue(max_waiting: int = 1000, **options: Any) -> JobQueue[Any, Any]:
    return JobQueue(max_waiting, lambda: GrammarBusyError(f"{max_waiting} grammars wait"), **options)


def take_now(queue: JobQueue[Any, Any]) -> Job[Any, Any] | None:
    """Take a job if one may run."""
    return queue.take() if queue._eligible() else None


def serve(queue: JobQueue[Any, Any], clock: Clock, seconds: dict[str, float], most: int) -> list[str]:
    """Run so many jobs one after the other, each as long as its caller's jobs take; return their callers."""
    callers = []
    for _ in range(most):
        job = take_now(queue)
        if job is None:
            break
        clock.now += seconds[job.caller]
        queue.finish(job, None)
        callers.append(job.caller)
    return callers


def test_jobs_of_one_caller_run_in_order() -> None:
    queue = make_queue()
    for number in range(3):
        queue.add(number, caller="a")

    for number in range(3):
        job = taken(queue)
        assert job.work == number
        queue.finish(job, None)
    assert take_now(queue) is None


def test_callers_share_worker_time_and_not_numbers_of_jobs() -> None:
    clock = Clock()
    queue = make_queue(clock=clock)
    for caller, number in (("slow", 20), ("quick", 100)):
        for _ in range(number):
            queue.add(None, caller=caller)

    callers = serve(queue, clock, {"slow": 10.0, "quick": 1.0}, 44)

    assert callers.count("slow") == 4
    assert callers.count("quick") == 40


def test_a_new_caller_is_next_and_a_pause_earns_no_credit() -> None:
    clock = Clock()
    queue = make_queue(clock=clock)
    for _ in range(50):
        queue.add(None, caller="greedy")
    seconds = {"greedy": 2.0, "new": 2.0}
    assert serve(queue, clock, seconds, 10) == ["greedy"] * 10

    for _ in range(20):
        queue.add(None, caller="new")
    assert queue.waiting == 60
    callers = serve(queue, clock, seconds, 10)
    assert callers[0] == "new"
    assert callers.count("new") in (5, 6)


def test_only_the_unnamed_caller_gets_all_of_several_workers() -> None:
    queue = make_queue(workers=3)
    for caller in ("a", "a", "a", "", "", ""):
        queue.add(None, caller=caller)

    jobs = [taken(queue) for _ in range(5)]
    assert sorted(job.caller for job in jobs) == ["", "", "", "a", "a"]
    assert take_now(queue) is None
    assert (queue.waiting, queue.running) == (1, 5)
    queue.finish(next(job for job in jobs if job.caller == "a"), None)
    assert taken(queue).caller == "a"


def test_a_single_worker_serves_named_callers() -> None:
    queue = make_queue()
    queue.add(None, caller="a")

    assert take_now(queue) is not None


def test_callers_without_jobs_are_forgotten() -> None:
    clock = Clock()
    queue = make_queue(5000, clock=clock)
    seconds = dict.fromkeys(("busy", *map(str, range(1000))), 1.0)
    queue.add(None, caller="busy")
    for number in range(1000):
        queue.add(None, caller=f"{number}")
        queue.add(None, caller="busy")
        serve(queue, clock, seconds, 2)

    assert len(queue._used) <= 4
    serve(queue, clock, seconds, 2000)
    assert queue._used == {}


A, B, C, D = "abcd"


def outcome(future: "Future[Any]") -> Any:
    assert future.done()
    return future.exception() or future.result()


def taken(queue: JobQueue[Any, Any]) -> Job[Any, Any]:
    job = queue.take()
    assert job is not None
    return job


def test_jobs_are_taken_in_order_and_every_future_gets_the_result() -> None:
    queue = make_queue(9)
    futures = [queue.add(one, one) for one in (A, B, A, C, B)]

    jobs = [taken(queue) for _ in range(3)]
    assert [job.work for job in jobs] == [A, B, C]
    for number, job in enumerate(jobs):
        queue.finish(job, number)

    assert [outcome(future) for future in futures] == [0, 1, 0, 2, 1]


def test_a_job_that_runs_is_joined_and_one_that_has_ended_is_asked_for_again() -> None:
    queue = make_queue(9)
    queue.add(A, A)
    job = taken(queue)
    late = queue.add(A, A)
    queue.finish(job, 1)
    again = queue.add(A, A)

    assert outcome(late) == 1
    assert not again.done()
    assert taken(queue).work == A


def test_only_so_many_specs_wait() -> None:
    queue = make_queue(2)
    queue.add(A, A)
    taken(queue)
    futures = [queue.add(one, one) for one in (B, C, D, A, B, C)]

    assert isinstance(outcome(futures[2]), GrammarBusyError)
    assert "2 grammars wait" in str(outcome(futures[2]))
    assert [future.done() for future in futures] == [False, False, True, False, False, False]
    taken(queue)
    assert not queue.add(D, D).done()


def test_a_cancelled_future_gives_up_its_own_place_only() -> None:
    queue = make_queue(2)
    one, other, alone = queue.add(A, A), queue.add(A, A), queue.add(B, B)
    assert one.cancel()
    assert alone.cancel()

    assert not queue.add(C, C).done()  # there is room again
    job = taken(queue)
    queue.finish(job, 1)
    assert outcome(other) == 1
    assert taken(queue).work == C
    assert wait([one, alone], GUARD, ALL_COMPLETED).not_done == set()
    with pytest.raises(CancelledError):
        one.result()


def test_a_running_job_can_be_abandoned_and_joined_again() -> None:
    queue = make_queue(2)
    first = queue.add(A, A)
    job = taken(queue)
    assert first.cancel()
    second = queue.add(A, A)
    queue.finish(job, 1)

    assert outcome(second) == 1
    assert first.cancelled()


def test_a_job_that_was_put_back_is_the_next_one_unless_all_its_futures_are_cancelled() -> None:
    queue = make_queue(9)
    first, _ = queue.add(A, A), queue.add(B, B)
    queue.put_back(taken(queue))
    job = taken(queue)
    assert job.work == A

    first.cancel()
    queue.put_back(job)
    assert taken(queue).work == B
    queue.add(A, A)
    assert taken(queue).work == A


def test_waiting_jobs_fail_without_running_ones() -> None:
    queue = make_queue(9)
    runs, waits = queue.add(A, A), queue.add(B, B)
    job = taken(queue)
    queue.fail_waiting(GrammarError("no worker"))

    assert str(outcome(waits)) == "no worker"
    assert not runs.done()
    queue.finish(job, 1)
    assert outcome(runs) == 1
    assert not queue.add(B, B).done()


def test_an_ended_queue_fails_all_jobs_with_the_first_error() -> None:
    queue = make_queue(9)
    runs, waits = queue.add(A, A), queue.add(B, B)
    job = taken(queue)
    queue.end(ModelError("closed"))
    queue.end(ModelError("again"))
    queue.finish(job, 1)

    errors = [outcome(future) for future in (runs, waits, queue.add(A, A), queue.add(C, C))]
    assert [str(error) for error in errors] == ["closed"] * 4
    assert len(set(map(id, errors))) == 4
    assert queue.take() is None
    assert queue.ended


def test_ending_in_the_middle_of_taking_leaves_nothing_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make_queue(9)
    waits = queue.add(A, A)
    look = queue._wait

    def end_after_looking() -> None:  # as a collection of garbage may do it
        look()
        queue.end(ModelError("closed"))

    monkeypatch.setattr(queue, "_wait", end_after_looking)

    assert queue.take() is None
    assert str(outcome(waits)) == "closed"


def test_each_future_gets_its_own_error() -> None:
    queue = make_queue(9)
    futures = [queue.add(A, A), queue.add(A, A)]
    try:
        raise GrammarError("refused")
    except GrammarError as error:
        queue.finish(taken(queue), error)

    errors = [outcome(future) for future in futures]
    assert errors[0] is not errors[1]
    assert [(type(error), str(error)) for error in errors] == [(GrammarError, "refused")] * 2
    assert errors[1].__traceback__ is None


def test_a_done_callback_may_add_a_job() -> None:
    queue = make_queue(9)
    more: list[Future[Any]] = []
    queue.add(A, A).add_done_callback(lambda _: more.append(queue.add(B, B)))
    queue.finish(taken(queue), 1)

    assert taken(queue).work == B
    assert len(more) == 1


def test_settling_a_future_that_was_cancelled_does_nothing() -> None:
    future: Future[Any] = Future()
    future.cancel()

    settle_future(future, GrammarError("late"))
    assert future.cancelled()


def test_a_full_queue_drops_the_newest_job_of_the_caller_with_the_most() -> None:
    queue = make_queue(3)
    greedy = [queue.add(one, one, caller="greedy") for one in (A, B, C)]
    other = queue.add(A, A, caller="other")
    again = queue.add(D, D, caller="greedy")

    assert isinstance(outcome(greedy[2]), GrammarBusyError)
    assert isinstance(outcome(again), GrammarBusyError)
    assert not any(future.done() for future in (*greedy[:2], other))
    second = queue.add(B, B, caller="other")  # both would have as many: neither gives way
    assert isinstance(outcome(second), GrammarBusyError)


def test_the_same_spec_of_two_callers_is_two_jobs() -> None:
    queue = make_queue(9)
    one, other = queue.add(A, A, "one"), queue.add(A, A, "other")
    first, second = taken(queue), taken(queue)
    queue.finish(first, 1)

    assert (first.caller, second.caller) == ("one", "other")
    assert (outcome(one), other.done()) == (1, False)


def test_more_workers_are_wanted_where_jobs_wait_that_may_run() -> None:
    queue = make_queue(9, workers=2)
    assert not queue.wants_more(1)
    queue.add(A, A, caller="one")
    assert not queue.wants_more(1)
    job = taken(queue)
    queue.add(B, B, caller="one")
    assert not queue.wants_more(1)  # one caller does not get both
    queue.add(A, A, caller="other")
    assert queue.wants_more(1)
    assert not queue.wants_more(2)
    queue.finish(job, 1)
    assert queue.wants_more(1)
