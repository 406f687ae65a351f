"""The chart of a whole run: `python -m bench.bubble.chart whole-run.json whole-run.png`.

Apart from the measurement, so that a machine that measures needs no matplotlib.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib

from bench.bubble.whole_run import WholeRun, load_runs

COLORS = {1: "#d55e00", 2: "#0072b2"}
"""By depth: the vermilion and blue of Okabe and Ito, which colour-blind readers tell apart."""

NAMES = {1: "blocking (depth 1)", 2: "pipelined (depth 2)"}


def draw_runs(found: Sequence[WholeRun], made: str, path: Path) -> None:
    """Draw busy share and period over the tokens of each sequence.

    Args:
        found: The runs, one for each depth.
        made: Stands below.
        path: Of the picture.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(
        2, 1, figsize=(10, 6.6), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    for one in found:
        steps = [stretch.step for stretch in one.stretches]
        color = COLORS[one.depth]
        label = f"{NAMES[one.depth]}: busy {one.busy:.1%} of {one.seconds:.1f} s"
        top.plot(steps, [100 * stretch.busy for stretch in one.stretches], color=color, label=label, linewidth=1.8)
        bottom.plot(steps, [1e3 * stretch.period for stretch in one.stretches], color=color, linewidth=1.8)
    least = min(stretch.busy for one in found for stretch in one.stretches)
    top.set_ylim(max(0, 5 * int(100 * least / 5) - 5), 101)
    top.set_ylabel("device busy (%)")
    top.legend(loc="lower right", frameon=False)
    bottom.set_ylim(bottom=0)
    bottom.set_ylabel("period of a step (ms)")
    bottom.set_xlabel("tokens of each answer so far")
    bottom.set_xlim(0, max(stretch.step for one in found for stretch in one.stretches))
    for axes in (top, bottom):
        axes.grid(color="#dde1e7", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    streams, tokens = found[0].streams, found[0].tokens // found[0].streams
    title = f"{streams} streams, {tokens:,} tokens each: the device over the whole run"
    top.set_title(title, loc="left", weight="bold")
    figure.supxlabel(made, fontsize=8, color="#6b7280")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.bubble.chart", description=__doc__)
    parser.add_argument("data", type=Path, help="written by `python -m bench.bubble --only whole --data DIR`")
    parser.add_argument("picture", type=Path, help="PNG or SVG file to write")
    options = parser.parse_args(arguments)
    found, made = load_runs(options.data)
    draw_runs(found, made, options.picture)
    print(options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
