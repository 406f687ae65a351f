"""The processes of the bench: the baseline, and the server under load."""

import contextlib
import json
import os
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
    """A process ended, or timed out, before it had done its work."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The model without a server; rates (answers/s) and median latencies of a closed loop, by skill."""

    machine: str
    model: str  # name and dtype
    rates: dict[str, float]
    p50_s: dict[str, float]
    hand_over_s: float  # median latency of a single client beyond the engine's own time

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

    Yields the baseline and the port of the server; raises ChildError if a process failed.
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
    """A process with its stdout, lines of JSON, and its stderr."""

    process: "subprocess.Popen[bytes]"
    out: IO[bytes]
    err: IO[bytes]


@contextlib.contextmanager
def child(arguments: Sequence[str], patience_s: float) -> Iterator[Lines]:
    """Run Python in a process; at the end it gets SIGTERM, and SIGKILL if it does not end in time."""
    # Files, not pipes, which would have to be read during the load.
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
    """Wait for a line of a process's log with an event; raises ChildError at its end or after the timeout."""
    until = time.monotonic() + patience_s
    while True:
        ended = lines.process.poll() is not None
        # Unlike `seek`, `pread` leaves alone the offset at which the process writes.
        for line in os.pread(lines.out.fileno(), os.fstat(lines.out.fileno()).st_size, 0).splitlines():
            if line.startswith(b"{") and line.endswith(b"}") and json.loads(line).get("event") == event:
                return dict(json.loads(line))
        if ended or time.monotonic() > until:
            lines.err.seek(0)
            said = lines.err.read().decode(errors="replace").strip().splitlines()
            reason = f"ended with {lines.process.returncode}" if ended else f"did not in {patience_s:g} s"
            raise ChildError(f"a process that should say {event!r} {reason}: {' '.join(said[-3:])[:1000]}")
        time.sleep(_LOOKS_S)
