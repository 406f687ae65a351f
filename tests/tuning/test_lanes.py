"""Lanes of a CUDA device with stand-ins for the calls of PyTorch and the driver."""

import contextlib
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from photonlite.device import parts
from photonlite.kernels.triton_utils import arrival_counters
from photonlite.tuning.lanes import CudaCard
from tests.device.test_parts import FakeDriver


class Stream:
    def __init__(self, *where: Any) -> None: ...
    def synchronize(self) -> None: ...


class Event:
    ticks = itertools.count()

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        self.at = next(self.ticks)

    def elapsed_time(self, end: "Event") -> float:
        return float(end.at - self.at)


class Graph:
    replays = 0

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    fake.on_cuCtxPushCurrent = lambda context: ()  # type: ignore[attr-defined]
    stand_ins = {
        "get_device_properties": lambda device: SimpleNamespace(multi_processor_count=132),
        "set_device": lambda device: None,
        "set_stream": lambda stream: None,
        "synchronize": lambda device=None: None,
        "Stream": Stream,
        "ExternalStream": Stream,
        "CUDAGraph": Graph,
        "graph": lambda graph, **options: contextlib.nullcontext(),
        "Event": lambda enable_timing: Event(),
    }
    for name, value in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(parts, "driver_bindings", lambda: fake)
    return fake


@pytest.fixture
def card(driver: FakeDriver) -> Iterator[CudaCard]:
    made = CudaCard(torch.device("cuda", 0))
    yield made
    made.close()


def test_lanes_have_the_whole_card_or_a_part_whose_context_is_current(card: CudaCard, driver: FakeDriver) -> None:
    first, second = card.divided(60)

    assert (first.sms, second.sms, card.whole().sms) == (64, 68, 132)
    pushed = [call[1] for call in driver.calls if call[0] == "cuCtxPushCurrent"]
    assert pushed == [f"context of green context, description of {sms}" for sms in (64, 68)]


def test_a_division_is_made_once(card: CudaCard, driver: FakeDriver) -> None:
    assert card.divided(64) == card.divided(64)
    assert sum(call[0] == "cuDevSmResourceSplitByCount" for call in driver.calls) == 1


def test_queues_are_replayed_at_once_and_timed_by_events(card: CudaCard) -> None:
    lanes = card.divided(64)
    graphs = [lane.capture(lambda: None) for lane in lanes]

    ends = card.run([(lanes[0], [graphs[0]] * 3), (lanes[1], [graphs[1]] * 5)])

    assert [len(one) for one in ends] == [3, 5]
    assert all(later > earlier for one in ends for earlier, later in itertools.pairwise(one))
    assert [graph.__self__.replays for graph in graphs] == [3, 5]  # type: ignore[attr-defined]


def test_lanes_share_no_arrival_counters(card: CudaCard) -> None:
    found = []
    for lane in (card.whole(), card.whole()):
        lane.capture(lambda: found.append(arrival_counters(torch.device("cpu"), 8).data_ptr()))

    assert len(found) == 2 * 3, "two runs to warm up, and the recorded one"
    assert len(set(found)) == 2
