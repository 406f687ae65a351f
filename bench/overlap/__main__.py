"""Encoding beside decoding on one card: `python -m bench.overlap --spike --device cuda`.

Moondream 2's shape with random weights. An encoding of 9 crops and decode steps at a context of 850, each a CUDA graph,
repeat by turns, on two plain streams, in two parts of the card (green contexts, with graphs captured inside), and with
kernels of fewer programs. A share is a speed beside the other as a part of the speed alone on the whole card.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.command import Bench, Options, say, show_log
from bench.gpu.machine import describe
from bench.overlap.rows import rows_table, save_rows
from bench.overlap.spike import Spike, Subject, run_all
from bench.overlap.standin import HostCard
from photonlite.device.names import resolve_device
from photonlite.errors import SettingsError
from photonlite.tuning.lanes import Card, CudaCard
from photonlite.tuning.paces import SECONDS

NOTES = """\
- Alone there: alone on its SMs. Beside: both at once, in the window in which both are busy. p99: of the time between
  tokens. Sum: of both shares; taking turns gives 1.
- SMs: of decoding and of encoding. Plain streams share all of them.
- Parts: green contexts; a graph that is not confined to its part is said below the table.
- Own tilings: searched for the part, one kind of kernel after the other, the others as they are for the whole card.
- Fewer programs: cuBLAS was told to use fewer SMs for the encoding; attention and decode steps cannot be told, and
  products of decode steps were cut into fewer, larger programs (bench/overlap/tilings.py)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parse(arguments)
    begun = time.perf_counter()
    bench = Bench("Encoding beside decoding", options, figures=False)
    card: Card = CudaCard(options.where) if options.cuda else HostCard()
    try:
        crops, context = (3, 40) if options.tiny else (options.crops, options.context)
        made = bench.attempt("model", lambda: Subject(bench.config, options.where, options.dtype, crops, context))
        if made is not None:
            until = begun + options.limit
            _spike(bench, card, made, options, until)
    finally:
        card.close()
    return bench.finish(NOTES)


def _spike(bench: Bench, card: Card, subject: Subject, options: "OverlapOptions", until: float) -> None:
    about = {"machine": describe(options.where), "command": options.command, "date": time.strftime("%Y-%m-%d")}

    def on_row() -> None:
        bench.section("Both at once", rows_table(spike.rows))
        if options.data is not None:
            save_rows(options.data / "spike.json", spike.rows, about)

    spike = Spike(card, subject, options.streams, options.seconds, on_row)
    run_all(spike, bench.attempt, options.streams, options.splits, until)
    if options.data is not None:
        say(f"python -m bench.overlap.chart {options.data / 'spike.json'} overlap.png draws them")


class OverlapOptions(Options):
    """The command line; `limit` in seconds, `data` a folder for JSON."""

    spike: bool
    streams: list[int]
    splits: list[int]
    crops: int
    context: int
    seconds: float
    limit: float
    data: Path | None


def _parse(arguments: Sequence[str] | None) -> OverlapOptions:
    parser = argparse.ArgumentParser(
        prog="python -m bench.overlap", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spike", action="store_true", help="measure encoding beside decoding", required=True)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal with a tiny model; figures mean nothing")
    parser.add_argument("--streams", nargs="+", type=int, default=[8, 32, 64])
    parser.add_argument("--splits", nargs="+", type=int, default=[64, 48, 80, 32], help="SMs for decoding, in order")
    parser.add_argument("--crops", type=int, default=9)
    parser.add_argument("--context", type=int, default=850)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that a measurement takes")
    parser.add_argument("--limit", type=float, default=330.0, help="begin no search for tilings after so many seconds")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder for JSON")
    options = parser.parse_args(arguments, namespace=OverlapOptions())
    options.shape, options.rounds, options.only = "moondream2", 1, []
    try:
        options.where = resolve_device(options.device)
    except SettingsError as error:
        parser.error(str(error))
    options.command = " ".join(["python -m bench.overlap", *(sys.argv[1:] if arguments is None else arguments)])
    return options


if __name__ == "__main__":
    show_log()
    sys.exit(main())
