"""The page of the campaign, written from its state."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from bench.bubble.report import table
from bench.campaign.state import State, Tally
from bench.campaign.trial import Trial

_SHOWN_FAILURES = 20  # of a trial
_SHOWN_RUNS = 100


def page(state: State, trials: Sequence[Trial]) -> str:
    """Return the report as Markdown."""
    counted = [(trial, state.tallies.get(trial.name, Tally())) for trial in trials]
    parts = [
        "# Trust: what a server has been through\n",
        "Made by `make campaign` (`python -m bench.campaign`), which goes on where it ended; `trust.json` has all "
        "numbers.\n",
        "## Trials\n",
        table(("trial", "aim", "counted", "failed", "hours"), [_row(trial, tally) for trial, tally in counted]),
        "\n## Figures: the worst of all cases, and sums\n",
        *(f"- **{trial.name}**: {_figures(tally)}" for trial, tally in counted if tally.counted),
        "\n## How to read this\n",
        _HOW,
        *(f"- **{trial.name}**: {trial.judged}." for trial in trials),
        "\n## Failures\n",
        *_failures(counted),
        "\n## Runs\n",
        table(("date", "seed", "trials", "minutes", "machine", "versions"), list(_runs(state))),
    ]
    return "\n".join(parts) + "\n"


_HOW = """Each case is drawn from its seed and number, so a failure can be repeated: numbers below are those of the run
that had the seed. Everything runs as for a user: `photonlite serve` with its supervisor and worker processes, over real
sockets; the model has random weights and is tiny, so times say nothing about answers. Where not all that was aimed at
has been counted, the rest has not been tried. Times hold for the machine and the load of their run. Runs that differ
only in seed, time and load share a row of the last table; they may have run side by side. The soak counts
within one run of a server: the longest is shown. A full disk is `/dev/full` in the place of stdout and stderr, and
ENOSPC raised by Python's `tempfile`; the wall clock is shifted in Python's `time`. What makes a case fail:
"""


def _row(trial: Trial, tally: Tally) -> tuple[str, ...]:
    return trial.title, f"{trial.aim:,}", f"{tally.counted:,}", str(tally.failed), f"{tally.seconds / 3600:.2f}"


def _figures(tally: Tally) -> str:
    figures = [
        f"{name} {value:.3g}" if abs(value) < 1000 else f"{name} {value:.0f}" for name, value in tally.figures.items()
    ]
    counts = [f"{name}: {count:,}" for name, count in sorted(tally.counts.items())]
    return "; ".join(filter(None, (", ".join(figures), ", ".join(counts)))) + "."


def _failures(counted: Sequence[tuple[Trial, Tally]]) -> Iterator[str]:
    if not any(tally.failed for _, tally in counted):
        yield "None."
    for trial, tally in counted:
        for failure in tally.failures[:_SHOWN_FAILURES]:
            line = failure["line"].replace("`", "'")
            note = f": {failure['note']}" if "note" in failure else ""  # added by hand to the state file
            yield f"- {trial.name} {failure['number']} (seed {failure['seed']}): `{line}`{note}"
        if tally.failed > _SHOWN_FAILURES:
            yield f"- {trial.name}: {tally.failed - _SHOWN_FAILURES} more; `trust.json` has the first hundred"


def _runs(state: State) -> Iterator[tuple[str, ...]]:
    """Yield a row for each series of runs that differ in seed, time and load only."""
    for _, group in groupby(state.runs[-_SHOWN_RUNS:], _alike):
        runs = list(group)
        before, after = min(run["load_before"] for run in runs), max(run["load_after"] for run in runs)
        yield (
            runs[0]["date"],
            ", ".join(str(run["seed"]) for run in runs),
            ", ".join(runs[0]["trials"]),
            ", ".join(f"{run['seconds'] / 60:.0f}" for run in runs),
            f"{runs[0]['machine']}, load {before:.1f} to {after:.1f}",
            ", ".join(f"{name} {version}" for name, version in runs[0]["versions"].items()),
        )


def _alike(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return run["date"], run["trials"], run["machine"], run["versions"]
