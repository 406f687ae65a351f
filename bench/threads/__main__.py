"""How environments that set threads compare on two cores that are idle, or shared with busy programs.

`python -m bench.threads` takes about eight minutes, `--quick` two. Every environment is a separate process with a
model loaded; they take turns, so that all of them see the same machine. The first three run PyTorch's own number of
threads in every operation, as set by hand; the last is photonlite as it comes.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

DEFAULT, PASSIVE, ONE, OURS = "PyTorch's default", "OMP_WAIT_POLICY=PASSIVE", "OMP_NUM_THREADS=1", "photonlite"
ENVIRONMENTS: Final[dict[str, dict[str, str]]] = {
    DEFAULT: {},
    PASSIVE: {"OMP_WAIT_POLICY": "PASSIVE"},
    ONE: {"OMP_NUM_THREADS": "1"},
    OURS: {},
}
ROWS: Final = {"idle": 0, "one busy neighbour": 1, "four busy neighbours": 4}
CASES: Final = ("detect", "caption", "loop", "batch")
_SET_BY_USERS: Final = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MKL_NUM_THREADS", "KMP_BLOCKTIME")
_BUSY: Final = (sys.executable, "-S", "-c", "while True: pass")


@dataclass(slots=True)
class Times:
    """Seconds of the calls of one case in one environment."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, more: dict[str, list[float]]) -> None:
        """Take the times of another turn."""
        self.wall += more["wall"]
        self.cpu += more["cpu"]


Results = dict[tuple[str, str, str], Times]
"""By row, case and environment."""


class Worker:
    """A process with a model loaded; see `bench.threads.worker`."""

    def __init__(self, environment: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if name not in _SET_BY_USERS}
        command = [sys.executable, "-m", "bench.threads.worker", *(() if environment == OURS else ("--plain",))]
        self._process = subprocess.Popen(
            command,
            env=inherited | {"CUDA_VISIBLE_DEVICES": ""} | ENVIRONMENTS[environment],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def measure(self, case: str, seconds: float) -> Any:
        """Have a case timed; returns what the worker writes."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"case": case, "seconds": seconds}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with exit code {self._process.wait()}")
        return json.loads(line)


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Keep this many processes busy inside the block."""
    running = [subprocess.Popen(_BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def measure(rows: Sequence[str], cases: Sequence[str], rounds: int, seconds: float) -> Results:
    """Time every case in every environment, in turns."""
    results: Results = {}
    with contextlib.ExitStack() as stack:
        workers = {}
        for environment in ENVIRONMENTS:
            workers[environment] = worker = Worker(environment)
            stack.callback(worker.close)
        for row in rows:
            with neighbours(ROWS[row]):
                for number in range(rounds):
                    for case in cases:
                        # The first to run differs by round: what comes before leaves its mark on the machine.
                        order = list(workers)[number % len(workers) :] + list(workers)[: number % len(workers)]
                        for environment in order:
                            if case in ("loop", "batch") and environment == DEFAULT and row != "idle":
                                continue  # minutes, and known from detect
                            times = results.setdefault((row, case, environment), Times())
                            times.add(workers[environment].measure(case, seconds))
    return results


def table(results: Results) -> Iterator[str]:
    """Yield the lines of the report's table: medians, and their ratios."""
    yield "| machine | case | environment | wall | CPU | wall / best set by hand | CPU / one thread |"
    yield "|---|---|---|---:|---:|---:|---:|"
    for (row, case, environment), times in results.items():
        by_hand = [found for name in (DEFAULT, PASSIVE, ONE) if (found := results.get((row, case, name)))]
        wall, cpu = statistics.median(times.wall), statistics.mean(times.cpu)
        best = min(statistics.median(each.wall) for each in by_hand)
        single = statistics.mean(results[row, case, ONE].cpu)
        yield (
            f"| {row} | {case} | {environment} | {1e3 * wall:.0f} ms | {1e3 * cpu:.0f} ms "
            f"| {wall / best:.2f} | {cpu / single:.2f} |"
        )


def bind(cores: int) -> list[int]:
    """Bind this process and its children to the first of its cores, at most this many; return them."""
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    os.sched_setaffinity(0, chosen)
    return chosen


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.threads", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="detect and batch only, one round")
    parser.add_argument("--cores", type=int, default=2, help="how many cores all processes share (default: 2)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each case in each turn, at least one call")
    parser.add_argument("--output", type=Path, help="write the report there as well")
    options = parser.parse_args()
    cores = bind(options.cores)
    begun = time.perf_counter()
    cases = options.cases or (("detect", "batch") if options.quick else CASES)
    results = measure(options.rows, cases, options.rounds or (1 if options.quick else 2), options.seconds)
    report = "\n".join(
        (
            f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, PyTorch {torch.__version__}, Python "
            f"{platform.python_version()}, {platform.system()}, {len(cores)} cores; "
            f"{time.perf_counter() - begun:.0f} s.\n",
            *table(results),
        )
    )
    print(report)
    if options.output:
        options.output.write_text(report + "\n")


if __name__ == "__main__":
    main()
