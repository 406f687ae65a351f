"""The processes behind the bench: the baseline, and the server that is put under load."""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from bench.serve.options import Options

_LOOKS_S: Final = 0.05
_STOPPING_S: Final = 60.0


class ChildError(Exception):
    """A process ended, or said nothing, before it had done what it was started for."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The model without a server.

    Attributes:
        machine: In words.
        model: Its name and the type of its numbers.
        rates: Answers per second of a closed loop, by skill.
        p50_s: What a client of it waits, in seconds, by skill.
        hand_over_s: Median of a single client's wait beyond the engine's own time.
    """

    machine: str
    model: str
    rates: dict[str, float]
    p50_s: dict[str, float]
    hand_over_s: float

    @classmethod
    def of(cls, line: dict[str, Any]) -> "Baseline":
        """Read the line that `bench.serve.subject` prints."""
        found = line["in_process"]
        return cls(
            line["machine"],
            line["model"],
            {skill: one["rate"] for skill, one in found.items()},
            {skill: one["p50_s"] for skill, one in found.items()},
            line["hand_over_s"],
        )


@contextlib.contextmanager
def started(options: Options) -> Iterator[tuple[Baseline, int]]:
    """Measure the baseline, then serve while a block runs.

    The shipped checkpoint is served by `photonlite serve`; random weights by the process that has measured them, since
    they could not be loaded a second time.

    Args:
        options: The command line.

    Yields:
        The baseline, and the port of the server.

    Raises:
        ChildError: One of the processes failed.
    """
    asked = ["--device", options.device, "--shape", options.shape, "--clients", str(options.clients)]
    asked += ["--seconds", str(options.seconds), "--pause", str(options.pause)]
    asked += ["--skills", *options.skills, "--size", *map(str, options.size)]
    if options.shape == "shipped":
        with child(["-m", "bench.serve.subject", *asked], options.patience) as lines:
            baseline = Baseline.of(wait_for(lines, "baseline", options.patience))
        serve = ["-m", "photonlite.cli", "serve", "--port", "0", "--device", options.device]
        with child([*serve, "--max-open", str(options.max_open)], options.patience) as lines:
            yield baseline, int(wait_for(lines, "listening", options.patience)["port"])
        return
    with child(["-m", "bench.serve.subject", *asked, "--serve", str(options.max_open)], options.patience) as lines:
        baseline = Baseline.of(wait_for(lines, "baseline", options.patience))
        yield baseline, int(wait_for(lines, "listening", options.patience)["port"])


@dataclass(frozen=True)
class Lines:
    """What a process has written.

    Attributes:
        process: It.
        out: Its stdout: lines of JSON.
        err: Its stderr.
    """

    process: "subprocess.Popen[bytes]"
    out: IO[bytes]
    err: IO[bytes]


@contextlib.contextmanager
def child(arguments: Sequence[str], patience_s: float) -> Iterator[Lines]:
    """Run Python in a process of its own; at the end it is told to stop, and then made to.

    Args:
        arguments: Of the interpreter.
        patience_s: Seconds that it may take to end.
    """
    # Files, not pipes: nobody has to read them while the load is on.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            yield Lines(process, out, err)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(min(patience_s, _STOPPING_S))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(lines: Lines, event: str, patience_s: float) -> dict[str, Any]:
    """Wait for a line of a process's log.

    Args:
        lines: Of the process.
        event: Of the line.
        patience_s: Seconds to wait.

    Raises:
        ChildError: The process has ended, or the time has.
    """
    until = time.monotonic() + patience_s
    while True:
        ended = lines.process.poll() is not None
        lines.out.seek(0)
        for line in lines.out.read().splitlines():
            if line.startswith(b"{") and line.endswith(b"}") and json.loads(line).get("event") == event:
                return dict(json.loads(line))
        if ended or time.monotonic() > until:
            lines.err.seek(0)
            said = lines.err.read().decode(errors="replace").strip().splitlines()
            reason = f"ended with {lines.process.returncode}" if ended else f"did not in {patience_s:g} s"
            raise ChildError(f"a process that should say {event!r} {reason}: {' '.join(said[-3:])[:1000]}")
        time.sleep(_LOOKS_S)
