"""Compilers whose workers do what a test tells them, and pipes to hold them with; no test waits for a clock."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from photonlite.grammar.automata.tables import SpecialIds
from photonlite.grammar.compiler.client import GrammarCompiler
from photonlite.grammar.spec import GrammarSpec
from tests.guard import GUARD

FAKE = Path(__file__).with_name("fake_worker.py")
COMMAND = (sys.executable, str(FAKE))
IDS = SpecialIds(end=0, coordinate=5, size=6, vocab_size=7)
PIECES = (b"", b"a", b"\xff")


def spec(source: str) -> GrammarSpec:
    return GrammarSpec("regex", source)


@contextmanager
def compiling(*arguments: str, **options: Any) -> Iterator[GrammarCompiler]:
    """A compiler with a fake worker that gets these arguments; its jobs may take their time unless a test says else."""
    options = {"limit_s": GUARD} | options
    compiler = GrammarCompiler(lambda: PIECES, IDS, command=(*COMMAND, *arguments), **options)
    try:
        yield compiler
    finally:
        compiler.close()


def open_at_once(pipe: Path) -> IO[str]:
    """Open a named pipe for reading although nothing may ever write to it: `select` waits until its writer has gone."""
    return open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))


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
        with open_at_once(self._begun) as end:
            assert select.select([end], [], [], GUARD)[0], "no worker has come to the job"

    def open(self, result: str = "") -> None:
        """Let the worker go on."""
        self._way.write_text(result)
