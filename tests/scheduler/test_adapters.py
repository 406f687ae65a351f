"""Slots of adapters: who holds them, who waits, and what is loaded when."""

from typing import Any

import pytest

from photonlite.batch import CropGroup, ScheduledBatch
from photonlite.request import IMAGE, Request, SamplingSettings, Token
from photonlite.scheduler.adapters import AdapterLoad, AdapterSlots
from photonlite.sequence import ImageSpan, Sequence
from tests.cache.sequences import adapter_of, sequence
from tests.engine.fakes import PREFIX, Bench, FakeImage, FakeSink, Words, ends_at


def ask(adapter: str = "", *, realtime: bool = False) -> Sequence:
    found = sequence((1, 2), adapter=adapter)
    found.realtime = realtime
    return found


def load_all(slots: AdapterSlots) -> list[tuple[int, str]]:
    loads = slots.take_loads()
    for load in loads:
        assert slots.note_loaded(load) == []
    return [(load.slot, load.adapter.key) for load in loads]


def test_a_request_without_an_adapter_needs_no_slot() -> None:
    slots, one = AdapterSlots(1), ask()
    assert slots.hold(one)
    assert (one.adapter_slot, slots.used, slots.take_loads()) == (0, 0, ())


def test_an_adapter_is_loaded_once_for_all_that_ask() -> None:
    slots = AdapterSlots(2)
    first, second, other = ask("x"), ask("x"), ask("y")
    assert not any(slots.hold(one) for one in (first, second, other))
    assert [one.adapter_slot for one in (first, second, other)] == [1, 1, 2]
    assert load_all(slots) == [(1, "x"), (2, "y")]
    assert slots.take_unblocked() == [first, second, other]
    assert slots.take_unblocked() == []
    assert all(slots.hold(one) for one in (first, second, other))
    assert slots.take_loads() == ()


def test_a_slot_stays_until_the_last_holder_lets_go() -> None:
    slots = AdapterSlots(1)
    first, second, other = ask("x"), ask("x"), ask("y")
    for one in (first, second, other):
        slots.hold(one)
    load_all(slots)
    slots.take_unblocked()
    slots.hold(other)
    assert (other.adapter_slot, slots.is_blocked(other)) == (0, True)
    slots.release(first)
    assert not slots.hold(other)
    slots.release(second)
    assert slots.held == 0
    assert slots.take_unblocked() == [other]
    assert not slots.hold(other)
    assert load_all(slots) == [(1, "y")]
    assert slots.hold(other)


def test_the_adapter_that_was_not_used_for_longest_makes_room() -> None:
    slots = AdapterSlots(2)
    old, new = ask("old"), ask("new")
    for one in (old, new):
        slots.hold(one)
    load_all(slots)
    slots.release(new)
    slots.release(old)
    again = ask("new")
    assert slots.hold(again)  # it is still there
    slots.release(again)
    slots.hold(ask("third"))
    assert load_all(slots) == [(1, "third")]
    assert slots.hold(ask("new"))


def test_a_slot_that_is_being_written_is_given_to_nobody_else() -> None:
    slots = AdapterSlots(1)
    first, other = ask("x"), ask("y")
    slots.hold(first)
    slots.release(first)
    assert not slots.hold(other)
    assert other.adapter_slot == 0
    assert load_all(slots) == [(1, "x")]
    assert slots.take_unblocked() == [other]
    assert not slots.hold(other)
    assert load_all(slots) == [(1, "y")]


def test_an_adapter_that_cannot_be_loaded_ends_those_that_wait_for_it() -> None:
    slots = AdapterSlots(1)
    first, second, other = ask("x"), ask("x"), ask("y")
    for one in (second, first, other):
        slots.hold(one)
    (load,) = slots.take_loads()
    assert slots.note_loaded(load, failed=True) == [first, second]
    assert (slots.used, first.adapter_slot, second.adapter_slot) == (0, 0, 0)
    assert slots.take_unblocked() == [other]
    assert not slots.hold(other)
    assert load_all(slots) == [(1, "y")]


def test_an_encode_step_keeps_the_slot_that_it_reads() -> None:
    slots, one = AdapterSlots(1), ask("x")
    slots.hold(one)
    load_all(slots)
    job: Any = None
    step = ScheduledBatch("encode", groups=(CropGroup(job, 0, 1, 1), CropGroup(job, 1, 1, 0)))
    slots.hold_for_step(step)
    slots.release(one)
    other = ask("y")
    slots.hold(other)
    assert (slots.held, slots.take_loads()) == (1, ())
    slots.release_step(step)
    assert slots.held == 0
    with pytest.raises(AssertionError, match="does not hold it"):
        slots.release_step(step)
    slots.hold(other)
    assert load_all(slots) == [(1, "y")]


def test_what_was_not_asked_for_cannot_be_loaded() -> None:
    slots, adapter = AdapterSlots(1), adapter_of("y")
    assert adapter is not None
    slots.hold(ask("x"))
    with pytest.raises(AssertionError, match="did not wait for"):
        slots.note_loaded(AdapterLoad(1, adapter))


def test_the_oldest_holder_that_waits_is_known_of_each_slot() -> None:
    slots = AdapterSlots(2)
    first, second, other = ask("x"), ask("x"), ask("y")
    for one in (second, first, other):
        slots.hold(one)
    assert slots.waiting_holders() == [first, other]
    first.row = 0
    assert slots.waiting_holders() == [second, other]


@pytest.mark.parametrize("adapter", ["", "x"])
def test_a_slot_is_had_while_it_is_loaded(adapter: str) -> None:
    slots = AdapterSlots(1)
    assert slots.has_slot(ask(adapter))
    assert slots.has_slot(ask("y")) == (not adapter)


def running(slots: AdapterSlots, *adapters: str) -> list[Sequence]:
    """Return a sequence of each adapter, whose slots hold them."""
    found = [ask(adapter) for adapter in adapters]
    for one in found:
        slots.hold(one)
    load_all(slots)
    slots.take_unblocked()
    assert all(slots.hold(one) for one in found)
    return found


def test_later_requests_of_a_loaded_adapter_do_not_keep_its_slot_from_one_that_waits() -> None:
    slots = AdapterSlots(1)
    newest, *_ = running(slots, "x")
    other = ask("y")
    assert not slots.hold(other)
    turns = 0
    while not other.adapter_slot:  # the requests for x overlap, as far as they may
        later = ask("x")
        got = slots.hold(later)
        slots.release(newest)
        newest = later if got else newest
        for one in slots.take_unblocked():
            slots.hold(one)
        turns += 1
        assert turns < 10
    assert (turns, load_all(slots)) == (1, [(1, "y")])


def test_requests_that_came_before_the_one_that_waits_get_the_slot() -> None:
    slots = AdapterSlots(1)
    early = ask("x")
    running(slots, "x")
    other = ask("y")
    slots.hold(other)
    assert slots.hold(early)
    assert not slots.hold(ask("x"))


def test_only_the_least_recently_used_slot_is_drained() -> None:
    slots = AdapterSlots(2)
    running(slots, "x", "y", "x")  # the one of x has got a holder since
    slots.hold(ask("z"))
    assert slots.hold(ask("x"))
    assert not slots.hold(ask("y"))


def test_a_slot_of_bulk_requests_alone_is_drained_first() -> None:
    slots = AdapterSlots(2)
    assert not slots.hold(ask("x", realtime=True))
    slots.hold(ask("y"))
    load_all(slots)
    slots.hold(ask("z"))
    assert slots.hold(ask("x"))
    assert not slots.hold(ask("y"))


def test_the_slot_that_is_drained_stays_the_same_when_an_earlier_request_joins() -> None:
    slots = AdapterSlots(2)
    earlier = ask("x")
    running(slots, "x", "y")
    slots.hold(ask("z"))
    assert slots.hold(earlier)
    assert not slots.hold(ask("x"))
    assert slots.hold(ask("y"))


def test_a_slot_that_only_a_zombie_keeps_is_drained_before_one_of_realtime_requests() -> None:
    slots = AdapterSlots(2)
    urgent, zombie = ask("x", realtime=True), ask("y", realtime=True)
    for one in (urgent, zombie):
        slots.hold(one)
    load_all(slots)
    zombie.finalized = True
    slots.hold(ask("z"))
    assert slots.hold(ask("x"))
    assert not slots.hold(ask("y"))


def test_realtime_requests_do_not_wait_for_bulk_ones() -> None:
    slots = AdapterSlots(1)
    (bulk,) = running(slots, "x")
    slots.hold(ask("y"))
    urgent, first = ask("x", realtime=True), ask("z", realtime=True)
    assert slots.hold(urgent)
    assert not slots.hold(first)
    assert not slots.hold(ask("x", realtime=True))
    for one in (bulk, urgent):
        slots.release(one)
    for one in slots.take_unblocked():
        slots.hold(one)
    assert load_all(slots) == [(1, "z")]


def test_a_slot_that_comes_free_is_kept_for_the_first_that_waits() -> None:
    slots = AdapterSlots(1)
    (before,) = running(slots, "x")
    first, second, again = ask("y"), ask("z"), ask("x")
    for one in (first, second):
        slots.hold(one)
    slots.release(before)
    assert not slots.hold(second)
    assert not slots.hold(again)
    assert not slots.hold(first)
    assert (first.adapter_slot, load_all(slots)) == (1, [(1, "y")])


def test_those_behind_one_that_has_ended_are_asked_again() -> None:
    slots = AdapterSlots(1)
    running(slots, "x")
    other, again, last = ask("y"), ask("x"), ask("z")
    for one in (other, again, last):
        slots.hold(one)
    slots.release(last)
    assert slots.take_unblocked() == []
    slots.release(other)
    assert slots.take_unblocked() == [again]
    assert slots.hold(again)


@pytest.mark.parametrize("beside", [False, True])
def test_a_request_one_of_whose_images_cannot_be_cut_gives_its_slot_back_and_encodes_nothing(beside: bool) -> None:
    bench, loads = Bench(ends_at(3), encodes_beside=beside), list[AdapterLoad]()
    bench.core.load_adapter = loads.append
    good, bad = FakeImage("good"), FakeImage("bad", cut=False)
    prompt = (Token(1), IMAGE, IMAGE, Token(2))
    request = Request("query", prompt, Words(3), 3, SamplingSettings(), adapter=adapter_of("x"))
    inside = (ImageSpan(bad, PREFIX + 1, PREFIX + 3),)
    bench.hand_in(Sequence(0, request, FakeSink(), PREFIX, good, inside=inside))
    bench.core.tick()
    for load in loads:
        bench.core.note_adapter(load)
    bad.failure = ValueError("it cannot be cut")
    bench.run()

    assert bench.scheduler.adapters.held == 0
    assert bench.runner.steps == []
