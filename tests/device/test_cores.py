import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import photonlite
from photonlite.device import cores
from photonlite.device.cores import (
    WORTH,
    ComputeThreads,
    SpareCores,
    idle_seconds,
    in_passing,
    set_threads,
    usable_cores,
)

ROOT = Path(__file__).parents[2]


class Machine:
    """Cores with a clock that the test advances."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.clock = self.own = 0.0
        self.idle: float | None = 0.0
        self.spare = SpareCores(lambda: self.idle, lambda: self.own, lambda: self.clock)

    def run(self, seconds: float, *, own: float = 0.0, others: float = 0.0) -> None:
        """Advance the clock while this process and others use so many cores."""
        self.clock += seconds
        self.own += seconds * own
        if self.idle is not None:
            self.idle += seconds * (self.count - own - others)


def elsewhere(work: Callable[[], Any]) -> Any:
    """Run work on a new thread and return its result."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def within(threads: ComputeThreads, work: int = WORTH) -> int:
    """Threads that PyTorch uses in a block, on a thread of its own."""

    def block() -> int:
        with threads.spread(work):
            return torch.get_num_threads()

    found: int = elsewhere(block)
    return found


@pytest.mark.parametrize(("own", "others", "spare"), [(0, 0, 2), (2, 0, 2), (1, 1, 1), (1.3, 0.7, 1.3)])
def test_cores_used_by_this_process_count_as_spare(own: float, others: float, spare: float) -> None:
    machine = Machine(2)

    machine.run(0.5, own=own, others=others)

    assert machine.spare.count() == pytest.approx(spare)


def test_a_measurement_holds_until_a_tenth_of_a_second_has_passed() -> None:
    machine = Machine(2)
    machine.run(0.2, others=1)
    machine.spare.count()

    machine.run(0.05)
    assert machine.spare.count() == pytest.approx(1)
    machine.run(0.1)
    assert machine.spare.count() == pytest.approx(2)


def test_all_cores_are_spare_where_idle_time_is_unknown() -> None:
    machine = Machine(2)
    machine.idle = None

    machine.run(1.0, others=2)

    assert machine.spare.count() == float("inf")


@pytest.mark.parametrize(
    ("most", "others", "count"),
    [(4, 0, 4), (4, 1, 3), (4, 0.2, 4), (4, 0.5, 3), (4, 4, 1), (4, 9, 1), (2, 1, 2), (1, 0, 1)],
)
def test_a_large_operation_gets_the_spare_cores_and_at_least_one(most: int, others: float, count: int) -> None:
    machine = Machine(4)
    machine.run(1.0, others=others)

    assert within(ComputeThreads(most, machine.spare, set())) == count


def test_thread_count_recovers_when_other_programs_end() -> None:
    machine = Machine(2)
    threads = ComputeThreads(2, machine.spare, set())

    counts = [within(threads)]
    for others in (1, 1, 0):
        machine.run(0.3, own=1, others=others)
        counts.append(within(threads))

    assert counts == [2, 1, 1, 2]


def test_a_small_operation_gets_one_thread() -> None:
    assert within(ComputeThreads(4, Machine(4).spare, set()), WORTH - 1) == 1


def test_models_that_compute_at_the_same_time_share_the_cores() -> None:
    machine, wide = Machine(4), set[object]()
    machine.run(1.0)
    one, other = (ComputeThreads(4, machine.spare, wide) for _ in range(2))

    def both() -> int:
        with one.spread(WORTH):
            return within(other)

    assert elsewhere(both) == 2
    assert within(other) == 4  # the first has given its cores back


def test_small_operations_take_no_share_and_a_failure_gives_its_share_back() -> None:
    machine, wide = Machine(4), set[object]()
    machine.run(1.0)
    threads = ComputeThreads(4, machine.spare, wide)

    def small() -> int:
        with threads.spread(1):
            return within(threads)

    def fail() -> None:
        with pytest.raises(KeyError), threads.spread(WORTH):
            raise KeyError

    assert elsewhere(small) == 4
    elsewhere(fail)
    assert wide == set()


def test_one_time_work_runs_on_a_thread_that_ends_with_it() -> None:
    before = threading.active_count()

    assert in_passing(threading.get_ident) != threading.get_ident()
    assert threading.active_count() == before


def test_one_time_work_raises_in_the_calling_thread() -> None:
    def fail() -> None:
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        in_passing(fail)


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


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound here")
def test_cores_outside_the_affinity_mask_are_not_counted() -> None:
    first = min(os.sched_getaffinity(0))

    def bound() -> tuple[int, float | None]:
        os.sched_setaffinity(0, {first})  # of this thread
        return usable_cores(Path("absent")), idle_seconds()

    known = cores.psutil.cpu_times(percpu=True)
    usable, idle = elsewhere(bound)

    assert usable == 1
    assert idle is None or known[first].idle <= idle <= known[first].idle + known[first].iowait + 60


@pytest.mark.parametrize(("text", "expected"), [("150000 100000", 2), ("9000 100000", 1), ("max 100000", 64), ("", 64)])
def test_a_container_has_the_cores_of_its_quota(
    text: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    (tmp_path / "cpu.max").write_text(text)

    assert usable_cores(tmp_path / "cpu.max") == expected
    assert usable_cores(tmp_path / "absent") == 64


def test_idle_time_is_none_where_the_system_reports_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zeros(tuple[float, ...]):
        idle = 0.0

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(cores, "psutil", SimpleNamespace(cpu_times=lambda percpu: [Zeros((0.0, 0.0))] * 2))
    assert idle_seconds() is None

    monkeypatch.setattr(cores, "psutil", SimpleNamespace(cpu_times=lambda percpu: [Zeros((0.0, 0.0))]))
    assert idle_seconds() is None


@pytest.fixture
def set_by(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """Numbers that threads of each name have set; all cores count as spare."""
    assert callable(photonlite.load)  # imported before `set_threads` is replaced
    found: dict[str, set[int]] = {}
    original = cores.set_threads

    def remember(count: int) -> None:
        found.setdefault(threading.current_thread().name, set()).add(count)
        original(count)

    monkeypatch.setattr(cores, "set_threads", remember)
    monkeypatch.setattr(cores, "_spare", SpareCores(lambda: None))
    return found


@pytest.mark.parametrize("most", [1, 3])
def test_an_engine_spreads_images_and_prompts_but_not_decode_steps(set_by: dict[str, set[int]], most: int) -> None:
    before = torch.get_num_threads()

    with photonlite.load(device="cpu", engine={"cpu_threads": most}) as model:
        model.detect(ROOT / "assets" / "desk.png", "banana")

    assert set_by["photonlite-compute"] == {1, most}
    assert set_by.keys() == {"photonlite-compute", "photonlite-start"}
    assert torch.get_num_threads() == before


USER = """
import torch
torch.set_num_threads(2)
before = torch.rand(512, 512) @ torch.rand(512, 512)
import photonlite
from photonlite.device import cores

class Spare:
    def count(self): return float("inf")

cores._spare, original, found = Spare(), cores.set_threads, set()
cores.set_threads = lambda count: (found.add(count), original(count))
with photonlite.load(device="cpu", engine={"cpu_threads": 3}) as model:
    model.detect("assets/desk.png", "banana")
assert torch.get_num_threads() == 2
print(sorted(found))
"""


@pytest.mark.long
def test_thread_counts_set_before_import_are_kept() -> None:
    ended = subprocess.run([sys.executable, "-c", USER], cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[0] in ("[1, 2, 3]", "[1, 3]")
