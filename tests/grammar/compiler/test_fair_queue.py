"""Turns between callers, on a clock of the test's."""

from itertools import count

from photonlite.grammar.compiler.fair_queue import CompileJob, FairQueue
from tests.grammar.compiler.workers import spec

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


def test_who_comes_new_is_next_and_who_paused_has_saved_nothing() -> None:
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


def test_no_caller_has_all_of_several_workers_but_nobody_in_particular_may() -> None:
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

    assert len(queue._lines) <= 4
    served(queue, clock, dict.fromkeys(("busy", *map(str, range(1000))), 1.0), 2000)
    assert queue._lines == {}
