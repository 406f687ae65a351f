import functools

import pytest

from bench.bubble.graph_memory import CASES, GraphMemory, PooledCapturer, graph_memory_table, measure_graph_memory
from photonlite.runner.graphs import VARIANTS, GraphReport
from tests.bubble.small import tiny_subject


class FakePool:
    """A capturer with a pool of its own, of which every graph takes a mebibyte."""

    def __init__(self, made):
        made.append(self)
        self.captured = []
        self._made = made

    def capture(self, work):
        work()
        self.captured.append(work)
        return work

    def used_bytes(self):
        return 2**20 * sum(len(pool.captured) for pool in self._made)


def nothing(slot, size):
    pass


@pytest.mark.parametrize(("pools", "expected"), [("one", [4]), ("slot", [2, 2]), ("graph", [1, 1, 1, 1])])
def test_graphs_share_pools_as_they_are_told(pools, expected):
    made = []
    capturer = PooledCapturer(pools, lambda: FakePool(made))
    capturer.used_bytes()
    for slot in (0, 1, 0, 1):
        capturer.capture(functools.partial(nothing, slot, 8))

    captured = [[work.args[0] for work in pool.captured] for pool in made if pool.captured]
    assert [len(slots) for slots in captured] == expected
    if pools == "slot":
        assert captured == [[0, 0], [1, 1]]


def test_work_that_is_not_bound_to_a_slot_is_a_mistake():
    with pytest.raises(AssertionError, match="not bound to a slot"):
        PooledCapturer("slot", lambda: FakePool([])).capture(lambda: None)


@pytest.mark.long
def test_each_case_captures_the_graphs_of_its_slots():
    made = []
    found = measure_graph_memory(tiny_subject(), (1, 2), lambda: FakePool(made))

    of_a_slot = 2 * (1 + 2 * len(VARIANTS))
    assert [(one.slots, one.pools) for one in found] == list(CASES)
    assert [one.report.graphs for one in found] == [of_a_slot * slots for slots, _ in CASES]
    assert [one.report.bytes for one in found] == [2**20 * of_a_slot * slots for slots, _ in CASES]


def test_the_table_tells_what_the_second_slot_added():
    found = [
        GraphMemory(1, "one", GraphReport(33, 0.2, 100 * 2**20), 90 * 2**20),
        GraphMemory(2, "slot", GraphReport(66, 0.4, 210 * 2**20), 180 * 2**20),
    ]
    row = [cell.strip() for cell in graph_memory_table(found, (1, 8)).splitlines()[-1].strip("|").split("|")]
    assert row == ["2", "one a slot", "66", "210", "180", "+110 MiB", "0.4"]
