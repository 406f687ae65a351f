"""Compare what the scheduler makes of load: `python -m bench.policy`.

The engine's own core and scheduler run on a device that exists as a table of times, on a virtual clock: half a minute
of many clients passes in a second or two, always the same way. Figures are those of the model, good for comparing one
policy or setting with another; `bench.e2e` measures on a card.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.bubble.report import table
from bench.gpu.page import Page
from bench.gpu.samples import Sample
from bench.policy.load import ROWS, Group, Waits, World
from bench.policy.modelled import H200, Costs
from photonlite.config import EngineConfig
from photonlite.scheduler.limits import Limits

DEFAULTS = EngineConfig()
WARM_UP_S = 4.0
FRAME_S = 1 / 30

NOTES = """\
- p50, p99: what a client waits for an answer. Misses: of the calls with a deadline, those that it ended. Gap: from one
  token of an answer to the next.
- Of the best: the device time that all these answers would take at the least, in launches of the sizes that cost least
  and decode steps of 64 rows, as a share of the time that passed.
- Crops, prompts, rows: of an encode, prefill and decode launch, on average."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load.

    Attributes:
        name: For the report.
        groups: Who asks.
    """

    name: str
    groups: tuple[Group, ...]


def never_ready(rate: float) -> Group:
    """Make real-time requests whose images are never cut: each waits until its deadline."""
    return Group("never ready", crops=1, rate=rate, deadline_s=0.1, realtime=True, ready=False)


SCENARIOS = (
    *(Scenario(f"{n} clients", (Group("answers", n),)) for n in (64, 16, 8, 4, 2)),
    Scenario("1 client", (Group("answers"),)),
    Scenario("64 clients, mixed sizes", tuple(Group(f"{n} crops", 16, crops=n) for n in (2, 5, 7, 13))),
    Scenario("64 clients, small images", (Group("answers", 64, crops=1),)),
    Scenario("64 clients, no images", (Group("answers", 64, crops=0, tokens=50),)),
    Scenario("40 a second", (Group("answers", rate=40.0),)),
    Scenario("captions and 8 clients", (Group("captions", 8, tokens=100), Group("answers", 8))),
    Scenario("a caption and 64 clients", (Group("captions", 1, tokens=100), Group("answers", 64))),
    Scenario("a robot and a caption", (Group("robot", 1, crops=1, period_s=1 / 30), Group("captions", 1, tokens=100))),
    Scenario("a robot and 4 clients", (Group("robot", 1, crops=1, period_s=1 / 30), Group("answers", 4))),
    *(
        Scenario(
            f"30 Hz of {crops} crops, {tokens} tokens and {other.name}{', real-time' * realtime}",
            (Group("robot", 1, tokens, crops, FRAME_S, deadline_s=FRAME_S, realtime=realtime), other),
        )
        for other in (Group("64 clients", 64), Group("64 captions", 64, tokens=100))
        for crops, tokens in ((1, 3), (7, 3), (9, 10))
        for realtime in (False, True)
    ),
    *(
        Scenario(f"{rate} never ready a second and {clients} clients", (never_ready(rate), Group("clients", clients)))
        for clients in (8, 64)
        for rate in (100, 300, 1_000, 2_000, 3_000)
    ),
)


def make_limits(
    budget_s: float = DEFAULTS.launch_budget_s,
    pause_s: float = DEFAULTS.max_pause_s,
    crops: int = DEFAULTS.max_crops,
    rows: int = ROWS,
) -> Limits:
    """Make limits as the engine has them on a card."""
    return Limits(rows, 2 * rows, DEFAULTS.max_prefill_tokens, crops, launch_budget_s=budget_s, max_pause_s=pause_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.policy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="virtual seconds of each load, after a warm-up")
    parser.add_argument("--budget", type=float, default=DEFAULTS.launch_budget_s, help="launch_budget_s")
    parser.add_argument("--pause", type=float, default=DEFAULTS.max_pause_s, help="max_pause_s")
    parser.add_argument("--crops", type=int, default=DEFAULTS.max_crops, help="max_crops")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="loads with one of these words in their names")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args(arguments)
    limits = make_limits(options.budget, options.pause, options.crops)
    page = Page("The scheduler under load, on a modelled device", options.output)
    rows: list[list[str]] = []
    for scenario in SCENARIOS:
        if not options.only or any(word in scenario.name for word in options.only):
            rows += run(scenario, limits, H200, options.seconds)
            page.put("", text(rows))
    page.put("How to read this", NOTES)
    print(page)
    return 0


def run(scenario: Scenario, limits: Limits, costs: Costs, seconds: float) -> list[list[str]]:
    """Let a load pass, and write a row for each group of clients."""
    world = World(scenario.groups, limits, costs)
    world.run(seconds, warm_up_s=WARM_UP_S)
    runner, pairs = world.runner, list(zip(scenario.groups, world.waits, strict=True))
    needed = sum(len(waits.answers) * group.best_s(costs) for group, waits in pairs)
    whole = [f"{needed / seconds:.1%}"]
    for kind in ("encode", "prefill", "decode"):
        whole.append(f"{runner.units[kind] / max(1, runner.launches[kind]):.1f}")
    rows = []
    for group, waits in pairs:
        name = f"{scenario.name}: {group.name}" if len(pairs) > 1 else scenario.name
        rows.append([name, *_figures(group, waits, seconds), *whole])
        whole = [""] * len(whole)
    return rows


def text(rows: Sequence[Sequence[str]]) -> str:
    """Write the table."""
    waits = ("p50", "p99 (ms)", "misses", "gap p50", "p99 (ms)")
    return table(["load", "answers/s", *waits, "of the best", "crops", "prompts", "rows"], rows)


def _figures(group: Group, waits: Waits, seconds: float) -> list[str]:
    missed = "" if group.deadline_s is None else f"{waits.missed:.1%}"
    rate = f"{len(waits.answers) / seconds:.1f}"
    return [rate, *_quantiles(waits.answers), missed, *_quantiles(waits.gaps)]


def _quantiles(seconds: Sequence[float]) -> list[str]:
    """Write median and 99th percentile in milliseconds; nothing where nothing was seen."""
    if not seconds:
        return ["", ""]
    sample = Sample.of(seconds)
    return [f"{1e3 * time:.1f}" for time in (sample.median, sample.p99)]


if __name__ == "__main__":
    sys.exit(main())
