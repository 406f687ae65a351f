"""Encoding beside decoding on one card: `python -m bench.overlap --spike --profile --device cuda`.

Moondream 2's shape with random weights. An encoding of 9 crops and decode steps at a context of 850, each a CUDA graph,
take turns, or run on two plain streams, in two parts of the card (green contexts, with graphs captured inside), or
with kernels of fewer programs. A share is a speed beside the other as a part of the speed alone on the whole card.

`--engine` serves such a model once for each of `--ways`: images are encoded in turns, beside the steps on the whole
card, beside them in a part of it, or as a tuning says, and prompts may ride with decode steps (`mixed`). Streams decode
while clients ask about images.

`--profile` measures what `photonlite tune` does with this model, searches for schedules, and shows what
bounds each operation. With `--engine --ways turns tuned --data DIR` an engine then uses them.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import photonlite
from bench.bubble.report import many, table
from bench.gpu.command import Bench, Options, say, show_log
from bench.gpu.machine import describe
from bench.overlap.roofline import encoding_operations, roofline_table, step_operations
from bench.overlap.rows import rows_table, save_rows
from bench.overlap.served import (
    WAYS,
    Load,
    answer_rates,
    compare,
    frame_rates,
    make_models,
    rates_table,
    served_table,
    timeline,
    ways_of,
)
from bench.overlap.spike import Spike, Subject, run_all
from bench.overlap.standin import HostCard
from photonlite.config import Precision
from photonlite.device.names import resolve_device
from photonlite.errors import SettingsError
from photonlite.models.precisions import Precisions
from photonlite.pauses import short_collections
from photonlite.tuning.lanes import Card, CudaCard
from photonlite.tuning.made_for import made_for
from photonlite.tuning.paces import SECONDS
from photonlite.tuning.profile import measure, tuning_of
from photonlite.tuning.schedule import StreamTuning, save_tuning

NOTES = """\
- Alone there: alone on its SMs. Beside: both at once, in the window in which both are busy. p99: of the time between
  tokens. Sum: of both shares; taking turns gives 1.
- SMs: of decoding and of encoding. Plain streams share all of them; the kernels of decoding go first.
- Parts: green contexts; a graph that is not confined to its part is said below the table.
- Own tilings: searched for the part, one kind of kernel after the other, the others as they are for the whole card.
- Fewer programs: cuBLAS was told to use fewer SMs for the encoding; attention and decode steps cannot be told, and
  products of decode steps were cut into fewer, larger programs (bench/overlap/tilings.py).
- Pairs: an encoding beside decode steps; R is 1 - the share of encoding, P the share of decoding.
- Engine: interval between two tokens of a stream, its median and 99th percentile, while clients ask about one image
  after the other; rounds of all ways alternate. Parts: 68 SMs for the encoder unless it says otherwise, the others for
  steps beside it.
- Frames missed, by cause: late, answered after the deadline by the loop's clock; deadline, ended at it by the engine's;
  expired or superseded, never asked about, as its deadline passed or a newer frame came.
- Roofline: arithmetic and bytes over the rates under "Ceilings"; measured: alone on the whole card, in a CUDA graph,
  an encoding with its projection.
- Schedules: one encoding beside about as long of decoding; planned, not run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parse(arguments)
    begun = time.perf_counter()
    bench = Bench("Encoding beside decoding", options, figures=False)
    card: Card = CudaCard(options.where) if options.cuda else HostCard()
    try:
        crops, context = (3, 40) if options.tiny else (options.crops, options.context)
        made = None
        if options.spike or options.profile:
            made = bench.attempt("model", lambda: Subject(bench.config, options.where, options.dtype, crops, context))
        if made is not None and options.spike:
            _spike(bench, card, made, options, begun + options.limit)
        if made is not None and options.profile:
            bench.attempt("profile", partial(_profile, bench, card, made, options))
        if options.engine:
            with short_collections():  # as a server does
                bench.attempt("engine", partial(_engine, bench, options))
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


def _profile(bench: Bench, card: Card, subject: Subject, options: "OverlapOptions") -> None:
    """Measure, show what bounds each operation, and search: what needs SciPy comes last."""
    steps = {streams: subject.step(streams) for streams in options.streams}
    profile = measure(card, subject.encodings(), steps, options.splits, say, options.seconds / 2)
    pairs = [
        [str(one.sms), str(streams), f"{one.compute:.2f}", f"{1 - one.compute:.2f}", f"{one.other:.2f}"]
        for streams, found in profile.pairs.items()
        for one in found
    ]
    bench.section("Pairs", table(["SMs of decoding", "streams", "encode", "R of decoding", "P"], pairs))
    most, ceilings = max(profile.encode), bench.floors.ceilings
    groups = {"encoding": (encoding_operations(bench.config, most, options.dtype), profile.encode[most])}
    for streams, seconds in profile.steps.items():
        operations = step_operations(bench.config, streams, subject.context, options.dtype)
        groups[f"step of {many(streams)}"] = operations, seconds
    bench.section("Roofline", roofline_table(groups, ceilings))
    made = made_for(subject.model, Precisions(), options.where, options.dtype, photonlite.__version__)
    tuning = tuning_of(profile, {**made, "sms": str(card.sms)})
    rows = [
        [many(streams), f"{1e3 * one.turns_s:.2f}", f"{1e3 * one.planned_s:.2f}", f"{one.gain:.2f}", _share(one)]
        for streams, one in tuning.streams.items()
    ]
    bench.section("Schedules", table(["for", "in turns (ms)", "planned (ms)", "gain", "the encoder's share"], rows))
    if options.data is not None:
        save_tuning(options.data / "tuning.json", tuning)


def _engine(bench: Bench, options: "OverlapOptions") -> None:
    context, tokens = (20, 60) if options.tiny else (options.context, 1000)
    tuning = options.data / "tuning.json" if options.profile and options.data is not None else None
    ways = {
        way: {**given, "fp8_linears": options.fp8, "kv_dtype": "fp8" if options.fp8_kv else "auto"}
        for way, given in ways_of(options.ways, options.sms, tuning).items()
    }
    models = make_models(bench.config, options, options.streams, options.clients, ways, options.precision)
    rows: list[list[str]] = []
    rates: list[list[str]] = []
    vocabulary = bench.config.text.vocab_size
    try:
        for task in options.tasks:
            for streams in options.streams if task in ("intervals", "timeline") else ():
                load = Load(streams, context, tokens, options.clients, options.window)
                if task == "intervals":
                    rows += compare(models, load, vocabulary, options.rounds)
                    bench.section("In the engine", served_table(rows))
                for way, model in models.items() if task == "timeline" else ():
                    image = (
                        None
                        if options.data is None
                        else options.data / f"{way.replace(', ', '-').replace(' ', '')}-{streams}.png"
                    )
                    say(f"{streams} streams, {way}:")
                    say("\n".join(timeline(model, load, vocabulary, 0.5, image)))
            if task in ("captions", "answers"):
                rates += answer_rates(models, 64, 100 if task == "captions" else 3, options.window)
            if task == "frames":
                rates += frame_rates(models, 16, options.window)
            if rates:
                bench.section("Answers and frames", rates_table(rates))
    finally:
        for model in models.values():
            model.close()


def _share(one: StreamTuning) -> str:
    return "turns" if one.encode_share == 1 else f"{one.encode_share:.0%}"


_TASKS = ("intervals", "timeline", "captions", "answers", "frames")


class OverlapOptions(Options):
    """The command line; `limit` in seconds, `data` a folder for JSON."""

    spike: bool
    profile: bool
    engine: bool
    fp8: bool
    fp8_kv: bool
    precision: Precision | None
    tasks: list[str]
    ways: list[str]
    sms: list[int]
    clients: int
    window: float
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
    parser.add_argument("--spike", action="store_true", help="measure encoding beside decoding")
    parser.add_argument("--profile", action="store_true", help="measure pairs, search for schedules, show what bounds")
    parser.add_argument("--engine", action="store_true", help="measure all ways in the engine")
    parser.add_argument("--tasks", nargs="+", choices=_TASKS, default=["intervals"], help="with --engine, in order")
    parser.add_argument(
        "--ways", nargs="+", choices=tuple(WAYS), default=["turns", "beside", "parts"], help="to encode, with --engine"
    )
    parser.add_argument("--sms", nargs="+", type=int, default=[68], help="of the encoder, in parts")
    parser.add_argument("--clients", type=int, default=8, help="that ask about images, with --engine")
    parser.add_argument("--window", type=float, default=10.0, help="seconds of a measurement in the engine")
    parser.add_argument("--fp8", action="store_true", help="multiply e4m3 in encodings and prompts, with --engine")
    parser.add_argument("--fp8-kv", action="store_true", help="keep keys and values in e4m3, with --engine")
    parser.add_argument(
        "--weights", dest="precision", choices=get_args(Precision), help="precision of the decoder's, with --engine"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each way in the engine, after a warm-up")
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
    if not (options.spike or options.profile or options.engine):
        parser.error("give --spike, --profile, --engine or several of them")
    options.shape, options.only = "moondream2", []
    try:
        options.where = resolve_device(options.device)
    except SettingsError as error:
        parser.error(str(error))
    options.command = " ".join(["python -m bench.overlap", *(sys.argv[1:] if arguments is None else arguments)])
    return options


if __name__ == "__main__":
    show_log()
    sys.exit(main())
