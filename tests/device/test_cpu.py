import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import photonlite
from photonlite.device import cpu
from photonlite.device.cores import SpareCores
from photonlite.device.cpu import WORTH, CpuDevice, in_passing, set_threads, spread
from tests.device.machine import Machine
from tests.guard import GUARD

ROOT = Path(__file__).parents[2]
Threads = Callable[[int], contextlib.AbstractContextManager[None]]


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    opened = CpuDevice()
    yield opened
    opened.close()


@pytest.fixture
def three_threads() -> Iterator[None]:
    """PyTorch's number of threads is three, on any machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


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


def test_all_streams_work_at_the_same_time(device: CpuDevice) -> None:
    meeting = threading.Barrier(5)
    events = []

    for stream in (device.compute, device.upload, device.download, device.swap, device.encode):
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
        waiter.join(GUARD)

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


@pytest.mark.usefixtures("three_threads")  # before the device is opened
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
    assert ran.wait(GUARD)

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

    assert len(threads) == 5
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
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=GUARD)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n" * 2, "")


def _collect_until_ended(thread: threading.Thread) -> None:
    for _ in range(600):
        gc.collect()
        thread.join(0.1)
        if not thread.is_alive():
            return
    raise AssertionError(f"{thread.name} is still there")


def _pass(gate: threading.Event) -> None:
    assert gate.wait(GUARD)


def _meet(meeting: threading.Barrier) -> None:
    meeting.wait(GUARD)


def elsewhere(work: Callable[[], Any]) -> Any:
    """Run work on a new thread and return its result."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def within(threads: Threads, work: int = WORTH) -> int:
    """Threads that PyTorch uses in a block, on a thread of its own."""

    def block() -> int:
        with threads(work):
            return torch.get_num_threads()

    found: int = elsewhere(block)
    return found


@pytest.mark.parametrize(
    ("most", "others", "count"),
    [(4, 0, 4), (4, 1, 3), (4, 0.2, 4), (4, 0.5, 3), (4, 4, 1), (4, 9, 1), (2, 1, 2), (1, 0, 1)],
)
def test_a_large_operation_gets_the_spare_cores_and_at_least_one(most: int, others: float, count: int) -> None:
    machine = Machine(4)
    machine.run(1.0, others=others)

    assert within(partial(spread, most=most, spare=machine.spare, wide=set())) == count


def test_thread_count_recovers_when_other_programs_end() -> None:
    machine = Machine(2)
    threads = partial(spread, most=2, spare=machine.spare, wide=set())

    counts = [within(threads)]
    for others in (1, 1, 0):
        machine.run(0.3, own=1, others=others)
        counts.append(within(threads))

    assert counts == [2, 1, 1, 2]


def test_a_small_operation_gets_one_thread() -> None:
    assert within(partial(spread, most=4, spare=Machine(4).spare, wide=set()), WORTH - 1) == 1


def test_models_that_compute_at_the_same_time_share_the_cores() -> None:
    machine, wide = Machine(4), set[object]()
    machine.run(1.0)
    one, other = (partial(spread, most=4, spare=machine.spare, wide=wide) for _ in range(2))

    def both() -> int:
        with one(WORTH):
            return within(other)

    assert elsewhere(both) == 2
    assert within(other) == 4  # the first has given its cores back


def test_small_operations_take_no_share_and_a_failure_gives_its_share_back() -> None:
    machine, wide = Machine(4), set[object]()
    machine.run(1.0)
    threads = partial(spread, most=4, spare=machine.spare, wide=wide)

    def small() -> int:
        with threads(1):
            return within(threads)

    def fail() -> None:
        with pytest.raises(KeyError), threads(WORTH):
            raise KeyError

    assert elsewhere(small) == 4
    elsewhere(fail)
    assert wide == set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_shares_its_cores_with_no_block_of_its_parent() -> None:
    with spread(WORTH, most=2):
        child = os.fork()
        if child == 0:
            os._exit(len(cpu._wide))

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_one_time_work_runs_on_a_thread_that_ends_with_it() -> None:
    before = set(threading.enumerate())

    assert in_passing(threading.get_ident) != threading.get_ident()
    assert set(threading.enumerate()) <= before


def test_one_time_work_raises_in_the_calling_thread() -> None:
    def fail() -> None:
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        in_passing(fail)


def test_an_interrupt_ends_one_time_work_before_it_is_raised() -> None:
    ended = threading.Event()
    until = time.monotonic() + GUARD

    def load() -> None:
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while time.monotonic() < until:
                time.sleep(0.001)
        finally:
            ended.set()

    # A shell's background jobs, of which a test run may be one, ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_passing(load)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()
    assert time.monotonic() < until


def test_an_interrupt_may_come_as_soon_as_one_time_work_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class Begun(cpu.Future[Any]):
        """Waits, once it is known which thread is to be ended, until that is ended."""

        def set_result(self, result: Any) -> None:
            super().set_result(result)
            while not asked.wait(0.001):
                pass
            until = time.monotonic() + GUARD
            while time.monotonic() < until:
                time.sleep(0.001)

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    asked, wait = threading.Event(), cpu.wait

    def wait_for(futures: list[cpu.Future[Any]]) -> None:
        asked.set()
        assert wait(futures, GUARD).not_done == set()

    monkeypatch.setattr(cpu, "Future", Begun)
    monkeypatch.setattr(cpu, "wait", wait_for)
    monkeypatch.setattr(cpu.threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        in_passing(lambda: None)


def test_only_the_calling_thread_gets_another_number() -> None:
    before = torch.get_num_threads()

    def change() -> int:
        set_threads(before + 1)
        return torch.get_num_threads()

    assert elsewhere(change) == before + 1
    assert torch.get_num_threads() == before
    assert elsewhere(torch.get_num_threads) == before


def test_operations_use_the_number_of_threads() -> None:
    def running() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    def after_operations(count: int) -> set[str]:
        set_threads(count)
        torch.randn(400, 400) @ torch.randn(400, 400)
        torch.nn.functional.gelu(torch.randn(1_000_000))
        return running()

    def grown() -> tuple[int, int]:
        before = running()  # threads of earlier tests may end meanwhile
        return len(after_operations(1) - before), len(after_operations(3) - before)

    if not Path("/proc/self/task").is_dir():
        pytest.skip("threads are counted in /proc")
    assert elsewhere(grown) == (0, 2)


@pytest.fixture
def set_by(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """Numbers that threads of each name have set; all cores count as spare."""
    assert callable(photonlite.load)  # imported before `set_threads` is replaced
    found: dict[str, set[int]] = {}
    original = cpu.set_threads

    def remember(count: int) -> None:
        found.setdefault(threading.current_thread().name, set()).add(count)
        original(count)

    monkeypatch.setattr(cpu, "set_threads", remember)
    monkeypatch.setattr(cpu, "_spare", SpareCores(lambda: None))
    return found


@pytest.mark.parametrize("most", [1, 3])
def test_an_engine_spreads_images_and_prompts_but_not_decode_steps(set_by: dict[str, set[int]], most: int) -> None:
    before = torch.get_num_threads()

    with photonlite.load(device="cpu", engine={"cpu_threads": most}) as model:
        model.detect(ROOT / "assets" / "desk.png", "banana")

    assert set_by["photonlite-compute"] == {1, most}
    assert set_by["photonlite-upload"] == set_by["photonlite-download"] == {1}
    assert len(set_by) == 5  # and the thread that loads
    assert torch.get_num_threads() == before


USER = """
import torch
torch.set_num_threads(2)
before = torch.rand(512, 512) @ torch.rand(512, 512)
import photonlite
from photonlite.device import cpu

class Spare:
    def count(self): return float("inf")

cpu._spare, original, found = Spare(), cpu.set_threads, set()
cpu.set_threads = lambda count: (found.add(count), original(count))
with photonlite.load(device="cpu", engine={"cpu_threads": 3}) as model:
    model.detect("assets/desk.png", "banana")
assert torch.get_num_threads() == 2
print(sorted(found))
"""


@pytest.mark.long
def test_thread_counts_set_before_import_are_kept() -> None:
    ended = subprocess.run([sys.executable, "-c", USER], cwd=ROOT, capture_output=True, text=True, timeout=GUARD)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[0] in ("[1, 2, 3]", "[1, 3]")
