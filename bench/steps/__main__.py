"""Decode steps by themselves: `python -m bench.steps --device cuda`.

A step embeds the last token of each sequence, runs the decoder and the language head, and takes the most probable
token. It is one CUDA graph, replayed, without engine, scheduler or host work: `bench.decode` times steps with these.

Floor: the time to read all weight matrices, and the keys and values of all sequences, at the read bandwidth measured in
the same run. In a model with experts, only those count that the step's rows are routed to; the report says how many.
"""

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from bench.bubble.report import many, table
from bench.gpu.ceilings import Ceilings, measure_ceilings
from bench.gpu.clock import Clock
from bench.gpu.figures import Figure
from bench.gpu.machine import describe
from bench.gpu.page import Page
from bench.gpu.routes import routes_row, routes_table
from bench.gpu.samples import Sample
from bench.shapes import IN_PARTS, SHAPES
from bench.steps.adapted import AIMS, adapted_step
from bench.steps.mixture import mixture_parts_of
from bench.steps.parts import Part, parts_of
from bench.steps.subjects import Rows, Subject, make_subject
from photonlite.device.names import resolve_device

T = TypeVar("T")
HEAD = ["what (ms)", "fused", "least to most (runs)", "aim", "", "floor", "share of it", "plain operations"]
DEFAULT = ["qwen3-vl-2b", "qwen3-vl-8b", "moondream2", "qwen2.5-vl-3b"]  # three minutes, most of them compilations
PART_HEAD = ["what", "launches", "us each", "TB/s", "tiles"]


@dataclass(slots=True)
class Report:
    """Rows that are printed as they come, and written to a file."""

    page: Page
    begun: float
    seconds: float
    rows: list[list[str]]
    parts: list[list[str]]
    routes: list[list[str]]
    failures: list[str]

    def attempt(self, what: str, work: Callable[[], T]) -> T | None:
        """Run a part of the benchmark; report its failure, or that no time is left for it, and go on."""
        begun = time.perf_counter()
        if begun - self.begun > self.seconds:
            self.fail(what, f"not begun: {self.seconds:.0f} s are over")
            return None
        try:
            return work()
        except Exception as error:  # whatever one row raises, the others are still wanted
            self.fail(what, " ".join(f"{type(error).__name__}: {error}".split()))
            return None
        finally:
            print(f"# {what}: {time.perf_counter() - begun:.1f} s", flush=True)

    def add(self, row: list[str]) -> None:
        """Add a row of times."""
        self.rows.append(row)
        print(" | ".join(row), flush=True)
        self.page.put("Steps", table(HEAD, self.rows))

    def add_part(self, row: list[str]) -> None:
        """Add a row of one kernel's times."""
        self.parts.append(row)
        print("    " + " | ".join(row), flush=True)
        self.page.put("Kernels, each alone behind itself", table(PART_HEAD, self.parts))

    def add_routes(self, row: list[str]) -> None:
        """Add a row of experts that a step meets."""
        self.routes.append(row)
        print("    experts: " + " | ".join(row), flush=True)
        self.page.put("Different experts of a step", routes_table(self.routes))

    def fail(self, what: str, text: str) -> None:
        """Report what could not be measured."""
        self.failures.append(f"- {what}: {text:.300}")
        print(f"{what} FAILED: {text:.2000}", flush=True)
        self.page.put("Not measured", "\n".join(self.failures))


def measure_row(
    report: Report, clock: Clock, subject: Subject, ceilings: Ceilings | None, what: str, streams: int, context: int,
    rounds: int, aim: float | None, adapters: int,
) -> None:  # fmt: skip
    """Time a step both ways, beside its floor; then one whose rows have adapters, if there are any."""
    rows = report.attempt(f"{what}, rows", partial(Rows, subject, streams, context))
    if rows is None:
        return
    met: list[int] = []
    if subject.mixture is not None:
        met = report.attempt(f"{what}, experts", rows.met) or []
    moe = None if subject.mixture is None else subject.mixture.config.text.moe
    if moe is not None and met:
        report.add_routes(routes_row(streams, moe.num_experts, moe.experts_per_token, met))
    bound = None if ceilings is None else subject.bytes_of(streams, context, met) / ceilings.read
    plain = report.attempt(f"{what}, plain", lambda: clock.measure(rows.plain, rounds=rounds, graphed=True))
    fused = None
    if subject.fused is not None or clock.device.type == "cuda":  # some decoders have no fused steps on a CPU
        fused = report.attempt(f"{what}, fused", lambda: clock.measure(rows.fused, rounds=rounds, graphed=True))
    report.add(Figure(what, fused, aim, bound=bound, reference=None if plain is None else plain.median).cells())
    if adapters:
        measure_adapted(report, clock, subject, what, streams, context, rounds, adapters, fused)


def measure_adapted(
    report: Report, clock: Clock, subject: Subject, what: str, streams: int, context: int, rounds: int, adapters: int,
    without: Sample | None,
) -> None:  # fmt: skip
    """Time a step whose rows have adapters, beside one without."""
    make = partial(adapted_step, subject, streams, context, adapters)
    timed = report.attempt(f"{what}, adapters", lambda: clock.measure(make(), rounds=rounds, graphed=True))
    what, aim = f"{what}, {adapters} adapters", None
    if timed is not None and without is not None:
        what += f", {timed.median / without.median:.3f} x"
        aim = AIMS[streams] * without.median if streams in AIMS else None
    report.add(Figure(what, timed, aim).cells())


def measure_part(report: Report, clock: Clock, what: str, make: Callable[[], Part], rounds: int) -> None:
    """Time one kind of kernel in all layers, one behind the other."""
    part = make()
    seconds = clock.measure(part.run, rounds=rounds, graphed=True).median / part.launches
    report.add_part(
        [what, str(part.launches), f"{1e6 * seconds:.2f}", f"{part.bytes / seconds / 1e12:.2f}", part.tiles]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.steps", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--shape", nargs="+", choices=IN_PARTS, default=DEFAULT)
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=1000, help="positions of each sequence")
    parser.add_argument("--rounds", type=int, default=50, help="steps that are timed")
    parser.add_argument("--adapters", type=int, default=0, help="also time rows that have so many adapters of rank 16")
    parser.add_argument("--parts", action="store_true", help="also time the kernels of a step one by one")
    parser.add_argument("--seconds", type=float, default=170.0, help="begin no row after so many seconds")
    parser.add_argument("--begin", type=int, default=0, help="rows to leave out at the beginning")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal with tiny shapes; figures mean nothing")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args(arguments)
    device = resolve_device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    report = Report(Page("Decode steps", options.output), time.perf_counter(), options.seconds, [], [], [], [])
    kind = str(dtype).removeprefix("torch.")
    report.page.put(
        "", f"{time.strftime('%Y-%m-%d')}, {describe(device)}. Random weights in {kind}, context {options.context}."
    )
    clock = Clock(device)
    size, side = (1 << 32, 8192) if device.type == "cuda" else (1 << 24, 256)
    ceilings = report.attempt("ceilings", lambda: measure_ceilings(clock, dtype, size=size, side=side))
    if ceilings is not None:
        report.page.put("Ceilings", str(ceilings))
    rows = list(itertools.product(options.shape, options.streams))[options.begin :]
    name, subject = "", None
    for number, (wanted, streams) in enumerate(rows, options.begin + 1):
        if wanted != name:
            name, subject = wanted, None
            build = partial(make_subject, SHAPES[name], device, dtype, tiny=options.tiny)
            subject = report.attempt(f"{name}: weights", build)
        if subject is not None:
            aim = None if options.tiny or options.context != 1000 else SHAPES[name].step_aims.get(streams)
            what = f"{name}, {many(streams)}"
            measure_row(
                report, clock, subject, ceilings, what, streams, options.context, options.rounds, aim, options.adapters
            )
            make_parts = parts_of if subject.mixture is None else mixture_parts_of
            parts = make_parts(subject, streams, options.context) if options.parts and usable(device) else {}
            for part, make in parts.items():
                full = f"{what}, {part}"
                report.attempt(full, partial(measure_part, report, clock, full, make, options.rounds))
        if not usable(device):  # a kernel has broken this process's context on the card: another one goes on
            given = sys.argv[1:] if arguments is None else list(arguments)
            rest = [sys.executable, "-m", "bench.steps", *given, "--begin", str(number)]
            report.fail(f"behind row {number}", "the card was lost and found again by another process")
            return max(1, subprocess.run(rest, check=False).returncode)
    print(f"\n{report.page}\n", flush=True)
    return 1 if report.failures else 0


def usable(device: torch.device) -> bool:
    """Return whether this process can still use its device."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
        except RuntimeError:
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
