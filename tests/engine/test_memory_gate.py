import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from photonlite.engine.memory_gate import GateLane, MemoryGate, MemoryPermit
from tests.guard import GUARD


class Caller:
    """Requests room for so many bytes, and can be waited for."""

    def __init__(self, lane: GateLane, size: int) -> None:
        self.permit = lane.request(size)
        self._granted = self.permit.granted

    @property
    def inside(self) -> bool:
        return self.permit.inside

    @property
    def waits(self) -> bool:
        return self._granted is not None and not self._granted.done()

    def wait(self) -> None:
        assert self._granted is not None
        self._granted.result(GUARD)


def ended() -> None:
    """Wait until no thread grants permits."""
    for thread in threading.enumerate():
        if thread.name == "photonlite-memory-gate":
            thread.join(GUARD)
            assert not thread.is_alive()


@pytest.fixture
def lane() -> Iterator[GateLane]:
    lane = GateLane(100)
    yield lane
    for permit in list(lane._queue):
        permit.release()
    ended()


def test_calls_are_admitted_at_once_while_there_is_room(lane: GateLane) -> None:
    callers = [Caller(lane, 40) for _ in range(3)]

    assert [caller.inside for caller in callers] == [True, True, False]
    assert [caller.waits for caller in callers] == [False, False, True]
    assert (lane.held, lane.waiting) == (80, 1)


def test_waiting_calls_are_admitted_in_order(lane: GateLane) -> None:
    first, large, small = Caller(lane, 60), Caller(lane, 90), Caller(lane, 10)
    assert not small.inside
    first.permit.release()
    large.wait()
    small.wait()

    assert lane.held == 100


def test_releasing_twice_counts_once_and_a_released_permit_is_never_granted(lane: GateLane) -> None:
    first, second, third = (Caller(lane, 90) for _ in range(3))
    second.permit.release()
    for _ in range(2):
        first.permit.release()
    third.wait()

    assert second.waits
    assert (lane.held, lane.waiting) == (90, 0)
    third.permit.release()
    assert lane.held == 0


def test_an_image_larger_than_the_limit_enters_alone(lane: GateLane) -> None:
    first, large, after = Caller(lane, 10), Caller(lane, 1000), Caller(lane, 1)
    first.permit.release()
    large.wait()
    assert not after.inside
    large.permit.release()
    after.wait()

    assert lane.held == 1


def test_a_smaller_size_admits_waiting_calls(lane: GateLane) -> None:
    first, second = Caller(lane, 80), Caller(lane, 40)
    first.permit.resize(50)
    second.wait()

    assert lane.held == 90
    first.permit.release()
    assert lane.held == 40


def test_the_granting_thread_ends_when_no_call_waits(lane: GateLane) -> None:
    before = set(threading.enumerate())
    first, second = Caller(lane, 90), Caller(lane, 90)
    begun = set(threading.enumerate()) - before
    first.permit.release()
    second.wait()
    for thread in begun:
        thread.join(GUARD)

    assert len(begun) == 1
    assert not any(thread.is_alive() for thread in begun)


def test_calls_wait_and_are_admitted_after_one_for_which_no_thread_could_be_started(
    lane: GateLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    first = Caller(lane, 90)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="start"):
            lane.request(90)
    second = Caller(lane, 20)
    assert (second.waits, lane.waiting) == (True, 1)
    first.permit.release()
    second.wait()

    assert lane.held == 20


def test_no_call_is_lost_or_admitted_beyond_the_limit_under_load() -> None:
    count = 200
    lane, most, lock, inside = GateLane(30), 0, threading.Lock(), 0
    done = [threading.Event() for _ in range(count)]

    def serve(number: int, permit: MemoryPermit) -> None:
        nonlocal most, inside
        with lock:
            inside += permit.size
            most = max(most, inside)
        with lock:
            inside -= permit.size
        permit.release()
        done[number].set()

    def ask(numbers: range) -> None:
        for number in numbers:
            permit = lane.request(1 + number % 20)
            if (granted := permit.granted) is None:
                serve(number, permit)
            else:
                granted.add_done_callback(lambda _, number=number, permit=permit: serve(number, permit))  # type: ignore[misc]

    threads = [threading.Thread(target=ask, args=(range(part, count, 4),)) for part in range(4)]
    for thread in threads:
        thread.start()

    assert all(event.wait(GUARD) for event in done)
    assert most <= 30
    assert lane.held == 0


def test_garbage_collection_may_release_a_permit_on_any_line(lane: GateLane) -> None:
    """Permits leave in finalizers, on threads that may hold the lane's lock."""

    class Cycle:
        def __init__(self, permit: MemoryPermit) -> None:
            self.me, self.permit = self, permit

        def __del__(self) -> None:
            self.permit.release()

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            Cycle(lane.request(40))
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    ended()

    assert (lane.held, lane.waiting) == (0, 0)


def test_a_quarter_of_the_gate_is_reserved_for_realtime_calls_and_the_rest_for_bulk() -> None:
    gate = MemoryGate(1000)
    bulk = [Caller(gate.bulk, 250) for _ in range(4)]
    realtime = [Caller(gate.realtime, 125) for _ in range(3)]

    assert [one.inside for one in bulk] == [True, True, True, False]
    assert [one.inside for one in realtime] == [True, True, False]
    assert (gate.held, gate.waiting) == (1000, 2)
    for caller in (bulk[-1], realtime[-1]):
        caller.permit.release()
    ended()
    assert gate.waiting == 0


def test_a_released_permit_drops_its_callbacks_while_it_is_still_queued() -> None:
    class Call:
        def go(self, granted: object) -> None:
            raise AssertionError("it was released")

    lane = GateLane(100)
    first, second = lane.request(90), lane.request(50)
    call = Call()
    known = weakref.ref(call)
    permit = lane.request(10)
    assert permit.granted is not None
    permit.granted.add_done_callback(call.go)
    del call
    assert known() is not None
    permit.release()
    gc.collect()

    assert known() is None
    assert lane.waiting == 1
    first.release()
    second.release()
    ended()
