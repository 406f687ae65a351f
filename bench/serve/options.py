"""The command line of `bench.serve`."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

PARTS = ("overhead", "detect", "streams")
RATES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 2.0, 5.0, 10.0)


class Options(argparse.Namespace):
    """The command line.

    Attributes:
        device: As it was named.
        shape: "shipped", or of random weights.
        only: Parts to run.
        clients: Of the closed loop that gives the capacity.
        max_open: Requests that the server takes at a time.
        rates: To offer, as multiples of the capacity; rising.
        stream_rates: The same for streamed answers.
        seconds: That count, of the closed loop and at each rate.
        times: Requests of each row of the overhead.
        pause: Seconds between those.
        size: Width and height of the images.
        seed: Of the arrivals.
        patience: Seconds that a process may take to be ready.
        output: File to write; None writes none.
        command: How the process was called.
    """

    device: str
    shape: str
    only: list[str]
    clients: int
    max_open: int
    rates: list[float]
    stream_rates: list[float]
    seconds: float
    times: int
    pause: float
    size: tuple[int, int]
    seed: int
    patience: float
    output: Path | None
    command: str

    @property
    def skills(self) -> list[str]:
        """What the closed loop has to ask for."""
        parts = {"detect": "detect", "streams": "query"}
        return [skill for part, skill in parts.items() if part in self.only]


def parse(description: str | None, arguments: Sequence[str] | None) -> Options:
    """Read the command line.

    Args:
        description: For the help.
        arguments: The command line; the process's own unless given.
    """
    parser = argparse.ArgumentParser(
        prog="python -m bench.serve", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    shapes = ("shipped", "moondream2", "tiny")
    parser.add_argument("--shape", choices=shapes, default="shipped", help="the shipped checkpoint, or random weights")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run; all by default")
    parser.add_argument("--clients", type=int, default=16, help="of the closed loop in one process: the capacity")
    parser.add_argument("--max-open", type=int, default=64, help="requests that the server takes at a time")
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES), help="multiples of the capacity")
    parser.add_argument("--stream-rates", nargs="+", type=float, default=[0.25, 0.5, 0.9], help="the same for streams")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the closed loop and of each rate")
    parser.add_argument("--times", type=int, default=100, help="requests of each row of the overhead")
    parser.add_argument("--pause", type=float, default=0.03, help="seconds between those")
    parser.add_argument("--size", type=int, nargs=2, default=(640, 480), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--seed", type=int, default=7, help="of the arrivals")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds until a process must be ready")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args(arguments, namespace=Options())
    numbers = (options.seconds, options.patience, *options.rates, *options.stream_rates)
    if min(options.clients, options.max_open, options.times, *options.size) < 1 or min(numbers) <= 0:
        parser.error("counts are at least 1, seconds and rates above 0")
    if options.pause < 0:
        parser.error("a pause is at least 0 seconds long")
    options.rates, options.stream_rates = sorted(options.rates), sorted(options.stream_rates)
    options.size = (options.size[0], options.size[1])
    options.command = shlex.join(["python", "-m", "bench.serve", *(sys.argv[1:] if arguments is None else arguments)])
    return options
