"""The chart of a whole run: `python -m bench.bubble.chart whole-run.json whole-run.png`.

Apart from the measurement, so that a machine that measures needs no matplotlib.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from bench.bubble.whole_run import WholeRun, load_runs

COLORS = {1: "#d55e00", 2: "#0072b2"}
"""By depth: the vermilion and blue of Okabe and Ito, which colour-blind readers tell apart."""

NAMES = {1: "blocking (depth 1)", 2: "pipelined (depth 2)"}


def draw_runs(found: Sequence[WholeRun], made: str, path: Path) -> None:
    """Draw busy share, idle time and period over the tokens of each sequence.

    Args:
        found: The runs, one for each depth.
        made: Stands below.
        path: Of the image.
    """
    figure = Figure(figsize=(10, 7.4), layout="constrained")
    panels: list[Axes] = list(figure.subplots(3, 1, sharex=True, height_ratios=(5, 3, 3)))
    for one in found:
        steps = [(stretch.step + stretch.steps / 2) for stretch in one.stretches]
        busy = [100 * stretch.busy for stretch in one.stretches]
        idle = [1e3 * stretch.period * (1 - stretch.busy) for stretch in one.stretches]
        period = [1e3 * stretch.period for stretch in one.stretches]
        label = f"{NAMES[one.depth]}: busy {one.busy:.2%} of {one.seconds:.1f} s"
        for axes, values in zip(panels, (busy, idle, period), strict=True):
            axes.plot(steps, values, color=COLORS[one.depth], label=label, linewidth=1.8)
    least = min(stretch.busy for one in found for stretch in one.stretches)
    panels[0].set_ylim(max(0, 10 * int(10 * least - 0.5)), 101)
    panels[0].set_ylabel("device busy (%)")
    panels[0].legend(loc="lower right", frameon=False, fontsize=12)
    panels[1].set_ylabel("idle in a step (ms)")
    panels[2].set_ylabel("step (ms)")
    panels[2].set_xlabel("tokens of each answer so far")
    panels[2].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for axes in panels[1:]:
        axes.set_ylim(bottom=0)
    streams, tokens = found[0].streams, found[0].tokens // found[0].streams
    panels[0].set_xlim(0, tokens)
    for axes in panels:
        axes.grid(color="#dde1e7", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    title = f"{streams} streams, {tokens:,} tokens each: the device from the first launch to the last token"
    panels[0].set_title(title, loc="left", weight="bold")
    figure.align_ylabels(panels)
    figure.supxlabel(made, fontsize=8, color="#6b7280")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.bubble.chart", description=__doc__)
    parser.add_argument("data", type=Path, help="written by `python -m bench.bubble --only whole --data DIR`")
    parser.add_argument("image", type=Path, help="PNG or SVG file to write")
    options = parser.parse_args(arguments)
    found, made = load_runs(options.data)
    draw_runs(found, made, options.image)
    print(options.image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
