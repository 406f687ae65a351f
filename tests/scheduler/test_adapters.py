"""Slots of adapters: who holds them, who waits, and what is loaded when."""

from typing import Any

import pytest

from photonlite.batch import CropGroup, ScheduledBatch
from photonlite.scheduler.adapters import AdapterLoad, AdapterSlots
from photonlite.sequence import Sequence
from tests.cache.sequences import adapter_of, sequence


def ask(adapter: str = "") -> Sequence:
    return sequence((1, 2), adapter=adapter)


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
    slots.hold(ask("y"))
    assert (slots.held, slots.take_loads()) == (1, ())
    slots.release_step(step)
    assert slots.held == 0
    with pytest.raises(AssertionError, match="does not hold it"):
        slots.release_step(step)
    slots.hold(ask("y"))
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
