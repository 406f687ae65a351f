import functools
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.device.simulated import Deadlock, SimulatedDevice

SEEDS = range(60)


def run_ticks(device: SimulatedDevice) -> list[tuple[str, float]]:
    """Three streams with chains of their own and one link; returns what ran, and when."""
    log: list[tuple[str, float]] = []
    event = device.event()
    for number in range(5):
        device.upload.run(functools.partial(_note, device, log, f"upload {number}"))
        device.upload.record(event)
        device.compute.run(functools.partial(_note, device, log, f"compute {number}"))
        device.download.wait(event)
        device.download.run(functools.partial(_note, device, log, f"download {number}"))
    device.drain()
    return log


def _note(device: SimulatedDevice, log: list[tuple[str, float]], name: str) -> None:
    log.append((name, device.now))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_replays_exactly(seed: int) -> None:
    assert run_ticks(SimulatedDevice(seed)) == run_ticks(SimulatedDevice(Random(seed)))


def test_seeds_differ_in_order_and_time() -> None:
    logs = [run_ticks(SimulatedDevice(seed)) for seed in SEEDS]

    assert len({tuple(name for name, _ in log) for log in logs}) > len(SEEDS) // 3
    assert len({log[-1][1] for log in logs}) == len(SEEDS)


def test_two_independent_operations_run_in_both_orders() -> None:
    orders = set()

    for seed in SEEDS:
        device, log = SimulatedDevice(seed), []
        device.compute.run(functools.partial(log.append, "compute"))
        device.upload.run(functools.partial(log.append, "upload"))
        device.drain()
        orders.add(tuple(log))

    assert orders == {("compute", "upload"), ("upload", "compute")}


def test_seeds_cover_all_degrees_of_running_ahead() -> None:
    at_once = set()

    for seed in SEEDS:
        device, log = SimulatedDevice(seed), []
        streams = {stream.name for stream in (device.compute, device.upload, device.download)}
        # Streams that had run all their work whenever the host checked.
        prompt = set(streams)
        for number in range(60):
            for stream in (device.compute, device.upload, device.download):
                stream.run(functools.partial(log.append, (stream.name, number)))
            prompt = {name for name in prompt if (name, number) in log}
        at_once.add(frozenset(prompt))

    lagging = {frozenset(streams - {name}) for name in streams}
    assert {frozenset(), frozenset(streams), *lagging} <= at_once


def test_a_late_device_does_only_what_the_host_waits_for() -> None:
    least: set[str] = {"compute", "upload", "download"}

    for seed in SEEDS:
        device, log = SimulatedDevice(seed), []
        event = device.event()
        for stream in (device.compute, device.upload, device.download):
            stream.run(functools.partial(log.append, stream.name))
        device.upload.record(event)
        device.compute.wait(event)
        device.compute.record(event)
        event.wait()
        least &= set(log)

    assert least == {"compute", "upload"}


def test_drifting_continues_without_new_work() -> None:
    gains = set()

    for seed in SEEDS:
        device, log = SimulatedDevice(seed), []
        for number in range(20):
            device.compute.run(functools.partial(log.append, number))
        before = len(log)
        device.drift()
        gains.add(len(log) - before)

    assert 0 in gains
    assert max(gains) >= 1


@pytest.mark.parametrize("seed", range(16))
def test_the_device_is_idle_when_all_has_run_and_each_step_takes_virtual_time(seed: int) -> None:
    device, log = SimulatedDevice(seed), []
    event = device.event()
    device.compute.run(lambda: log.append("work"))
    device.compute.record(event)
    device.upload.wait(event)

    while not device.idle:
        before = device.now
        # Only a wait that is over may be left.
        if device.step():
            assert device.now > before

    assert log == ["work"]
    assert event.done
    assert not device.step()


@pytest.mark.parametrize("seed", range(16))
def test_waiting_for_a_later_mark_of_the_same_stream_is_a_deadlock(seed: int) -> None:
    device = SimulatedDevice(seed)
    own, other = device.event(), device.event()

    def work() -> None:
        # Recorded here, so that the marks exist whenever this runs.
        device.compute.record(own)
        device.upload.wait(own)
        device.upload.record(other)
        other.wait()

    def give_and_drain() -> None:
        device.compute.run(work)
        device.drain()

    with pytest.raises(Deadlock, match="work on compute waits"):
        give_and_drain()


def test_waiting_for_an_idle_device_is_a_deadlock() -> None:
    # Both are late, so that nothing runs before the host waits for it.
    late = next(seed for seed in SEEDS if not _runs_ahead(seed))
    here, there = SimulatedDevice(late), SimulatedDevice(late)
    event = there.event()
    there.compute.run(lambda: None)
    there.compute.record(event)
    here.compute.wait(event)
    here.compute.run(lambda: None)

    with pytest.raises(Deadlock, match="'compute': 2, 'upload': 0"):
        here.drain()

    assert not here.idle


def _runs_ahead(seed: int) -> bool:
    device, log = SimulatedDevice(seed), []
    for stream in (device.compute, device.upload):
        for _ in range(20):
            stream.run(functools.partial(log.append, 1))
    return bool(log)


@pytest.mark.parametrize("seed", range(16))
def test_work_may_queue_more_work(seed: int) -> None:
    device, log = SimulatedDevice(seed), []

    def work() -> None:
        device.compute.run(lambda: log.append("after"))
        device.upload.run(lambda: log.append("beside"))
        log.append("work")

    device.compute.run(work)
    device.drain()

    assert sorted(log) == ["after", "beside", "work"]
    assert log.index("work") < log.index("after")


@pytest.mark.parametrize("seed", range(16))
def test_errors_of_work_propagate_and_later_work_runs(seed: int) -> None:
    device, log = SimulatedDevice(seed), []

    def give() -> None:
        device.compute.run(lambda: 1 // 0)
        device.drain()

    with pytest.raises(ZeroDivisionError):
        give()
    device.compute.run(lambda: log.append("later"))
    device.drain()

    assert log == ["later"]


def test_the_simulation_itself_needs_no_torch() -> None:
    script = "import sys, tests.device.simulated; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])
