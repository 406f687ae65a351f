import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO
from unittest.mock import Mock

import pytest
import torch

from bench.overlap import counters
from bench.overlap.counters import COUNTERS, Kernel, read_counters, rows_of
from photonlite.tuning.lanes import CudaCard

HEAD = ["ID", "Process ID", "Kernel Name", "Stream", "gpu__time_duration.sum"]
HEAD += [f"{counter}.avg.pct_of_peak_sustained_elapsed" for counter in COUNTERS.values()]
UNITS = ["", "", "", "", "ns", *["%"] * len(COUNTERS)]
NOTES = '==PROF== Connected to process 7 (/usr/bin/python)\n==PROF== Profiling "gemm": 0%....50%....100% - 3 passes\n'


def written(*kernels: list[str]) -> str:
    """What the profiler writes: every cell in quotes, and further notes."""
    return (
        NOTES
        + "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in (HEAD, UNITS, *kernels))
        + "==WARNING== late\n"
    )


ONE = ["0", "7", "gemm", "13", "1,500", "90.5", "40", "10", "20", "5"]
TWO = ["1", "7", "attend", "13", "500", "10.5", "20", "30", "60", "45"]


def test_kernels_are_read_from_what_the_profiler_writes() -> None:
    assert read_counters(written(ONE, TWO)) == [
        Kernel("gemm", 1500.0, (90.5, 40.0, 10.0, 20.0, 5.0)),
        Kernel("attend", 500.0, (10.5, 20.0, 30.0, 60.0, 45.0)),
    ]


@pytest.mark.parametrize("cell", ["n/a", "nan", ""])
def test_a_counter_that_the_card_lacks_is_named(cell: str) -> None:
    with pytest.raises(ValueError, match=r"gave '.*' for lts__throughput.avg.* of gemm"):
        read_counters(written([*ONE[:6], cell, *ONE[7:]]))


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


PROFILER = """
import json, pathlib, shutil, sys
here, words = pathlib.Path(__file__).parent, sys.argv[1:]
with (here / "asked.jsonl").open("a") as file:
    print(json.dumps(words), file=file)
if words[words.index("--run") + 1] == "encoding":
    sys.exit("ERR_NVGPUCTRPERM")
shutil.copy(here / "written.csv", words[words.index("--log-file") + 1])
"""
"""A profiler that has the right for steps alone."""


def test_every_work_is_measured_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!{sys.executable}\n{PROFILER}", encoding="utf-8")
    ncu.chmod(0o755)
    (tmp_path / "written.csv").write_text(written(ONE, TWO), encoding="utf-8")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(counters, "describe", lambda device: f"card {device}")

    assert counters.main(["--streams", "8", "--splits", "64", "96"]) == 1

    asked = [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text(encoding="utf-8").splitlines()]
    own = [words[words.index("--run") :] for words in asked]
    assert [(words[1], words[3], words[5]) for words in own] == [
        (what, sms, "8") for sms in ("0", "64", "96") for what in ("step", "encoding")
    ]
    for words in asked:
        given = dict(itertools.pairwise(words))
        assert given["--profile-from-start"] == "off"
        assert (given["--page"], given["--print-units"]) == ("raw", "base")
        assert set(given["--metrics"].split(",")) == set(HEAD[4:])
    shown = capsys.readouterr().out
    assert shown.count("step of 8, in parts") == 2
    assert shown.count("not measured: the profiler ended with 1") == 3
    assert "ERR_NVGPUCTRPERM" in shown


def test_a_profiler_that_takes_too_long_is_killed_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = str(tmp_path / "alive")
    os.mkfifo(fifo)
    child = f"import time; file = open({fifo!r}, 'w'); file.write('x'); file.flush(); time.sleep(600)"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    opened: list[TextIO] = []
    waits = subprocess.Popen.communicate

    def communicate(self: "subprocess.Popen[str]", timeout: float | None = None) -> tuple[str, str]:
        if timeout is None:
            return waits(self)
        opened.append(open(fifo, encoding="utf-8"))  # noqa: SIM115
        assert opened[0].read(1) == "x"
        raise subprocess.TimeoutExpired("ncu", timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(subprocess.TimeoutExpired):
        counters._run([sys.executable, "-c", starts])

    assert opened[0].read() == "", "nobody has the other end"
    opened[0].close()


@pytest.mark.parametrize("arguments", [["--splits", "64", "0"], ["--streams", "0"]])
def test_impossible_numbers_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        counters.main(arguments)
    assert "numbers from 1 on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("profiler", "card", "says"),
    [(None, True, "install Nsight Compute"), ("/bin/ncu", False, "there is no CUDA device")],
)
def test_without_profiler_or_card_it_says_what_is_missing(
    profiler: str | None, card: bool, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(counters.shutil, "which", lambda _: profiler)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: card)
    with pytest.raises(SystemExit):
        counters.main([])
    assert says in capsys.readouterr().err


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
