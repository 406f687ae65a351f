"""What happens to a server that is abused for hours: `python -m bench.campaign`, or `make campaign`.

Trials run one after the other, each against servers of its own, until each has reached its aim or the time is over. A
new run goes on behind the last one's numbers: counts add up in the state file, from which the report is written. A
failure does not end the campaign; the exit code is 1 if there was one in this run.

Runs side by side need a state and a seed each; `--add` puts such states together, and runs no trial.
"""

import argparse
import contextlib
import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.campaign import clock, compiling, descriptors, disk, images, kills, overload, requests, slow, soak, terms
from bench.campaign.report import page
from bench.campaign.state import State, Tally
from bench.campaign.trial import TINY, Setup, Trial

RESULTS = Path(__file__).resolve().parents[1] / "results"
MODULES = (images, requests, slow, overload, kills, terms, disk, descriptors, clock, compiling, soak)
TRIALS = tuple(module.TRIAL for module in MODULES)
_PACKAGES = ("torch", "pillow", "starlette", "uvicorn", "schemathesis", "hypothesis")
_TOLD_S = 10.0  # between two lines of progress where there is no terminal


def main(arguments: Sequence[str] | None = None, trials: Sequence[Trial] = TRIALS) -> int:
    """Run the campaign; returns 1 if a case failed."""
    options = _parse(arguments, trials)
    state = State.load(options.state)
    if options.add:
        longest = {trial.name for trial in trials if not trial.adds_up}
        for path in options.add:
            state.add(State.load(path), longest)
        _save(state, options, trials)
        return 0
    chosen = [trial for trial in trials if trial.name in options.only]
    waiting = [trial for trial in chosen if _counted(state, trial) < trial.aim] or chosen
    begun, load = time.monotonic(), os.getloadavg()[0]
    until = begun + (60 * options.minutes if options.minutes else math.inf)
    run = {
        "date": time.strftime("%Y-%m-%d"),
        "seed": options.seed,
        "trials": [trial.name for trial in waiting],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": _versions(),
        "load_before": load,
        "load_after": load,
        "seconds": 0.0,
    }
    state.runs.append(run)
    failed = 0
    for index, trial in enumerate(waiting):
        share = (until - time.monotonic()) / (len(waiting) - index)
        setup = Setup(options.seed, time.monotonic() + share, options.model)
        failed += _run(trial, setup, state, options.state)
        run |= {"seconds": time.monotonic() - begun, "load_after": os.getloadavg()[0]}
        _save(state, options, trials)
    print(f"{options.output}: {failed} failed in this run", flush=True)
    return int(failed > 0)


def _save(state: State, options: argparse.Namespace, trials: Sequence[Trial]) -> None:
    state.save(options.state)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page(state, trials), encoding="utf-8")


def _parse(arguments: Sequence[str] | None, trials: Sequence[Trial]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [trial.name for trial in trials]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="TRIAL", help=", ".join(names))
    parser.add_argument("--minutes", type=float, help="divided among trials below their aim (else: until all have it)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, default=RESULTS / "trust.json")
    parser.add_argument("--output", type=Path, default=RESULTS / "trust.md")
    parser.add_argument("--add", type=Path, nargs="+", default=[], metavar="STATE", help="add other runs' states")
    parser.add_argument("--model", type=Path, default=TINY, help="checkpoint that is served (else: a tiny random one)")
    options = parser.parse_args(arguments)
    if options.minutes is not None and options.minutes <= 0:
        parser.error("--minutes must be above 0")
    for path in options.add:
        if not path.is_file():
            parser.error(f"--add: there is no {path}")
    return options


def _run(trial: Trial, setup: Setup, state: State, path: Path) -> int:
    """Run a trial until its time is over or its aim reached; returns the number of failures."""
    before = state.tallies.get(trial.name, Tally())
    aim = trial.aim if before.counted < trial.aim else 0
    tally = before if trial.adds_up else Tally(next=before.next)
    failed_before, seconds_before, begun, told = tally.failed, tally.seconds, time.monotonic(), 0.0
    batches = trial.run(setup, tally.next)
    with tqdm(total=aim or None, initial=tally.counted, desc=trial.name, disable=not sys.stderr.isatty()) as bar:
        try:
            with contextlib.closing(batches):
                for outcomes in batches:
                    tally.add(outcomes, setup.seed)
                    tally.seconds = seconds_before + time.monotonic() - begun
                    state.tallies[trial.name] = tally if trial.adds_up else tally.longer_of(before)
                    state.save(path)
                    bar.update(len(outcomes))
                    if bar.disable and time.monotonic() - told > _TOLD_S:
                        told = time.monotonic()
                        print(f"{trial.name}: {tally.counted} of {trial.aim}, {tally.failed} failed", flush=True)
                    # A trial that is one long run goes on as long as it may: its last outcome judges the whole run.
                    if setup.left_s <= 0 or (0 < aim <= tally.counted and (trial.adds_up or math.isinf(setup.left_s))):
                        break
        except Exception as error:  # the other trials go on
            tally.fail(tally.next, setup.seed, f"the trial broke off: {error!r}")
            tally.next += 1
            traceback.print_exc()
            state.tallies[trial.name] = tally if trial.adds_up else tally.longer_of(before)
            state.save(path)
    print(f"{trial.name}: {tally.counted} of {trial.aim}, {tally.failed} failed", flush=True)
    return tally.failed - failed_before


def _counted(state: State, trial: Trial) -> int:
    return state.tallies.get(trial.name, Tally()).counted


def _versions() -> Mapping[str, Any]:
    packages = {name: version(name) for name in _PACKAGES}
    return {"photonlite": version("photonlite"), "Python": platform.python_version(), **packages}


if __name__ == "__main__":
    sys.exit(main())
