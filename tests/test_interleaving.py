"""The interleaving scheduler finds lost updates, lost wake-ups and deadlocks, and replays them."""

import queue
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.interleaving import Deadlock, Interleaving

SEEDS = 60


class Counter:
    """Loses updates, unless it is locked."""

    def __init__(self, locked: bool) -> None:
        self.value = 0
        self._lock = threading.RLock() if locked else None

    def add(self) -> None:
        if self._lock is not None:
            with self._lock:
                self._add()
        else:
            self._add()

    def _add(self) -> None:
        value = self.value
        value += 1
        self.value = value


def world(seed: int) -> Interleaving:
    return Interleaving(seed, sys.modules[__name__])


def counted(seed: int, *, locked: bool) -> int:
    with world(seed) as threads:
        counter = Counter(locked)
        for _ in range(3):
            threads.spawn(counter.add)
        threads.run()
    return counter.value


def test_an_update_that_races_is_lost_for_some_seeds_and_never_under_a_lock() -> None:
    assert {counted(seed, locked=False) for seed in range(SEEDS)} > {3}
    assert {counted(seed, locked=True) for seed in range(SEEDS)} == {3}


def test_a_seed_replays() -> None:
    losing = next(seed for seed in range(SEEDS) if counted(seed, locked=False) < 3)

    assert {counted(losing, locked=False) for _ in range(5)} == {counted(losing, locked=False)}


def both_orders(seed: int) -> None:
    with world(seed) as threads:
        one, other = threading.RLock(), threading.RLock()

        def take(first: threading.RLock, second: threading.RLock) -> None:
            with first, second:
                pass

        threads.spawn(take, one, other)
        threads.spawn(take, other, one)
        threads.run()


def test_locks_taken_in_two_orders_deadlock_for_some_seed() -> None:
    deadlocks = []
    for seed in range(SEEDS):
        try:
            both_orders(seed)
        except Deadlock as deadlock:
            deadlocks.append(deadlock)

    assert 0 < len(deadlocks) < SEEDS
    assert "everybody is blocked: thread 0: " in str(deadlocks[0])


def listen(box: list[int], wakes: "queue.SimpleQueue[None]", forget: Callable[[], None], *, too_late: bool) -> None:
    while True:
        if not too_late:
            forget()
        if box:
            return
        if too_late:
            forget()
        try:
            wakes.get(timeout=0.5)
        except queue.Empty:
            continue


def slept(seed: int, *, too_late: bool) -> float:
    with world(seed) as threads:
        wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        box: list[int] = []

        def forget() -> None:
            while not wakes.empty():
                wakes.get()

        def tell() -> None:
            box.append(1)
            wakes.put(None)

        threads.spawn(lambda: listen(box, wakes, forget, too_late=too_late))
        threads.spawn(tell)
        threads.run()
    return threads.now


def test_a_lost_wake_up_advances_the_clock() -> None:
    assert max(slept(seed, too_late=True) for seed in range(SEEDS)) == 0.5
    assert max(slept(seed, too_late=False) for seed in range(SEEDS)) == 0.0


def test_timeouts_expire_in_order_while_all_threads_are_blocked() -> None:
    with world(0) as threads:
        woken: list[tuple[str, float]] = []

        def sleep(name: str, seconds: float) -> None:
            time.sleep(seconds)
            woken.append((name, time.perf_counter()))

        threads.spawn(sleep, "late", 3.0)
        threads.spawn(sleep, "early", 1.0)
        threads.run()

    assert woken == [("early", 1.0), ("late", 3.0)]


def test_an_error_of_one_thread_ends_the_others_and_is_raised() -> None:
    before = set(threading.enumerate())
    with world(0) as threads:
        gate = threading.Event()
        threads.spawn(gate.wait)
        threads.spawn(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            threads.run()

    assert set(threading.enumerate()) <= before
