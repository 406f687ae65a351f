"""`photonlite tune`: what a card gives to encoding and decoding side by side, and schedules made of it."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import photonlite
from photonlite.cli.checkpoints import print_table
from photonlite.cli.run import import_extra
from photonlite.errors import TuningError
from photonlite.settings import user_cache
from photonlite.tuning.schedule import Tuning, find_tuning, load_tuning, save_tuning, tuning_file

_MISSING = "photonlite tune needs the package {name}: pip install 'photonlite[tune]'"


def run_tune(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Show a file, or the tuning of a model on this card, which is made if there is none; returns the exit code 0."""
    if options.file is not None:
        path = Path(options.file)
        tuning = load_tuning(path)
    else:
        path, tuning = _tuned(options, user_cache(environ) / "tuning")
    if options.json:
        print(json.dumps(json.loads(path.read_bytes())))
    else:
        _show(tuning)
    return 0


def _tuned(options: argparse.Namespace, folder: Path) -> tuple[Path, Tuning]:
    loading: Any = import_extra("photonlite.tuning.loading", _MISSING)
    model = loading.open_model(options.model, options.device, options.dtype, options.revision, photonlite.__version__)
    if not options.again and (known := find_tuning(folder, model.made_for)) is not None:
        try:
            return known, load_tuning(known, model.made_for)
        except TuningError as error:
            print(f"photonlite: measuring again: {error}", file=sys.stderr)
    tuning = model.tune(lambda line: print(line, file=sys.stderr, flush=True))
    path = tuning_file(folder, model.made_for)
    save_tuning(path, tuning)
    named = "" if options.model is None else f" --model {shlex.quote(options.model)}"
    print(f"written to {path}: photonlite serve{named} --encoding beside uses it", file=sys.stderr)
    return path, tuning


def _show(tuning: Tuning) -> None:
    head = ("SMS OF DECODING", "R", "P(R)", "LEAST TO MOST")
    points = tuning.memory.points
    rows = [
        (str(one.sms), f"{one.share:.2f}", f"{one.speed:.2f}", f"{one.low:.2f} to {one.high:.2f}") for one in points
    ]
    print_table(head, rows)
    print()
    lines = []
    for streams, one in tuning.streams.items():
        times = f"{1e3 * one.turns_s:.2f} ms", f"{1e3 * one.planned_s:.2f} ms", f"{one.gain:.2f}"
        lines.append((f"{streams} streams", *times))
    print_table(("SCHEDULE", "IN TURNS", "PLANNED", "GAIN"), lines)
    print()
    sms = tuning.decode_sms
    way = "takes turns" if sms is None else f"gives decoding {sms} SMs, encoding {tuning.sms - sms}"
    print(f"the schedule of {tuning.use} streams is used: it {way}")
