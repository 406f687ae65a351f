import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from photonlite.engine.window import Lane, Place, Window

GUARD = 30.0


class Caller:
    """Enters with an image of so many bytes, and can be waited for."""

    def __init__(self, lane: Lane, size: int) -> None:
        self._told = threading.Event()
        self.place = lane.enter(size, lambda _: self._told.set())

    @property
    def inside(self) -> bool:
        return self.place.inside

    def wait(self) -> None:
        assert self._told.wait(GUARD)


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane(100)
    yield lane
    for place in list(lane._queue):
        place.leave()
    lane.settle()


def test_calls_enter_at_once_while_there_is_room(lane: Lane) -> None:
    callers = [Caller(lane, 40) for _ in range(3)]

    assert [caller.inside for caller in callers] == [True, True, False]
    assert [caller.place.waits for caller in callers] == [False, False, True]
    assert (lane.held, lane.waiting) == (80, 1)


def test_who_waits_enters_in_turn_and_nobody_overtakes(lane: Lane) -> None:
    first, large, small = Caller(lane, 60), Caller(lane, 90), Caller(lane, 10)
    assert not small.inside
    first.place.leave()
    large.wait()
    small.wait()

    assert lane.held == 100


def test_leaving_twice_gives_back_once_and_who_leaves_the_queue_is_never_told(lane: Lane) -> None:
    first, second, third = (Caller(lane, 90) for _ in range(3))
    second.place.leave()
    for _ in range(2):
        first.place.leave()
    third.wait()

    assert not second._told.is_set()
    assert (lane.held, lane.waiting) == (90, 0)
    third.place.leave()
    assert lane.held == 0


def test_an_image_larger_than_the_room_enters_alone(lane: Lane) -> None:
    first, large, after = Caller(lane, 10), Caller(lane, 1000), Caller(lane, 1)
    first.place.leave()
    large.wait()
    assert not after.inside
    large.place.leave()
    after.wait()

    assert lane.held == 1


def test_a_size_that_turns_out_smaller_lets_others_in(lane: Lane) -> None:
    first, second = Caller(lane, 80), Caller(lane, 40)
    first.place.fill(50)
    second.wait()

    assert lane.held == 90
    first.place.leave()
    assert lane.held == 40


def test_settling_waits_until_nobody_waits_and_tells_whether_anybody_did(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Caller(lane, 90), Caller(lane, 90)
    settled: list[bool] = []
    begun, wait_for = threading.Event(), lane._nobody_waits.wait_for
    monkeypatch.setattr(lane._nobody_waits, "wait_for", lambda holds: begun.set() or wait_for(holds))
    waiter = threading.Thread(target=lambda: settled.append(lane.settle()))
    waiter.start()
    assert begun.wait(GUARD)
    first.place.leave()
    second.wait()
    waiter.join(GUARD)

    assert settled == [True]
    assert not lane.settle()


def test_the_thread_that_lets_calls_in_ends_when_nobody_waits(lane: Lane) -> None:
    before = set(threading.enumerate())
    first, second = Caller(lane, 90), Caller(lane, 90)
    begun = set(threading.enumerate()) - before
    first.place.leave()
    second.wait()
    for thread in begun:
        thread.join(GUARD)

    assert len(begun) == 1
    assert not any(thread.is_alive() for thread in begun)


def test_no_call_is_lost_or_let_in_beyond_the_limit_when_many_come_and_go() -> None:
    count = 200
    lane, most, lock, inside = Lane(30), 0, threading.Lock(), 0
    done = [threading.Event() for _ in range(count)]

    def serve(number: int, place: Place) -> None:
        nonlocal most, inside
        with lock:
            inside += place.size
            most = max(most, inside)
        with lock:
            inside -= place.size
        place.leave()
        done[number].set()

    def ask(numbers: range) -> None:
        for number in numbers:
            place = lane.enter(1 + number % 20, lambda place, number=number: serve(number, place))  # type: ignore[misc]
            if not place.waits:
                serve(number, place)

    threads = [threading.Thread(target=ask, args=(range(part, count, 4),)) for part in range(4)]
    for thread in threads:
        thread.start()

    assert all(event.wait(GUARD) for event in done)
    assert most <= 30
    assert lane.held == 0


def test_a_collection_of_garbage_may_drop_a_call_on_any_line(lane: Lane) -> None:
    """Places leave in finalizers, on threads that may hold the lane's lock."""

    class Cycle:
        def __init__(self, place: Place) -> None:
            self.me, self.place = self, place

        def __del__(self) -> None:
            self.place.leave()

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            Cycle(lane.enter(40, lambda _: None))
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    lane.settle()

    assert (lane.held, lane.waiting) == (0, 0)


def test_a_quarter_of_the_window_is_for_realtime_calls_and_neither_class_takes_the_others_room() -> None:
    window = Window(1000)
    bulk = [Caller(window.bulk, 250) for _ in range(4)]
    realtime = [Caller(window.realtime, 125) for _ in range(3)]

    assert [one.inside for one in bulk] == [True, True, True, False]
    assert [one.inside for one in realtime] == [True, True, False]
    assert (window.held, window.waiting) == (1000, 2)
    for caller in (bulk[-1], realtime[-1]):
        caller.place.leave()
    window.settle()
    assert window.waiting == 0


def test_a_call_that_stops_waiting_is_forgotten_though_its_place_is_still_in_the_queue() -> None:
    class Call:
        def go(self, place: Place) -> None:
            raise AssertionError("it has left")

    lane = Lane(100)
    first, second = lane.enter(90, lambda _: None), lane.enter(50, lambda _: None)
    call = Call()
    known = weakref.ref(call)
    place = lane.enter(10, call.go)
    del call
    assert known() is not None
    place.leave()
    gc.collect()

    assert known() is None
    assert lane.waiting == 1
    first.leave()
    second.leave()
    lane.settle()
