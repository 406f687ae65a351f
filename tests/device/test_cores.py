import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from photonlite.device import cores
from photonlite.device.cores import idle_seconds, usable_cores
from tests.device.machine import Machine


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


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound here")
def test_cores_outside_the_affinity_mask_are_not_counted() -> None:
    first = min(os.sched_getaffinity(0))

    def bound() -> tuple[int, float | None]:
        os.sched_setaffinity(0, {first})  # of this thread
        return usable_cores(Path("absent")), idle_seconds()

    known = cores.psutil.cpu_times(percpu=True)
    with ThreadPoolExecutor(1) as pool:
        usable, idle = pool.submit(bound).result()

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
