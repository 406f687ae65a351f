"""Shared by the commands: options, a report that grows, and parts that fail independently."""

import argparse
import dataclasses
import functools
import logging
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, get_args

import torch

from bench.gpu.clock import Clock
from bench.gpu.figures import Figure, figures_table
from bench.gpu.floors import Floors, measure_floors
from bench.gpu.machine import describe
from bench.gpu.page import Page
from bench.reference import ask
from bench.shapes import SHAPES
from photonlite.config import Precision
from photonlite.device.names import resolve_device
from photonlite.errors import SettingsError
from photonlite.models.moondream.config import MoondreamConfig

T = TypeVar("T")

_SHAPES = [name for name, shape in SHAPES.items() if shape.family == "moondream"]


def parse(
    name: str,
    description: str | None,
    parts: Sequence[str],
    arguments: Sequence[str] | None,
    shapes: Sequence[str] = _SHAPES,
    *,
    ranks: bool = False,
    weights: bool = False,
) -> "Options":
    """Read the command line.

    Args:
        name: Of the module.
        description: For the help.
        parts: What `--only` may name.
        arguments: The command line; the process's own unless given.
        shapes: What `--shape` may name.
        ranks: Whether the benchmark takes `--tensor-parallel`.
        weights: Whether it takes `--weights`.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--shape", choices=shapes, default="moondream2", help="of the model")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal with a tiny model; figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), help="parts to run; all by default")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each figure, after a warm-up")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="folder for traces that ui.perfetto.dev opens")
    parser.add_argument("--reference", type=Path, metavar="DIR", help="folder that holds moondream/torch")
    parser.add_argument("--patience", type=float, default=90.0, help="seconds that the reference may take")
    if weights:
        known = ("auto", *get_args(Precision))
        parser.add_argument("--weights", default="auto", choices=known, help="precision of the decoder's weights")
    if ranks:
        parser.add_argument("--tensor-parallel", type=int, default=1, help="ranks that run the model together")
    options = parser.parse_args(arguments, namespace=Options())
    try:
        options.where = resolve_device(options.device)
    except SettingsError as error:
        parser.error(str(error))
    if options.rounds < 1:
        parser.error("there is at least 1 round")
    options.command = shlex.join([f"python -m {name}", *(sys.argv[1:] if arguments is None else arguments)])
    options.command = options.command.replace(f"'python -m {name}'", f"python -m {name}")
    return options


class Options(argparse.Namespace):
    """The command line.

    Attributes:
        device: The name given on the command line.
        where: The device.
        shape: Name of the model's shape.
        tiny: Whether this is a rehearsal.
        only: Parts to run.
        rounds: Measurements of each figure.
        output: File to write; None writes none.
        trace: Folder for traces; None writes none.
        reference: Folder of the reference implementation; None leaves it out.
        patience: Seconds that the reference may take.
        command: How the process was called.
        tensor_parallel: Ranks that run the model together.
    """

    device: str
    where: torch.device
    shape: str
    tiny: bool
    only: list[str]
    rounds: int
    output: Path | None
    trace: Path | None
    reference: Path | None
    patience: float
    command: str
    tensor_parallel: int = 1

    @property
    def cuda(self) -> bool:
        """Whether there is a card."""
        return self.where.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """Type of the model's weights."""
        return torch.bfloat16 if self.cuda else torch.float32


class Bench:
    """One run of a command: what its parts need, and the report that they write.

    Args:
        title: Of the report.
        options: The command line.
        bound: What the column of bounds is called.
        model: What is measured, where it is not Moondream 2's shape alone.
        figures: Whether the report begins with a table of figures and their aims.

    Attributes:
        options: As given.
        clock: Of the device.
    """

    def __init__(
        self, title: str, options: Options, bound: str = "floor", model: str | None = None, *, figures: bool = True
    ) -> None:
        self.options = options
        self.clock = Clock(options.where)
        shape = SHAPES[options.shape]
        self._page = Page(title, options.output)
        self._bound = bound
        self._begun = time.perf_counter()
        self._figures: list[Figure] = []
        self._failures: list[str] = []
        self._floors: Floors | None = None
        self._put("", self._preamble(model or f"{shape.title}'s shape, random weights"))
        if figures:
            self._put("Figures", "None yet.")

    @functools.cached_property
    def config(self) -> MoondreamConfig:
        """The configuration of a Moondream shape."""
        shape = SHAPES[self.options.shape]
        return MoondreamConfig.from_dict(shape.tiny if self.options.tiny else shape.raw)

    @property
    def floors(self) -> Floors:
        """Limits of the device; measured on first use."""
        if self._floors is None:
            self._floors = measure_floors(self.clock, self.config, self.options.dtype)
            self.section("Ceilings", str(self._floors.ceilings))
        return self._floors

    def attempt(self, what: str, work: Callable[[], T]) -> T | None:
        """Run a part; report its failure and go on."""
        begun = time.perf_counter()
        try:
            return work()
        except Exception as error:  # a part of a benchmark that cannot run here leaves a gap, whatever it raises
            text = " ".join(f"{type(error).__name__}: {error}".split())
            self._failures.append(f"- {what}: {text:.300}")
            self._put("Not measured", "\n".join(self._failures))
            say(f"{what} FAILED: {text:.2000}")
            return None
        finally:
            if self.options.cuda:
                torch.cuda.empty_cache()
            say(f"# {what}: {time.perf_counter() - begun:.1f} s, {time.perf_counter() - self._begun:.0f} s in all")

    def reference(self, parts: Sequence[str]) -> dict[str, float]:
        """Measure the reference implementation where there is one; medians in seconds by name."""
        options = self.options
        if options.reference is None:
            return {}
        folder = options.reference
        found = self.attempt(
            "reference", lambda: ask(folder, options.where, parts, tiny=options.tiny, patience_s=options.patience)
        )
        if found is None:
            return {}
        for name, text in found.failures.items():
            self._failures.append(f"- reference, {name}: {text:.300}")
            say(f"reference, {name} FAILED: {text}")
        if found.failures:
            self._put("Not measured", "\n".join(self._failures))
        say("reference: " + ", ".join(f"{name} {1e3 * value:.2f} ms" for name, value in found.medians.items()))
        return found.medians

    def figure(self, figure: Figure) -> None:
        """Add a row to the figures; a rehearsal has no aims."""
        if self.options.tiny:
            figure = dataclasses.replace(figure, aim=None, aim_p99=None)
        self._figures.append(figure)
        say(" | ".join(figure.cells()))
        self._put("Figures", figures_table(self._figures, self._bound))

    def section(self, name: str, text: str) -> None:
        """Set a section of the report."""
        self._put(name, text)

    def finish(self, notes: str) -> int:
        """Add how the report is to be read, print it, and give the exit code: 1 where something was not measured."""
        self._put("How to read this", notes)
        say(f"\n{self._page}\n")
        say(f"done after {time.perf_counter() - self._begun:.0f} s; not measured: {len(self._failures)}")
        return 1 if self._failures else 0

    def _put(self, name: str, text: str) -> None:
        self._page.put(name, text)

    def _preamble(self, model: str) -> str:
        options = self.options
        shown = "a tiny model in rehearsal, random weights: FIGURES MEAN NOTHING" if options.tiny else model
        return (
            f"{time.strftime('%Y-%m-%d')}, {describe(options.where)}.\n"
            f"Model: {shown}, {str(options.dtype).removeprefix('torch.')}; "
            f"median of {options.rounds} measurements unless said.\n"
            f"Made by `{options.command}`."
        )


def show_log() -> None:
    """Show the log of the package, such as how long capturing graphs took."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("photonlite").setLevel(logging.INFO)


def say(text: str) -> None:
    """Print and flush."""
    print(text, flush=True)
