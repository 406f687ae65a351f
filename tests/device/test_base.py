"""Behaviour that all devices share."""

import functools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from photonlite.device.base import Device, Event, Stream
from photonlite.device.cpu import CpuDevice
from photonlite.device.cuda import CudaDevice
from tests.device.simulated import SimulatedDevice
from tests.guard import GUARD

NEEDS_CARD = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
)
STREAMS = ("compute", "upload", "download")
# Enough seeds to draw each temper.
SEEDS = range(16)

Open = Callable[[], Device]
DEVICES = [
    pytest.param(CpuDevice, id="cpu"),
    *(pytest.param(functools.partial(SimulatedDevice, seed), id=f"simulated-{seed}") for seed in SEEDS),
    pytest.param(lambda: CudaDevice(torch.device("cuda", 0)), id="cuda", marks=NEEDS_CARD),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = request.param()
    yield opened
    opened.close()


@pytest.fixture
def hold(device: Device) -> Iterator[Callable[[Stream], Callable[[], None]]]:
    """Block a CPU stream until the returned function is called; the seed decides when a simulated one is late."""
    gates: list[threading.Event] = []

    def hold_stream(stream: Stream) -> Callable[[], None]:
        gate = threading.Event()
        gates.append(gate)
        if isinstance(device, CpuDevice):
            stream.run(lambda: _pass(gate))
        return gate.set

    yield hold_stream
    for gate in gates:
        gate.set()


def _pass(gate: threading.Event) -> None:
    assert gate.wait(GUARD)


def test_work_on_one_stream_runs_in_order(device: Device) -> None:
    log: list[int] = []
    event = device.event()

    for number in range(50):
        device.compute.run(functools.partial(log.append, number))
    device.compute.record(event)
    event.wait()

    assert log == list(range(50))
    assert event.done


def test_a_stream_waits_for_the_mark_of_another(device: Device, hold: Callable[[Stream], Callable[[], None]]) -> None:
    log: list[str] = []
    uploaded, computed = device.event(), device.event()

    release = hold(device.upload)
    device.upload.run(lambda: log.append("upload"))
    device.upload.record(uploaded)
    device.compute.wait(uploaded)
    device.compute.run(lambda: log.append("compute"))
    device.compute.record(computed)
    release()
    computed.wait()

    assert log == ["upload", "compute"]


def test_a_wait_refers_to_the_mark_at_the_time_of_the_call(
    device: Device, hold: Callable[[Stream], Callable[[], None]]
) -> None:
    log: list[str] = []
    event, seen = device.event(), device.event()

    release_first = hold(device.compute)
    device.compute.run(lambda: log.append("first"))
    device.compute.record(event)
    device.upload.wait(event)
    device.upload.run(lambda: log.append("upload"))
    device.upload.record(seen)
    # If the upload waited for this mark, `seen.wait` would block forever on the CPU.
    hold(device.compute)
    device.compute.record(event)
    release_first()
    seen.wait()

    assert log == ["first", "upload"]


def test_an_unrecorded_event_is_done(device: Device) -> None:
    log: list[str] = []
    unused, used = device.event(), device.event()

    unused.wait()
    device.compute.wait(unused)
    device.compute.run(lambda: log.append("work"))
    device.compute.record(used)
    used.wait()

    assert unused.done
    assert log == ["work"]


def test_recording_again_makes_the_host_wait_again(device: Device) -> None:
    log: list[int] = []
    event = device.event()

    for number in range(3):
        device.compute.run(functools.partial(log.append, number))
        device.compute.record(event)
        event.wait()

        assert log == list(range(number + 1))


def test_times_do_not_go_back_along_a_stream(device: Device) -> None:
    events = [device.event() for _ in range(5)]

    for event in events:
        device.compute.run(lambda: None)
        device.compute.record(event)
    events[-1].wait()
    times = [device.time_of(event) for event in events]

    assert times == sorted(times)
    # CUDA measures float32 milliseconds from a base.
    assert device.elapsed(events[0], events[-1]) == pytest.approx(times[-1] - times[0], abs=1e-4)


def test_a_wait_does_not_move_the_mark(device: Device) -> None:
    first, second, last = device.event(), device.event(), device.event()

    device.compute.record(first)
    device.compute.record(second)
    device.compute.wait(first)
    device.upload.wait(first)
    device.compute.record(last)
    last.wait()

    assert device.time_of(first) <= device.time_of(second) <= device.time_of(last)


def test_an_event_has_no_time_before_it_is_recorded(device: Device) -> None:
    with pytest.raises(RuntimeError, match="not recorded"):
        device.time_of(device.event())


def test_host_arrays_are_zeros_that_can_be_written(device: Device) -> None:
    for dtype in (np.int32, np.float32, np.uint8, np.int64):
        array = device.host_array((3, 2), dtype)

        assert array.dtype == dtype
        assert array.tolist() == [[0, 0]] * 3
        array[1:] = 7
        assert array.sum() == 28


def test_close_runs_all_work_and_refuses_more(device: Device) -> None:
    log: list[int] = []
    event = device.event()
    for number in range(20):
        for name in STREAMS:
            getattr(device, name).run(functools.partial(log.append, number))
    device.download.record(event)

    device.close()
    device.close()

    assert sorted(log) == sorted([*range(20)] * 3)
    assert event.done
    for give in (lambda: device.compute.run(lambda: log.append(-1)), lambda: device.compute.record(device.event())):
        with pytest.raises(RuntimeError, match="closed"):
            give()
    assert -1 not in log


@dataclass
class Program:
    """Runs a random program on a device and records which work must precede which."""

    device: Device
    log: list[int] = field(default_factory=list)
    before: list[frozenset[int]] = field(default_factory=list)
    given: dict[str, frozenset[int]] = field(default_factory=lambda: dict.fromkeys(STREAMS, frozenset()))
    marks: dict[int, frozenset[int]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.events = [self.device.event() for _ in range(3)]

    def do(self, action: str, name: str, index: int) -> None:
        stream, event = getattr(self.device, name), self.events[index]
        if action == "run":
            number = len(self.before)
            self.before.append(self.given[name])
            self.given[name] |= {number}
            stream.run(lambda: self.log.append(number))
        elif action == "record":
            self.marks[index] = self.given[name]
            stream.record(event)
        elif action == "wait":
            self.given[name] |= self.marks.get(index, frozenset())
            stream.wait(event)
        else:
            event.wait()
            assert event.done

    def check(self) -> None:
        for index, event in enumerate(self.events):
            if event.done:
                assert self.marks.get(index, frozenset()) <= set(self.log)

    def check_order(self) -> None:
        assert sorted(self.log) == list(range(len(self.before)))
        for place, number in enumerate(self.log):
            assert self.before[number] <= set(self.log[:place])


ACTIONS = st.tuples(
    st.sampled_from(["run", "run", "record", "wait", "host"]), st.sampled_from(STREAMS), st.integers(0, 2)
)


@pytest.mark.long
@settings(max_examples=200)
@given(actions=st.lists(ACTIONS, max_size=60), seed=st.one_of(st.none(), st.integers(0, 2**32)))
def test_random_programs_run_in_a_legal_order(actions: list[tuple[str, str, int]], seed: int | None) -> None:
    program = Program(CpuDevice() if seed is None else SimulatedDevice(random.Random(seed)))

    for action in actions:
        program.do(*action)
        program.check()
    program.device.close()

    program.check_order()
