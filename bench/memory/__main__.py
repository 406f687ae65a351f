"""Compare routers where memory is short: `python -m bench.memory`.

The engine's own core, scheduler and cache run on a device that is a table of times, fitted to measurements on an H200,
on a virtual clock: requests of published length distributions arrive at random. Figures are those of the model, good
for comparing one router with another. The time of a plan is measured on this machine.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

import torch

from bench.bubble.report import table
from bench.gpu.page import Page
from bench.gpu.samples import Sample
from bench.memory.bandwidth import AIM, measure
from bench.memory.load import LENGTHS, MAX_CONTEXT, MAX_TOKENS, PAGE, Answer, Lengths, Memory, Seen, Words
from bench.memory.plots import PALETTE, Line, Panel, draw
from bench.memory.riding import modelled_table, on_device
from photonlite.config import EngineConfig, RouterRule
from photonlite.models.base import ModelShape
from photonlite.pauses import short_collections
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.router import Router
from photonlite.sequence import Sequence as EngineSequence

SHARES = (0.8, 1.0, 1.1, 1.2, 1.35, 1.5)
"""Static budgets that are tried."""

LOADS = (0.5, 0.75, 0.9, 1.0, 1.2, 1.5)
"""Offered loads, as shares of about what the best router can answer; the last is the overload of the first table."""

WARM_UP_S = 4.0
"""Virtual seconds after which the pages have filled."""

NOTES = f"""\
- Log-normal lengths, inputs cut to {MAX_CONTEXT - MAX_TOKENS - 1:,} and answers to {MAX_TOKENS:,} tokens, which is also
  what each request sets as its limit; Moondream 2's shape in bfloat16, pages of 16 positions.
- tokens/s: of answers, each counted once. Given back: how often an answer lost its pages, and how many of these times
  they were swapped, over a bus of 50 GB/s. Pages: mean share in use.
- ms a token: from the request's arrival to its end, for each token of the answer, at the load nearest to 0.9.
- Peak: predicted / true peak of forecasts whose sequences have all ended, and the mean distance from 1.
- Article: the adaptive rule with its steps of + 100 and - 1,000 positions in place of shares and factors."""


class ArticleRouter(Router):
    """The router with the additive steps of the article about FasterTransformer and LightLLM."""

    def grow(self) -> None:
        self.budget = min(self.budget + 100, 1.5 * self.allocation)

    def shrink(self) -> None:
        self.budget = max(self.budget - 1000, self.least)


@dataclass(frozen=True, slots=True)
class Way:
    """A router that is compared."""

    name: str
    rule: RouterRule
    share: float = 1.0
    article: bool = False
    swaps: bool = False
    mixes: bool = False


ADAPTIVE, ARTICLE = Way("adaptive", "adaptive"), Way("article", "adaptive", article=True)
GREEDY, RESERVE = Way("greedy", "greedy"), Way("reserve", "reserve")
MIXED = Way("adaptive, mixed", "adaptive", mixes=True)
SWAPS = Way("greedy + swap", "greedy", swaps=True), Way("adaptive + swap", "adaptive", swaps=True)


def make_limits(lengths: Lengths, way: Way) -> Limits:
    config, rows = EngineConfig(), lengths.max_batch
    return Limits(
        rows, 2 * rows, config.max_prefill_tokens, config.max_crops, max_positions=MAX_CONTEXT,
        launch_budget_s=config.launch_budget_s, max_pause_s=config.max_pause_s, router=way.rule,
        router_budget=way.share, mixes=way.mixes, swap_pages=2 * lengths.positions // PAGE if way.swaps else 0,
    )  # fmt: skip


def run(lengths: Lengths, way: Way, load: float, seconds: float) -> Seen:
    limits = make_limits(lengths, way)
    memory = Memory(lengths, load * lengths.capacity, limits, seed=1)
    if way.article:
        scheduler = memory.core.scheduler
        scheduler.running.router = ArticleRouter(scheduler.cache, limits)
    return memory.run(seconds, warm_up_s=max(seconds / 3, WARM_UP_S))


def plan_times(waiting: int, running: int, plans: int) -> Sample:
    """Measure the seconds of plans that decode `running` sequences and hold one of `waiting` back."""
    lengths = Lengths("plan", (1, 1), (1, 1), positions=running * 1024, max_batch=2 * running, capacity=1)
    memory = Memory(lengths, 1.0, make_limits(lengths, ADAPTIVE))
    core, router = memory.core, memory.router
    words = (Token(1),) * 100
    for number in range(running + waiting):
        request = Request("plan", words, Words(MAX_TOKENS), MAX_TOKENS, SamplingSettings())
        sequence = EngineSequence(number, request, Answer(memory, 0.0), 1)
        core.scheduler.prepare(sequence)
        core.submit(sequence)
        if number == running - 1:
            while len(core.scheduler.running) < running:
                core.tick()
    seconds = []
    for _ in range(plans):
        router.budget = 1.0  # the first one that waits is looked at, and held back
        start = time.perf_counter()
        decision = core.scheduler.plan(memory.runner.now)
        seconds.append(time.perf_counter() - start)
        if decision.batch is None or len(decision.batch.rows) != running:
            raise AssertionError("a plan decodes all running sequences")
        for row in decision.batch.rows:
            row.sequence.tokens.append(Token(1))
    return Sample.of(seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="virtual seconds of each load, after a warm-up")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="of the plots; the last is the overload")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="static budgets")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="lengths with one of these words in their names")
    parser.add_argument("--plans", type=int, default=300, help="plans that are timed")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--device", help="a card, such as cuda, whose bandwidth of swapping is measured too")
    parser.add_argument("--riding", action="store_true", help="only what prompts that ride with decode steps change")
    help_rounds = "of the same on the device: one has some 35 prompts, of which a 99th percentile takes hundreds"
    parser.add_argument("--rounds", type=int, default=6, help=help_rounds)
    parser.add_argument("--output", type=Path, help="markdown file to write; plots go beside it")
    options = parser.parse_args(arguments)
    page = Page("Memory that is short: routers on a modelled device", options.output)
    if options.riding:
        _put_riding(page, options)
        print(page)
        return 0
    chosen = [one for one in LENGTHS if not options.only or any(word in one.name for word in options.only)]
    with ProcessPoolExecutor(options.workers) as pool:
        overload = _overload(pool, chosen, options)
        best = {one: max(options.shares, key=lambda share: overload[one, static(share)].rate) for one in chosen}
        curves = _curves(pool, chosen, overload, best, options)
    page.put("At overload", _table(chosen, overload, curves, best))
    page.put("A plan", _plan_table(options.plans))
    if options.device is not None:
        page.put("Swapping on a card", _bandwidth_table(options.device))
    page.put("How to read this", NOTES)
    if options.output is not None:
        _draw_plots(options.output, chosen, overload, curves, best)
    print(page)
    return 0


def _put_riding(page: Page, options: argparse.Namespace) -> None:
    """Compare prompts that take turns with decode steps and prompts that ride with them."""
    page.put("A prompt of 1,500 tokens beside 32 streams, modelled", modelled_table())
    page.put("Near the peak, modelled", _steady_table(options.seconds))
    if options.device is not None:
        page.put(f"Prompts beside streams on {options.device}", on_device(options.device, options.rounds))


def _steady_table(seconds: float) -> str:
    """Compare intervals between tokens, and the time of an answer a token, at a load of 0.9."""
    rows = []
    for one, way in product(LENGTHS, (ADAPTIVE, MIXED)):
        seen = run(one, way, 0.9, seconds)
        cells = []
        for values in (seen.gaps, seen.latencies):
            cells += [f"{1e3 * fmean(values):.2f}", f"{Sample.of(values).p99 / fmean(values):.2f}"]
        rows.append([one.name, "mixed" if way.mixes else "turns", *cells, f"{seen.rate:,.0f}"])
    columns = ["interval (ms)", "p99 / mean", "an answer, a token (ms)", "p99 / mean", "tokens/s"]
    return table(["lengths", "batching", *columns], rows)


def static(share: float) -> Way:
    return Way(f"static {share:g}", "static", share)


Runs = dict[tuple[Lengths, Way], Seen]
Curves = dict[tuple[Lengths, Way, float], Seen]


def _overload(pool: ProcessPoolExecutor, chosen: Sequence[Lengths], options: argparse.Namespace) -> Runs:
    ways = (GREEDY, RESERVE, ADAPTIVE, ARTICLE, *SWAPS, *map(static, options.shares))
    futures = {
        (one, way): pool.submit(run, one, way, options.loads[-1], options.seconds)
        for one, way in product(chosen, ways)
    }  # fmt: skip
    return {key: future.result() for key, future in futures.items()}


def _curves(
    pool: ProcessPoolExecutor,
    chosen: Sequence[Lengths],
    overload: Runs,
    best: dict[Lengths, float],
    options: argparse.Namespace,
) -> Curves:
    *lower, last = options.loads
    shown = [(one, way) for one in chosen for way in (GREEDY, RESERVE, ADAPTIVE, static(best[one]))]
    futures = {(*key, load): pool.submit(run, *key, load, options.seconds) for key, load in product(shown, lower)}
    known: Curves = {(*key, last): overload[key] for key in shown}
    return known | {key: future.result() for key, future in futures.items()}


def _table(chosen: Sequence[Lengths], overload: Runs, curves: Curves, best: dict[Lengths, float]) -> str:
    rows = []
    near = min((load for _, _, load in curves), key=lambda load: abs(load - 0.9))
    for one in chosen:
        greedy, top = overload[one, GREEDY].rate, overload[one, static(best[one])].rate
        for way in (GREEDY, RESERVE, static(best[one]), ARTICLE, ADAPTIVE, *SWAPS):
            seen, cells = overload[one, way], ["", ""]
            calm = curves.get((one, way, near))
            if calm is not None and calm.latencies:
                sample = Sample.of(calm.latencies)
                cells = [f"{1e3 * fmean(calm.latencies):.1f}", f"{1e3 * sample.p99:.0f}"]
            name = f"{one.name}: {one.kv_cache_bytes / 2**30:.1f} GiB, batch {one.max_batch}"
            figures = [f"{seen.rate:,.0f}", f"{seen.rate / greedy:.3f}", f"{seen.rate / top:.3f}"]
            given = f"{seen.victims / max(1, seen.answers):.3f} ({seen.swaps / max(1, seen.victims):.0%})"
            used = fmean(used for _, _, used, _ in seen.timeline) / one.positions
            rows.append([name if way is GREEDY else "", way.name, *figures, given, f"{used:.1%}", *cells, _peak(seen)])
    columns = ["tokens/s", "of greedy", "of best static", "given back", "pages", "ms a token", "p99", "peak (error)"]
    return table(["lengths and cache", "router", *columns], rows)


def _peak(seen: Seen) -> str:
    ratios = [predicted / true for predicted, true in seen.forecasts if true]
    if not ratios:
        return ""
    return f"{fmean(ratios):.2f} ({fmean(abs(ratio - 1) for ratio in ratios):.2f})"


def _plan_table(plans: int) -> str:
    rows = []
    for waiting, running in ((10, 64), (10_000, 64), (10_000, 256)):
        with short_collections():  # as a server does
            sample = plan_times(waiting, running, plans)
        times = [f"{1e6 * seconds:.0f}" for seconds in (sample.median, sample.p99)]
        rows.append([f"{waiting:,}", f"{running:,}", *times])
    return table(["waiting", "running", "median (us)", "p99"], rows)


def _bandwidth_table(name: str) -> str:
    """Measure how fast the pages of a sequence of 2,048 positions go to host memory and back."""
    shape = ModelShape(24, 32, 64, 2048, 730, 0, 2048, 51_200)  # Moondream 2's
    rows = [
        [way, f"{swapped:.1f}", f"{plain:.1f}", f"{swapped / plain:.0%}", "" if swapped >= AIM * plain else "MISSED"]
        for way, swapped, plain in measure(shape, torch.device(name), rounds=20)
    ]
    return table(["direction", "swapping (GB/s)", "plain copy", "share", f"aim {AIM:.0%}"], rows)


def _draw_plots(
    output: Path, chosen: Sequence[Lengths], overload: Runs, curves: Curves, best: dict[Lengths, float]
) -> None:
    ways = ((GREEDY, "greedy", PALETTE[1]), (RESERVE, "reserve (never gives way)", PALETTE[6]),
            (None, "best static budget", PALETTE[2]), (ADAPTIVE, "adaptive", PALETTE[0]))  # fmt: skip

    def of(one: Lengths, way: Way | None) -> Way:
        return static(best[one]) if way is None else way

    loads = sorted({load for _, _, load in curves})
    panels = []
    for one in chosen:
        lines = [
            Line(name, color, [(load * one.capacity, curves[one, of(one, way), load].rate) for load in loads],
                 dashed=way is None, marked=True)
            for way, name, color in ways
        ]  # fmt: skip
        panels.append(Panel(one.name, "offered requests per second", "answered tokens per second", lines))
    draw(output.with_name(f"{output.stem}-load.png"), "Throughput against offered load", panels)
    panels = [
        Panel(f"{one.name}: adaptive", "seconds", "share of the pages", _history(one, overload[one, ADAPTIVE]))
        for one in chosen
    ]
    draw(output.with_name(f"{output.stem}-budget.png"), "Budget and pages over time, at overload", panels)
    near = min(loads, key=lambda load: abs(load - 1.0))
    panels = []
    for one in chosen:
        lines = [
            Line(name, color, _distribution(curves[one, of(one, way), near].gaps), dashed=way is None)
            for way, name, color in ways
        ]
        panels.append(Panel(one.name, "ms between two tokens of an answer", "share of tokens", lines, logarithmic=True))
    draw(output.with_name(f"{output.stem}-latency.png"), f"Time between tokens at a load of {near:g}", panels)


def _history(one: Lengths, seen: Seen) -> list[Line]:
    first, every = seen.timeline[0][0], max(1, len(seen.timeline) // 300)
    kept = seen.timeline[::every]
    return [
        Line("budget", PALETTE[4], [(now - first, budget / one.positions) for now, budget, _, _ in kept]),
        Line("pages in use", PALETTE[5], [(now - first, used / one.positions) for now, _, used, _ in kept]),
        Line("all pages", PALETTE[6], [(0.0, 1.0), (kept[-1][0] - first, 1.0)], dashed=True),
    ]


def _distribution(seconds: Sequence[float]) -> list[tuple[float, float]]:
    """Return milliseconds and the share of values up to them."""
    ordered = sorted(seconds)
    places = [round((len(ordered) - 1) * step / 400) for step in range(401)]
    return [(max(0.5, 1e3 * ordered[place]), place / max(1, len(ordered) - 1)) for place in places]


if __name__ == "__main__":
    sys.exit(main())
