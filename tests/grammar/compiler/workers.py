"""Compilers whose workers do what a test tells them, and pipes to hold them with; no test waits for a clock."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.compiler.client import GrammarCompiler
from photonlite.grammar.spec import GrammarSpec

LONG = 60.0
"""Seconds after which a test is taken for hung: a guard, never waited for."""

FAKE = Path(__file__).with_name("fake_worker.py")
COMMAND = (sys.executable, str(FAKE))
IDS = SpecialIds(end=0, coordinate=5, size=6, vocab_size=7)
PIECES = (b"", b"a", b"\xff")


def spec(source: str) -> GrammarSpec:
    return GrammarSpec("regex", source)


@contextmanager
def compiling(*arguments: str, **options: Any) -> Iterator[GrammarCompiler]:
    """A compiler with a fake worker that gets these arguments; its jobs may take their time unless a test says else."""
    options = {"limit_s": 10 * LONG} | options
    compiler = GrammarCompiler(lambda: PIECES, IDS, command=(*COMMAND, *arguments), **options)
    try:
        yield compiler
    finally:
        compiler.close()


class Gate:
    """Holds a worker at a job.

    Args:
        folder: For its pipes.
        name: Of the gate.

    Attributes:
        job: The spec that waits at it; its result is what `open` is told.
    """

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self._way, self._begun = folder / name, folder / f"{name}-begun"
        os.mkfifo(self._way)
        os.mkfifo(self._begun)
        self.job = spec(f"wait {self._way} {self._begun}")

    def reached(self) -> None:
        """Wait until a worker is at the job."""
        with open(self._begun):
            pass

    def open(self, result: str = "") -> None:
        """Let the worker go on."""
        self._way.write_text(result)
