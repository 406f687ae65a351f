"""Keep the log of a training run, and draw it: `python -m bench.nano.training.curves RUN`.

It writes nano-training.png into bench/results, and beside it nano-training.jsonl: the lines of the run's `log.jsonl`,
but with one line of means for several lines of losses.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.nano import ROOT

NAME = "nano-training"
_PROGRESS = ("step", "minutes", "scenes")
_LABELS = {"f1": "all", "f1_10": "1 to 10 objects", "f1_25": "11 to 25", "f1_50": "26 to 50"}
_COLUMNS = 4  # of plots
_SKIPPED = 1  # lines at the beginning, in which throw-away heads start from random weights

Line = dict[str, float]


def read_log(path: Path) -> list[Line]:
    """Read a log of JSON lines; of lines that say the same, the first."""
    lines: list[Line] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for place, line in enumerate(lines) if line not in lines[:place]]


def condense(lines: Sequence[Line], every: int) -> Iterator[Line]:
    """Yield lines of F1 as they are, and the mean of each `every` lines of losses with the progress of the last.

    Losses after the last whole group are left out: the mean of fewer lines would stand out for its noise.
    """
    kept: list[Line] = []
    for line in lines:
        if "f1" in line:
            yield line
            continue
        kept.append(line)
        if len(kept) == every:
            yield _mean(kept)
            kept = []


def _mean(lines: Sequence[Line]) -> Line:
    last = lines[-1]
    losses = {name: round(sum(line[name] for line in lines) / len(lines), 4) for name in last if name not in _PROGRESS}
    return {name: last[name] for name in _PROGRESS} | losses


def draw_curves(lines: Sequence[Line], path: Path) -> None:
    """Draw F1 by crowd and each loss over the minutes of the run."""
    from matplotlib import pyplot  # training itself needs no plots

    judged, trained = ([line for line in lines if ("f1" in line) == wanted] for wanted in (True, False))
    names = [name for name in trained[-1] if name not in _PROGRESS]
    rows = -(-(1 + len(names)) // _COLUMNS)
    figure, axes = pyplot.subplots(rows, _COLUMNS, sharex=True, squeeze=False, figsize=(11, 2.4 * rows))
    first, *others = axes.flat
    for name, label in _LABELS.items():
        first.plot([line["minutes"] for line in judged], [line[name] for line in judged], marker=".", label=label)
    first.set_title("F1 on scenes never trained on", fontsize=9)
    first.legend(fontsize=7)
    trained = trained[_SKIPPED:] or trained
    for name, axis in zip(names, others, strict=False):
        axis.plot([line["minutes"] for line in trained], [line[name] for line in trained], linewidth=1)
        axis.set_title(f"loss: {name.replace('_', ' ')}", fontsize=9)
    for axis in others[len(names) :]:
        axis.set_axis_off()
    for axis in axes[-1]:
        axis.set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder that training wrote")
    parser.add_argument("--every", type=int, default=4, help="lines of losses for each line that is kept")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
    options = parser.parse_args(arguments)
    kept = list(condense(read_log(options.run / "log.jsonl"), options.every))
    text = "".join(json.dumps(line) + "\n" for line in kept)
    (options.out / f"{NAME}.jsonl").write_text(text, encoding="utf-8")
    draw_curves(kept, options.out / f"{NAME}.png")


if __name__ == "__main__":
    main()
