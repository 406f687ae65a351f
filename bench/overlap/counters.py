"""What bounds decode steps and encodings, by the profiler's counters: `python -m bench.overlap.counters --streams 32`.

Nsight Compute (`ncu`, on the PATH, with the right to read counters) measures every kernel of one decode step and of one
encoding, on the whole card and in parts of it, each in a process of its own. It runs each kernel several times and
alone: the figures show neither what the two take from one another nor their times side by side. Caches keep what the
run before has left, as from one kernel to the next. In a part, memory and L2 are in per cent of the whole card's
peak, L1, SMs and instructions in per cent of the part's own, as figures of an H200 say: there the former fall as work
takes longer, and the latter do not.
"""

import argparse
import csv
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.bubble.report import table
from bench.gpu.machine import describe
from bench.overlap.spike import Subject
from bench.shapes import SHAPES
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.tuning.lanes import CudaCard

_TIME = "gpu__time_duration.sum"
COUNTERS = {
    "memory": "gpu__dram_throughput",
    "L2": "lts__throughput",
    "L1": "l1tex__throughput",
    "SMs": "sm__throughput",
    "instructions": "sm__inst_issued",
}
"""Columns, and what they show the mean of, in per cent of the most that is possible."""
_SHARE = ".avg.pct_of_peak_sustained_elapsed"
_LISTED = 5  # kinds of kernels in a table
_LIMIT_S = 240.0  # of one process


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: nanoseconds that it took alone, and `COUNTERS` in per cent."""

    name: str
    time: float
    shares: tuple[float, ...]


def read_counters(text: str) -> list[Kernel]:
    """Read what `ncu --csv --page raw` wrote: notes, then names, units and a line for each kernel.

    Raises:
        ValueError: It holds no kernels.
    """
    _units, *lines = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"'))) or [{}]
    if not lines:
        raise ValueError(f"the profiler measured no kernel: {text[-1000:]}")
    shares = [counter + _SHARE for counter in COUNTERS.values()]
    return [
        Kernel(line["Kernel Name"], _number(line, _TIME), tuple(_number(line, share) for share in shares))
        for line in lines
    ]


def _number(line: Mapping[str, str], name: str) -> float:
    try:
        number = float(line[name].replace(",", ""))
    except (KeyError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"the profiler gave {line.get(name)!r} for {name} of {line['Kernel Name']}")
    return number


def rows_of(kernels: Sequence[Kernel]) -> list[list[str]]:
    """Return a row for all kernels, and one for each of the kinds that take longest: means by time."""
    kinds = defaultdict[str, list[Kernel]](list)
    for kernel in kernels:
        kinds[kernel.name].append(kernel)
    total = sum(kernel.time for kernel in kernels)
    longest = sorted(kinds.items(), key=lambda kind: -sum(kernel.time for kernel in kind[1]))[:_LISTED]
    return [_row(name, some, total) for name, some in [("all", kernels), *longest]]


def _row(name: str, kernels: Sequence[Kernel], total: float) -> list[str]:
    time = sum(kernel.time for kernel in kernels)
    means = [sum(kernel.time * kernel.shares[place] for kernel in kernels) / time for place in range(len(COUNTERS))]
    return [name, str(len(kernels)), f"{time / 1e6:.3f}", f"{time / total:.0%}", *(f"{mean:.0f}" for mean in means)]


def works_of(splits: Iterable[int]) -> list[tuple[str, int]]:
    """Return what is measured, and on how many SMs of decoding; 0 for the whole card."""
    return [(what, sms) for sms in (0, *splits) for what in ("step", "encoding")]


def profiled(what: str, sms: int, streams: int) -> str:
    """Measure one work in a process of its own; returns what the profiler wrote."""
    counters = ",".join([_TIME, *(counter + _SHARE for counter in COUNTERS.values())])
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counters.csv"
        profiler = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "function"]
        profiler += ["--clock-control", "none", "--cache-control", "none"]
        profiler += ["--profile-from-start", "off", "--metrics", counters, "--log-file", str(log)]
        own = [sys.executable, "-m", "bench.overlap.counters", "--run", what, "--splits", str(sms)]
        failed, said = _run([*profiler, *own, "--streams", str(streams)])
        text = log.read_text(encoding="utf-8") if log.exists() else ""
    if failed:
        raise ValueError(f"the profiler ended with {failed}: {text[-500:]} {said[-1000:]}")
    return text


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run a command and return its status and what it said; too slow a one is killed with all that it has started."""
    plain = {**os.environ, "LC_ALL": "C"}  # numbers with points
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=plain, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=_LIMIT_S)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, said


def run(what: str, sms: int, streams: int, *, tiny: bool = False) -> None:
    """Run one work once between the marks that the profiler waits for."""
    device = torch.device("cuda", 0)
    shape = SHAPES["moondream2"]
    config = MoondreamConfig.from_dict(shape.tiny if tiny else shape.raw)
    crops, context = (3, 40) if tiny else (9, 850)
    subject, card = Subject(config, device, torch.bfloat16, crops, context), CudaCard(device)
    decode, encode = card.divided(sms) if sms else (card.whole(), card.whole())
    lane, work = (decode, subject.step(streams)) if what == "step" else (encode, subject.encode)
    replay = lane.capture(work)
    torch.cuda.cudart().cudaProfilerStart()  # type: ignore[no-untyped-call]
    card.run([(lane, [replay])])
    torch.cuda.cudart().cudaProfilerStop()  # type: ignore[no-untyped-call]
    card.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--splits", type=int, nargs="+", default=[64], help="SMs for decoding; the rest encodes")
    parser.add_argument("--run", choices=("step", "encoding"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.streams < 1 or not (options.run or min(options.splits) > 0):
        parser.error("--streams and --splits are numbers from 1 on")
    if options.run:
        run(options.run, options.splits[0], options.streams)
        return 0
    if not shutil.which("ncu"):
        parser.error("ncu is not on the PATH: install Nsight Compute, which comes with the CUDA toolkit")
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device: run it on a machine with a card")
    print(describe(torch.device("cuda", 0)) + "\n", flush=True)
    failed = 0
    for what, sms in works_of(options.splits):
        title = what if what == "encoding" else f"step of {options.streams}"
        print(f"{title}, {f'in parts, {sms} SMs for decoding' if sms else 'whole card'}", flush=True)
        try:
            rows = rows_of(read_counters(profiled(what, sms, options.streams)))
        except (ValueError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"not measured: {error}\n", flush=True)
            continue
        print(table(["kernels", "number", "ms", "time", *(f"{column} %" for column in COUNTERS)], rows) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
