"""Tables and aims, as markdown. Times of a CPU do not transfer: they are given as shares of T_block."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.bubble.comparison import Comparison, DepthFigures, streams_predicted, streams_share
from bench.bubble.cost_model import PUBLISHED, STUDY, predicted_gain, published_share, step_zombie_chance
from bench.bubble.figures import PHASES, Quartiles, Spread, mean, median_interval, middle

IDLE_US, BUSY, TICK_MS_1, TICK_MS_32, POINTS, DETECT = 20.0, 0.994, 0.4, 1.2, 2.0, 1.05
"""Aims: idle device at one stream, busy share and host tick at 32, host tick at 1, prediction, boxes against text."""

NOTES = """\
- T_block, T_pipe: the period at depth 1 and 2, from one commit to the next at full batch; mean of a round, median of
  the rounds that were not traced. Quartiles of rounds stand behind medians. The speed-up is the median of pairs of
  rounds, each of which ran one after the other. 95%: the interval that holds the median (sign test).
- Forward, finalize, period, idle, busy and the host's times come from traced rounds, from steady decoding at full batch
  alone: spans that lie between the last prefill's commit and the end of the first sequence. Tracing costs the host some
  time in each tick, which is part of them. Idle: the time in a period in which the compute stream ran nothing. Busy:
  the share of all that time in which it ran something.
- Host tick: from the end of one wait to the end of the next, less the time until the results had arrived. Plan, launch,
  commit and finalize are its parts, mean of a tick; the rest is reading results, tracing and the loop.
- L: tokens of a request, the end included. z: the share of the pipelined decode phase that zombies cost; all formulas
  are derived in `bench/bubble/cost_model.py`. "Streams": streams of equal rate, ``B/L (T(B) - T(B-1)) / T(B)``.
  "Batch": a batch that runs to its end, as here, T(B) over the decode phase. Measured: what the phase loses when
  budgets tell the host where each sequence ends, so that there are no zombies; each round beside one with zombies.
- Prediction: T_block / T_pipe x (1 - z), the speed-up of a step less the zombies. Observation: the ratio of the times
  of whole decode phases, from the commit of the last prefill until the engine is free again, zombies' steps and
  shrinking batches included. Both are medians of pairs of rounds; their difference is taken within each pair, because
  the host of a blocking engine is slower at some times than at others. The aim is reached where the 95% interval lies
  within it. To the last token: the observation without the last zombie's step. The garbage collector rests during a
  round.
- Stops are injected on the device: all sequences end at one position, prompts differ in length, no host knows."""


@dataclass(frozen=True, slots=True)
class Aim:
    """An aim and its result.

    Attributes:
        text: What.
        value: What came out.
        reached: Whether it is enough.
    """

    text: str
    value: str
    reached: bool


class Writer:
    """Writes figures for a card, in milliseconds and microseconds, or for a CPU, as shares.

    Args:
        hardware: Its name.
        absolute: Whether times mean something; else they are divided by T_block.
    """

    def __init__(self, hardware: str, *, absolute: bool) -> None:
        self._hardware = hardware
        self._absolute = absolute

    def speed(self, found: Iterable[Comparison]) -> str:
        """Write the first table of the study: hardware, streams, T_block, T_pipe, speed-up."""
        unit = " (ms)" if self._absolute else ""
        head = ["hardware", "workload", "streams", f"T_block{unit}", "quartiles", f"T_pipe{unit}", "quartiles"]
        head += ["speed-up"]
        rows = []
        for one in found:
            t_block, t_pipe = (self._ms(depth.period, one) for depth in (one.block, one.pipe))
            spreads = [self._quartiles(depth.periods, one) for depth in (one.block, one.pipe)]
            name = [self._hardware, one.workload, str(one.streams)]
            rows.append([*name, t_block, spreads[0], t_pipe, spreads[1], percent(one.gain)])
        return table(head, rows, left=2)

    def model(self, found: Sequence[Comparison]) -> str:
        """Write the second: the cost of zombies, and predictions against measurements."""
        head = ["workload", "streams", "L", "z, streams", "z, batch", "z, measured", "95%"]
        head += ["predicted, streams", "predicted, batch", "observed", "95%", "to the last token"]
        rows = []
        for one in found:
            shares = one.measured_shares
            share, interval = median_interval(shares), median_interval(one.observed_rounds)
            rows.append(
                [
                    one.workload,
                    str(one.streams),
                    f"{one.pipe.length:.1f}",
                    f"{streams_share(one, found):.2%}",
                    f"{one.batch_share:.2%}",
                    f"{statistics.median(shares):.2%}",
                    f"{share[0]:.2%} to {share[1]:.2%}",
                    percent(streams_predicted(one, found)),
                    percent(one.batch_predicted),
                    percent(one.observed.median),
                    f"{percent(interval[0])} to {percent(interval[1])}",
                    percent(one.observed_answers),
                ]
            )
        return f"{table(head, rows)}\n\n{self._differences(found)}"

    def _differences(self, found: Sequence[Comparison]) -> str:
        """Write how far observations are from predictions in the same pairs of rounds, in percentage points."""
        head = ["observed less predicted (points)", "streams", "model", "median", "95%", "quartiles", "p5 to p95"]
        rows = []
        for one in found:
            for model, share in (("streams", streams_share(one, found)), ("batch", one.batch_share)):
                points = [100 * value for value in one.differences(share)]
                interval, middle_half, outer = median_interval(points), Quartiles.of(points), Spread.of(points)
                spans = [interval, (middle_half.low, middle_half.high), (outer.low, outer.high)]
                cells = [f"{low:+.1f} to {high:+.1f}" for low, high in spans]
                rows.append([one.workload, str(one.streams), model, f"{statistics.median(points):+.1f}", *cells])
        return table(head, rows)

    def depths(self, found: Iterable[Comparison]) -> str:
        """Write both depths in detail."""
        ms, us = (" (ms)", " (us)") if self._absolute else ("", "")
        head = ["workload", "streams", "depth", f"forward{ms}", f"finalize{ms}", f"period{ms}", "p5", "p95"]
        head += [f"idle{us}", "idle, mean", "busy", "steps", "tokens", "zombie rows"]
        rows = [self._depth(one, depth, number) for one in found for number, depth in _both(one)]
        return table(head, rows)

    def host(self, found: Iterable[Comparison]) -> str:
        """Write what the host does in a tick."""
        unit = " (us)" if self._absolute else ""
        head = ["workload", "streams", "depth", f"tick{unit}", "p5", "p95", *PHASES]
        rows = []
        for one in found:
            for number, depth in _both(one):
                tick = Spread.of(depth.steady.tick_s)
                times = [tick.median, tick.low, tick.high, *(depth.steady.phase_s[name] for name in PHASES)]
                rows.append([one.workload, str(one.streams), str(number), *(self._us(value, one) for value in times)])
        return table(head, rows)

    def agreement(self, found: Iterable[Comparison]) -> str:
        """Write how far the answers of both depths agree."""
        head = ["workload", "streams", "answers", "the same at both depths", "tokens", "before any difference"]
        rows = []
        for one in found:
            same = one.agreement
            counts = (one.streams, same.sequences, same.same, same.all_tokens, same.tokens)
            rows.append([one.workload, *(f"{count:,}" for count in counts)])
        return table(head, rows)

    def aims(self, found: Sequence[Comparison]) -> str:
        """Write the aims beside the results; on a CPU only those that are ratios."""
        head = ["aim", "measured", ""]
        rows = [[aim.text, aim.value, "reached" if aim.reached else "MISSED"] for aim in self._aims(found)]
        return table(head, rows, left=3)

    def line(self, one: Comparison) -> str:
        """Write a short summary for the terminal."""
        return (
            f"{one.workload}, {many(one.streams)}: T_block {self._ms(one.block.period, one)}, "
            f"T_pipe {self._ms(one.pipe.period, one)}, predicted {percent(one.batch_predicted)}, "
            f"observed {percent(one.observed.median)}, idle {self._us(middle(one.pipe.steady.idle_s), one)}, "
            f"busy {one.pipe.steady.busy:.2%}, host {self._us(middle(one.pipe.steady.tick_s), one)}, "
            f"answers the same: {one.agreement.same} of {one.agreement.sequences}"
        )

    def _aims(self, found: Sequence[Comparison]) -> list[Aim]:
        aims = [aim for one in found for aim in _absolute_aims(one)] if self._absolute else []
        for one in found:
            for model, share in (("streams", streams_share(one, found)), ("batch", one.batch_share)):
                low, high = (100 * end for end in median_interval(one.differences(share)))
                what = f"prediction ({model}) and observation within {POINTS:g} points"
                text = f"{one.workload}, {many(one.streams)}: {what}"
                aims.append(Aim(text, f"{low:+.1f} to {high:+.1f} points", -POINTS <= low <= high <= POINTS))
        words = {one.streams: one for one in found if one.workload == "text"}
        for one in found:
            if one.workload == "detect" and one.streams in words:
                ratio = one.pipe.period / words[one.streams].pipe.period
                text = f"detect, {many(one.streams)}: period at most {DETECT - 1:.0%} above that of text"
                aims.append(Aim(text, percent(ratio), ratio <= DETECT))
        return aims

    def _depth(self, one: Comparison, depth: DepthFigures, number: int) -> list[str]:
        steady = depth.steady
        period = Spread.of(steady.period_s)
        times = [mean(steady.forward_s), mean(steady.finalize_s), period.median, period.low, period.high]
        idle = [middle(steady.idle_s), mean(steady.idle_s)]
        return [
            one.workload,
            str(one.streams),
            str(number),
            *(self._ms(value, one) for value in times),
            *(self._us(value, one) for value in idle),
            f"{steady.busy:.2%}",
            f"{depth.steps:,}",
            f"{depth.tokens:,}",
            f"{depth.zombies:,}",
        ]

    def _quartiles(self, values: Sequence[float], one: Comparison) -> str:
        spread = Quartiles.of(values)
        return f"{self._ms(spread.low, one)} to {self._ms(spread.high, one)}"

    def _ms(self, seconds: float, one: Comparison) -> str:
        return f"{1e3 * seconds:.3f}" if self._absolute else f"{seconds / one.block.period:.3f}"

    def _us(self, seconds: float, one: Comparison) -> str:
        return f"{1e6 * seconds:.0f}" if self._absolute else f"{seconds / one.block.period:.2%}"


def published() -> str:
    """Write the rows of the published study, its predictions beside those of the formulas here."""
    head = ["hardware", "streams", "T_block (ms)", "T_pipe (ms)", "L", "a zombie in a step", "z, streams", "predicted"]
    head += ["the study's", "with z = 1/L", "observed"]
    rows = []
    for row in PUBLISHED:
        share = published_share(row)
        gains = [predicted_gain(row.t_block / row.t_pipe, z) for z in (share, 1 / row.length)]
        rows.append(
            [
                row.hardware,
                str(row.streams),
                f"{row.t_block:.2f}",
                f"{row.t_pipe:.2f}",
                str(row.length),
                f"{step_zombie_chance(row.streams, row.length):.1%}",
                f"{share:.2%}",
                f"{gains[0] - 1:+.2%}",
                percent(row.predicted),
                f"{gains[1] - 1:+.2%}",
                percent(row.observed),
            ]
        )
    source = "Source of the periods, L, the study's predictions and what it observed: "
    return f"{source}{STUDY}.\n\n{table(head, rows)}"


def many(streams: int) -> str:
    """Format the number of streams."""
    return "1 stream" if streams == 1 else f"{streams} streams"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Write an aligned markdown table; the first `left` columns are text."""
    rows = [list(row) for row in rows]
    widths = [max(3, *(len(row[i]) for row in [head, *rows])) for i in range(len(head))]
    sides: list[Callable[[str, int], str]] = [str.ljust if i < left else str.rjust for i in range(len(head))]
    lines = [
        "| " + " | ".join(side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)) + " |"
        for row in [list(head), *rows]
    ]
    rule = "|".join("-" * (width + 2) if i < left else "-" * (width + 1) + ":" for i, width in enumerate(widths))
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def _absolute_aims(one: Comparison) -> list[Aim]:
    steady, name = one.pipe.steady, f"{one.workload}, {many(one.streams)}"
    idle, tick = 1e6 * middle(steady.idle_s), 1e3 * middle(steady.tick_s)
    aims = []
    if one.streams == 1:
        aims.append(Aim(f"{name}: device idle per period at most {IDLE_US:g} us", f"{idle:.1f} us", idle <= IDLE_US))
        aims.append(Aim(f"{name}: host tick at most {TICK_MS_1:g} ms", f"{tick:.3f} ms", tick <= TICK_MS_1))
    if one.streams == 32:
        aims.append(Aim(f"{name}: device busy at least {BUSY:.1%}", f"{steady.busy:.2%}", steady.busy >= BUSY))
        aims.append(Aim(f"{name}: host tick at most {TICK_MS_32:g} ms", f"{tick:.3f} ms", tick <= TICK_MS_32))
    return aims


def _both(one: Comparison) -> tuple[tuple[int, DepthFigures], tuple[int, DepthFigures]]:
    return (1, one.block), (2, one.pipe)


def percent(factor: float) -> str:
    """Format a factor as a relative change."""
    return f"{factor - 1:+.1%}"
