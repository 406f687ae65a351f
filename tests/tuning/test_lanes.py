"""Lanes of a CUDA device with stand-ins for the calls of PyTorch and the driver."""

import contextlib
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from photonlite.device import parts
from photonlite.device.cuda import PRIORITY
from photonlite.kernels.triton_utils import arrival_counters
from photonlite.tuning.lanes import CudaCard
from tests.device.test_parts import FakeDriver


class Stream:
    def __init__(self, *where: Any, **options: Any) -> None:
        self.priority = options.get("priority", 0)

    def synchronize(self) -> None: ...


class Event:
    ticks = itertools.count()

    def __init__(self) -> None:
        self.ended = False

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        self.at = next(self.ticks)

    def synchronize(self) -> None:
        self.ended = True

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


def test_only_a_few_replays_are_queued_at_a_time(card: CudaCard, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Event] = []
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: made.append(Event()) or made[-1])
    lane, queued = card.whole(), []

    def replay() -> None:
        _start, *ends = made
        queued.append(sum(hasattr(end, "at") and not end.ended for end in ends))

    card.run([(lane, [replay] * 8)])

    assert queued == [0, 1, 2, 2, 2, 2, 2, 2]


def test_kernels_of_one_lane_may_go_first(card: CudaCard, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Stream] = []
    monkeypatch.setattr(
        torch.cuda, "Stream", lambda device, priority: made.append(Stream(priority=priority)) or made[-1]
    )

    card.whole()
    card.whole(first=True)

    assert [stream.priority for stream in made] == [0, PRIORITY]


def test_lanes_share_no_arrival_counters(card: CudaCard) -> None:
    found = []
    for lane in (card.whole(), card.whole()):
        lane.capture(lambda: found.append(arrival_counters(torch.device("cpu"), 8).data_ptr()))

    assert len(found) == 2 * 3, "two runs to warm up, and the recorded one"
    assert len(set(found)) == 2
