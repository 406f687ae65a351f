"""Turns between callers on a clock of the test's, and the futures that wait for jobs."""

from concurrent.futures import ALL_COMPLETED, CancelledError, Future, wait
from itertools import count
from typing import Any

import pytest

from photonlite.errors import GrammarBusyError, GrammarError, ModelError
from photonlite.grammar.compiler.queue import CompileJob, FairQueue, JobQueue, settle_future
from tests.grammar.compiler.workers import LONG, spec

_numbers = count()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def job(caller: str) -> CompileJob:
    return CompileJob(spec(f"{next(_numbers)}"), caller=caller)


def served(queue: FairQueue, clock: Clock, seconds: dict[str, float], most: int) -> list[str]:
    """Run so many jobs one after the other, each as long as its caller's jobs take; give their callers."""
    callers = []
    for _ in range(most):
        taken = queue.take()
        if taken is None:
            break
        clock.now += seconds[taken.caller]
        queue.end(taken)
        callers.append(taken.caller)
    return callers


def test_a_callers_own_jobs_run_in_order() -> None:
    queue = FairQueue(1)
    jobs = [job("a") for _ in range(3)]
    for one in jobs:
        queue.add(one)

    for one in jobs:
        assert queue.take() is one
        queue.end(one)
    assert queue.take() is None


def test_time_is_divided_and_not_turns() -> None:
    clock = Clock()
    queue = FairQueue(1, clock)
    for caller, number in (("slow", 20), ("quick", 100)):
        for _ in range(number):
            queue.add(job(caller))

    callers = served(queue, clock, {"slow": 10.0, "quick": 1.0}, 44)

    assert callers.count("slow") == 4
    assert callers.count("quick") == 40


def test_a_new_caller_is_next_and_a_pause_earns_no_credit() -> None:
    clock = Clock()
    queue = FairQueue(1, clock)
    for _ in range(50):
        queue.add(job("greedy"))
    seconds = {"greedy": 2.0, "new": 2.0}
    assert served(queue, clock, seconds, 10) == ["greedy"] * 10

    for _ in range(20):
        queue.add(job("new"))
    assert queue.waiting == 60
    callers = served(queue, clock, seconds, 10)
    assert callers[0] == "new"
    assert callers.count("new") in (5, 6)


def test_only_the_unnamed_caller_gets_all_of_several_workers() -> None:
    queue = FairQueue(3)
    for caller in ("a", "a", "a", "", "", ""):
        queue.add(job(caller))

    assert queue.eligible == 5
    taken = [queue.take() for _ in range(5)]
    assert sorted(one.caller for one in taken if one is not None) == ["", "", "", "a", "a"]
    assert queue.take() is None
    assert (queue.waiting, queue.running) == (1, 5)
    queue.end(next(one for one in taken if one is not None and one.caller == "a"))
    assert queue.eligible == 1


def test_a_single_worker_is_for_everybody() -> None:
    queue = FairQueue(1)
    queue.add(job("a"))

    assert queue.take() is not None


def test_a_job_can_be_put_first_or_taken_out() -> None:
    queue = FairQueue(2)
    first, second, third = job("a"), job("a"), job("a")
    queue.add(first)
    queue.add(second)
    queue.add(third, first=True)

    assert queue.remove(second)
    assert not queue.remove(second)
    assert queue.jobs == [third, first]
    queue.clear()
    assert (queue.waiting, queue.take()) == (0, None)


def test_callers_are_forgotten() -> None:
    clock = Clock()
    queue = FairQueue(1, clock)
    queue.add(job("busy"))
    for number in range(1000):
        queue.add(job(f"{number}"))
        queue.add(job("busy"))
        served(queue, clock, dict.fromkeys(("busy", *map(str, range(1000))), 1.0), 2)

    assert len(queue._callers) <= 4
    served(queue, clock, dict.fromkeys(("busy", *map(str, range(1000))), 1.0), 2000)
    assert queue._callers == {}


A, B, C, D = map(spec, "abcd")


def outcome(future: "Future[Any]") -> Any:
    assert future.done()
    return future.exception() or future.result()


def taken(queue: JobQueue) -> CompileJob:
    job = queue.take()
    assert job is not None
    return job


def test_jobs_are_taken_in_order_and_all_who_asked_get_the_result() -> None:
    queue = JobQueue(9)
    futures = [queue.add(one) for one in (A, B, A, C, B)]

    jobs = [taken(queue) for _ in range(3)]
    assert [job.spec for job in jobs] == [A, B, C]
    for number, job in enumerate(jobs):
        queue.finish(job, number)  # type: ignore[arg-type]

    assert [outcome(future) for future in futures] == [0, 1, 0, 2, 1]


def test_a_job_that_runs_is_joined_and_one_that_has_ended_is_asked_for_again() -> None:
    queue = JobQueue(9)
    queue.add(A)
    job = taken(queue)
    late = queue.add(A)
    queue.finish(job, 1)  # type: ignore[arg-type]
    again = queue.add(A)

    assert outcome(late) == 1
    assert not again.done()
    assert taken(queue).spec == A


def test_only_so_many_specs_wait() -> None:
    queue = JobQueue(2)
    queue.add(A)
    taken(queue)
    futures = [queue.add(one) for one in (B, C, D, A, B, C)]

    assert isinstance(outcome(futures[2]), GrammarBusyError)
    assert "2 grammars wait" in str(outcome(futures[2]))
    assert [future.done() for future in futures] == [False, False, True, False, False, False]
    taken(queue)
    assert not queue.add(D).done()


def test_a_cancelled_future_gives_up_its_own_place_only() -> None:
    queue = JobQueue(2)
    one, other, alone = queue.add(A), queue.add(A), queue.add(B)
    assert one.cancel()
    assert alone.cancel()

    assert not queue.add(C).done()  # there is room again
    job = taken(queue)
    queue.finish(job, 1)  # type: ignore[arg-type]
    assert outcome(other) == 1
    assert taken(queue).spec == C
    assert wait([one, alone], LONG, ALL_COMPLETED).not_done == set()
    with pytest.raises(CancelledError):
        one.result()


def test_what_runs_can_be_cancelled_and_joined_again() -> None:
    queue = JobQueue(2)
    first = queue.add(A)
    job = taken(queue)
    assert first.cancel()
    second = queue.add(A)
    queue.finish(job, 1)  # type: ignore[arg-type]

    assert outcome(second) == 1
    assert first.cancelled()


def test_a_job_that_was_put_back_is_the_next_one_unless_all_its_futures_are_cancelled() -> None:
    queue = JobQueue(9)
    first, _ = queue.add(A), queue.add(B)
    queue.put_back(taken(queue))
    job = taken(queue)
    assert job.spec == A

    first.cancel()
    queue.put_back(job)
    assert taken(queue).spec == B
    queue.add(A)
    assert taken(queue).spec == A


def test_what_waits_can_fail_alone() -> None:
    queue = JobQueue(9)
    runs, waits = queue.add(A), queue.add(B)
    job = taken(queue)
    queue.fail_waiting(GrammarError("no worker"))

    assert str(outcome(waits)) == "no worker"
    assert not runs.done()
    queue.finish(job, 1)  # type: ignore[arg-type]
    assert outcome(runs) == 1
    assert not queue.add(B).done()


def test_after_the_end_everything_fails_and_the_first_reason_stands() -> None:
    queue = JobQueue(9)
    runs, waits = queue.add(A), queue.add(B)
    job = taken(queue)
    queue.end(ModelError("closed"))
    queue.end(ModelError("again"))
    queue.finish(job, 1)  # type: ignore[arg-type]

    errors = [outcome(future) for future in (runs, waits, queue.add(A), queue.add(C))]
    assert [str(error) for error in errors] == ["closed"] * 4
    assert len(set(map(id, errors))) == 4
    assert queue.take() is None
    assert queue.ended


def test_ending_in_the_middle_of_taking_leaves_nothing_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = JobQueue(9)
    waits = queue.add(A)
    look = queue.wait

    def end_after_looking() -> None:  # as a collection of garbage may do it
        look()
        queue.end(ModelError("closed"))

    monkeypatch.setattr(queue, "wait", end_after_looking)

    assert queue.take() is None
    assert str(outcome(waits)) == "closed"


def test_each_who_waits_gets_an_error_of_its_own() -> None:
    queue = JobQueue(9)
    futures = [queue.add(A), queue.add(A)]
    try:
        raise GrammarError("refused")
    except GrammarError as error:
        queue.finish(taken(queue), error)

    errors = [outcome(future) for future in futures]
    assert errors[0] is not errors[1]
    assert [(type(error), str(error), error.__traceback__) for error in errors] == [(GrammarError, "refused", None)] * 2


def test_a_future_may_ask_for_more_when_it_is_done() -> None:
    queue = JobQueue(9)
    more: list[Future[Any]] = []
    queue.add(A).add_done_callback(lambda _: more.append(queue.add(B)))
    queue.finish(taken(queue), 1)  # type: ignore[arg-type]

    assert taken(queue).spec == B
    assert len(more) == 1


def test_settling_a_future_that_was_cancelled_does_nothing() -> None:
    future: Future[Any] = Future()
    future.cancel()

    settle_future(future, GrammarError("late"))
    assert future.cancelled()


def test_a_full_queue_drops_the_newest_job_of_the_caller_with_the_most() -> None:
    queue = JobQueue(3)
    greedy = [queue.add(one, caller="greedy") for one in (A, B, C)]
    other = queue.add(A, caller="other")
    again = queue.add(D, caller="greedy")

    assert isinstance(outcome(greedy[2]), GrammarBusyError)
    assert isinstance(outcome(again), GrammarBusyError)
    assert not any(future.done() for future in (*greedy[:2], other))
    second = queue.add(B, caller="other")  # both would have as many: nobody gives way
    assert isinstance(outcome(second), GrammarBusyError)


def test_the_same_spec_of_two_callers_is_two_jobs() -> None:
    queue = JobQueue(9)
    one, other = queue.add(A, "tenant", "one"), queue.add(A, "tenant", "other")
    first, second = taken(queue), taken(queue)
    queue.finish(first, 1)  # type: ignore[arg-type]

    assert (first.caller, second.caller) == ("one", "other")
    assert (outcome(one), other.done()) == (1, False)


def test_more_workers_are_wanted_where_jobs_wait_that_may_run() -> None:
    queue = JobQueue(9, workers=2)
    assert not queue.wants_more(1)
    queue.add(A, caller="one")
    assert not queue.wants_more(1)
    job = taken(queue)
    queue.add(B, caller="one")
    assert not queue.wants_more(1)  # one caller does not get both
    queue.add(A, caller="other")
    assert queue.wants_more(1)
    assert not queue.wants_more(2)
    queue.finish(job, 1)  # type: ignore[arg-type]
    assert queue.wants_more(1)
