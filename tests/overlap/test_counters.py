import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from bench.overlap import counters
from bench.overlap.counters import COUNTERS, Kernel, read_counters, rows_of, works_of
from photonlite.tuning.lanes import CudaCard

HEAD = ["ID", "Process ID", "Kernel Name", "Stream", "gpu__time_duration.sum"]
HEAD += [f"{counter}.avg.pct_of_peak_sustained_elapsed" for counter in COUNTERS.values()]
UNITS = ["", "", "", "", "ns", *["%"] * len(COUNTERS)]
NOTES = '==PROF== Connected to process 7 (/usr/bin/python)\n==PROF== Profiling "gemm": 0%....50%....100% - 3 passes\n'


def written(*kernels: list[str]) -> str:
    """What the profiler writes: every cell in quotes, names may hold commas."""
    return NOTES + "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in (HEAD, UNITS, *kernels))


ONE = ["0", "7", "void gemm<half, 64>(float *, int)", "13", "1,500", "90.5", "40", "10", "20", "5"]
TWO = ["1", "7", "attend", "13", "500", "10.5", "20", "30", "60", "45"]


def test_kernels_are_read_from_what_the_profiler_writes() -> None:
    assert read_counters(written(ONE, TWO)) == [
        Kernel("gemm", 1500.0, (90.5, 40.0, 10.0, 20.0, 5.0)),
        Kernel("attend", 500.0, (10.5, 20.0, 30.0, 60.0, 45.0)),
    ]


@pytest.mark.parametrize("text", ["", NOTES, "==ERROR== no permission\n", written()])
def test_a_profile_without_kernels_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="measured no kernel"):
        read_counters(text)


def test_shares_are_means_by_time_and_the_longest_kinds_come_first() -> None:
    kernels = [*read_counters(written(TWO, ONE)), Kernel("gemm", 2_000_000.0, (50.0,) * 5)]
    rows = rows_of(kernels)

    assert [row[:4] for row in rows] == [
        ["all", "3", "2.002", "100%"], ["gemm", "2", "2.002", "100%"], ["attend", "1", "0.001", "0%"],
    ]  # fmt: skip
    assert rows[2][4:] == ["10", "20", "30", "60", "45"]
    assert rows_of(read_counters(written(ONE, TWO)))[0][4:] == ["70", "35", "15", "30", "15"]


def test_only_the_kinds_that_take_longest_are_listed() -> None:
    rows = rows_of([Kernel(str(time), float(time), (1.0,) * 5) for time in range(1, 10)])
    assert [row[0] for row in rows] == ["all", "9", "8", "7", "6", "5"]


def test_every_work_is_measured_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def ncu(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[command.index("--run") :])
        if command[command.index("--run") + 1] == "encoding":
            return subprocess.CompletedProcess(command, 9, "", "ERR_NVGPUCTRPERM")
        Path(command[command.index("--log-file") + 1]).write_text(written(ONE, TWO), encoding="utf-8")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", ncu)
    monkeypatch.setattr(counters.shutil, "which", lambda _: "/usr/bin/ncu")
    monkeypatch.setattr(counters, "describe", lambda device: f"card {device}")

    assert counters.main(["--streams", "8", "--splits", "64", "96"]) == 1

    assert [(words[1], words[3]) for words in asked] == [(what, str(sms)) for what, sms in works_of([64, 96])]
    assert {words[5] for words in asked} == {"8"}
    shown = capsys.readouterr().out
    assert shown.count("step of 8, in parts") == 2
    assert shown.count("not measured: the profiler ended with 9") == 3
    assert "ERR_NVGPUCTRPERM" in shown


def test_without_the_profiler_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(counters.shutil, "which", lambda _: None)
    with pytest.raises(SystemExit):
        counters.main([])
    assert "install Nsight Compute" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the profiler is CUDA's")
@pytest.mark.parametrize("sms", [0, 64])
@pytest.mark.parametrize("what", ["step", "encoding"])
def test_a_work_runs_between_the_marks(what: str, sms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[str] = []
    cudart = Mock(cudaProfilerStart=lambda: marks.append("start"), cudaProfilerStop=lambda: marks.append("stop"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    play = CudaCard.run
    monkeypatch.setattr(CudaCard, "run", lambda *given: (marks.append("run"), play(*given))[1])

    counters.run(what, sms, 2, tiny=True)

    assert marks == ["start", "run", "stop"]
