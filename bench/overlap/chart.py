"""The plot of `bench.overlap --spike`: `python -m bench.overlap.chart spike.json overlap.png`.

Apart from the measurement, so that a machine that measures needs no matplotlib.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.bubble.report import many
from bench.overlap.rows import HOWS, PARTS, TUNED, Row, load_rows

COLORS = ("#6b7280", "#e69f00", "#0072b2", "#cc79a7", "#009e73")
"""By way of running, in the order of `HOWS`: grey and four of Okabe and Ito's colours."""


def draw_rows(rows: Sequence[Row], made: str, path: Path) -> None:
    """Draw sums of shares and 99th percentiles of the time between tokens over the SMs of decoding.

    Args:
        rows: As measured; those without parts are lines across.
        made: Stands below.
        path: Of the image.
    """
    numbers = sorted({row.streams for row in rows})
    figure = Figure(figsize=(4.2 * len(numbers) + 1.5, 7.6), layout="constrained")
    panels: list[list[Axes]] = figure.subplots(2, len(numbers), sharex=True, sharey="row", squeeze=False).tolist()
    for streams, top, below in zip(numbers, *panels, strict=True):
        for how, color in zip(HOWS, COLORS, strict=True):
            found = sorted((row for row in rows if row.how == how and row.streams == streams), key=lambda row: row.sms)
            _plot(top, how, color, found, [row.sum for row in found])
            _plot(below, how, color, found, [1e3 * row.decode.p99 for row in found])
        top.set_title(many(streams), loc="left", weight="bold")
        below.set_xlabel("SMs of decoding")
        for axes in (top, below):
            axes.grid(color="#dde1e7", linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
        below.set_ylim(bottom=0)
    panels[0][0].set_ylabel("sum of shares")
    panels[1][0].set_ylabel("time between tokens, p99 (ms)")
    handles = {label: line for axes in panels[0] for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(HOWS), frameon=False)
    figure.supxlabel(made, fontsize=8, color="#6b7280")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def _plot(axes: Axes, how: str, color: str, found: Sequence[Row], values: Sequence[float]) -> None:
    if how in (PARTS, TUNED):
        if found:
            style = "o-" if how == PARTS else "D"
            axes.plot([row.sms[0] for row in found], values, style, color=color, label=how, linewidth=1.8)
        return
    for value in values:
        axes.axhline(value, color=color, label=how, linewidth=1.6, linestyle="--")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.overlap.chart", description=__doc__)
    parser.add_argument("data", type=Path, help="written by `python -m bench.overlap --spike --data DIR`")
    parser.add_argument("image", type=Path, help="PNG or SVG file to write")
    options = parser.parse_args(arguments)
    rows, about = load_rows(options.data)
    draw_rows(rows, f"{about['machine']}, {about['date']}", options.image)
    print(options.image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
