import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from photonlite.device.cpu import CpuDevice

ROOT = Path(__file__).parents[2]
TIMEOUT = 60.0


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    opened = CpuDevice()
    yield opened
    opened.close()


def fail() -> None:
    raise ValueError("a bug")


def test_run_returns_before_the_work_is_done(device: CpuDevice) -> None:
    gate, event = threading.Event(), device.event()

    device.compute.run(lambda: _pass(gate))
    device.compute.record(event)

    assert not event.done
    with pytest.raises(RuntimeError, match="has not passed"):
        device.time_of(event)
    gate.set()
    event.wait()
    assert event.done


def test_all_three_streams_work_at_the_same_time(device: CpuDevice) -> None:
    meeting = threading.Barrier(3)
    events = []

    for stream in (device.compute, device.upload, device.download):
        stream.run(lambda: _meet(meeting))
        events.append(device.event())
        stream.record(events[-1])
    for event in events:
        event.wait()

    assert not meeting.broken


def test_recording_again_affects_later_waits_only(device: CpuDevice) -> None:
    gate, event, early = threading.Event(), device.event(), device.event()
    device.compute.record(event)
    device.upload.wait(event)
    device.compute.run(lambda: _pass(gate))
    device.compute.record(event)
    device.download.wait(event)
    log: list[str] = []
    late = device.event()

    device.upload.run(lambda: log.append("early"))
    device.upload.record(early)
    device.download.run(lambda: log.append("late"))
    device.download.record(late)
    early.wait()

    assert not event.done
    assert not late.done
    assert log == ["early"]
    gate.set()
    late.wait()
    assert log == ["early", "late"]


def test_many_threads_wait_for_one_mark(device: CpuDevice) -> None:
    gate, event = threading.Event(), device.event()
    device.compute.run(lambda: _pass(gate))
    device.compute.record(event)
    waiters = [threading.Thread(target=event.wait, daemon=True) for _ in range(4)]

    for waiter in waiters:
        waiter.start()
    gate.set()
    for waiter in waiters:
        waiter.join(TIMEOUT)

    assert not any(waiter.is_alive() for waiter in waiters)


def test_work_runs_in_inference_mode_on_the_stream_thread(device: CpuDevice) -> None:
    seen: list[tuple[bool, str]] = []
    event = device.event()

    for _ in range(2):
        device.compute.run(lambda: seen.append((torch.is_inference_mode_enabled(), threading.current_thread().name)))
    device.compute.record(event)
    event.wait()

    assert seen == [(True, "photonlite-compute")] * 2
    assert not torch.is_inference_mode_enabled()


def test_copy_streams_use_one_thread(device: CpuDevice) -> None:
    seen: list[int] = []
    event = device.event()

    for stream in (device.upload, device.download):
        stream.run(lambda: seen.append(torch.get_num_threads()))
        stream.record(event)
        event.wait()

    assert seen == [1, 1]


def test_times_use_the_host_clock(device: CpuDevice) -> None:
    event = device.event()

    before = time.perf_counter()
    device.compute.record(event)
    event.wait()

    assert before <= device.time_of(event) <= time.perf_counter()


def test_an_error_of_work_is_raised_once_by_wait(device: CpuDevice) -> None:
    log: list[str] = []
    event = device.event()
    device.compute.run(fail)
    device.compute.record(event)

    with pytest.raises(RuntimeError, match="raised ValueError") as caught:
        event.wait()

    assert isinstance(caught.value.__cause__, ValueError)
    device.compute.run(lambda: log.append("still works"))
    device.compute.record(event)
    event.wait()
    assert log == ["still works"]


def test_an_error_of_work_is_raised_by_the_next_run(device: CpuDevice) -> None:
    gate, ran = threading.Event(), threading.Event()
    device.upload.run(lambda: _pass(gate))
    device.upload.run(fail)
    device.upload.run(ran.set)
    gate.set()
    assert ran.wait(TIMEOUT)

    with pytest.raises(RuntimeError, match="raised ValueError"):
        device.compute.run(lambda: None)


def test_an_unreported_error_is_raised_by_close() -> None:
    device = CpuDevice()
    device.download.run(fail)

    with pytest.raises(RuntimeError, match="raised ValueError"):
        device.close()

    device.close()


def test_closing_ends_the_threads() -> None:
    others = set(threading.enumerate())
    device = CpuDevice()
    threads = set(threading.enumerate()) - others

    device.close()

    assert len(threads) == 3
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.long
def test_a_device_that_is_dropped_does_its_work_and_ends_its_threads() -> None:
    class Engine:
        def __init__(self) -> None:
            self.device = CpuDevice()
            self.device.compute.run(self.work)

        def work(self) -> None:
            _pass(gate)
            log.append("work")

    gate = threading.Event()
    log: list[str] = []
    others = set(threading.enumerate())
    engine = Engine()
    alive = weakref.ref(engine.device)
    threads = set(threading.enumerate()) - others

    gate.set()
    del engine
    for thread in threads:
        _collect_until_ended(thread)

    assert log == ["work"]
    assert alive() is None


@pytest.mark.long
def test_a_program_that_forgets_to_close_ends_cleanly_after_the_work() -> None:
    script = """
import torch
from photonlite.device.cpu import CpuDevice

def work():
    for _ in range(200):
        torch.mm(matrix, matrix)

matrix = torch.zeros(256, 256)
device = CpuDevice()
for stream in (device.compute, device.upload):
    stream.run(work)
    stream.run(lambda: print("done\\n", end="", flush=True))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n" * 2, "")


def _collect_until_ended(thread: threading.Thread) -> None:
    for _ in range(600):
        gc.collect()
        thread.join(0.1)
        if not thread.is_alive():
            return
    raise AssertionError(f"{thread.name} is still there")


def _pass(gate: threading.Event) -> None:
    assert gate.wait(TIMEOUT)


def _meet(meeting: threading.Barrier) -> None:
    meeting.wait(TIMEOUT)
