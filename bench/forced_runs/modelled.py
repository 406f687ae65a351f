"""The same lists on a device that is a table of times, with the scheduler and the engine's core as they are."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bench.forced_runs.lists import OBJECTS, Collector, list_format
from bench.forced_runs.timing import STREAMS
from bench.policy.modelled import Costs, ModelledRunner, at
from photonlite.batch import Step
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.engine.core import EngineCore
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence as EngineSequence


@dataclass(frozen=True, slots=True)
class RunCosts(Costs):
    """As `Costs`; a launch of runs takes what a prompt of as many positions does."""

    def device_s(self, step: Step) -> float:
        if step.kind == "run":
            return at(self.prefill, step.plan.size) / 1e3
        return Costs.device_s(self, step)


H200_2B = RunCosts(
    encode=((1, 2.8), (2, 4.0)),
    prefill=((1, 1.3), (3, 1.5), (16, 1.65), (64, 2.1), (300, 3.0)),
    decode=((1, 1.07), (16, 1.35)),
    finalize=((1, 0.15), (16, 0.17)),
    host={"decode": 0.35, "run": 0.8, "prefill": 0.8},
)
"""Qwen3-VL-2B's shape in bfloat16 on one H200 at one stream, as traced; the times of many rows are estimates."""


class ScriptedRunner(ModelledRunner):
    """Says what is written in `lists`, by the number of a sequence, and 0 behind it."""

    def __init__(self, lists: Sequence[Sequence[int]]) -> None:
        super().__init__(H200_2B)
        self._lists = lists

    def collect(self, step: Step) -> list[Token | Exception | None]:
        super().collect(step)
        found: list[Token | Exception | None] = []
        for row in step.rows:
            own = self._lists[row.sequence.number]
            found.append(None if row.index is None else Token(own[row.index] if row.index < len(own) else 0))
        return found


def draw_list(dice: random.Random, numbers: tuple[int, int]) -> list[int]:
    """Draw the ids of a list of boxes whose numbers lie between two."""
    form = list_format()
    ids = list(form.first)
    for place in range(OBJECTS):
        for number in range(form.numbers):
            ids += form.separator if number else ()
            ids += (form.digits[int(digit)] for digit in str(dice.randint(*numbers)))
        ids += form.more if place < OBJECTS - 1 else form.last
    return ids


def modelled() -> list[str]:
    """Count the steps of lists on a modelled device, and compare its times."""
    cases = [((100, 999), 999), ((100, 999), 1000), ((0, 1000), 1000), ((0, 640), 640)]
    return [modelled_row(numbers, bound, streams) for numbers, bound in cases for streams in STREAMS]


def modelled_row(numbers: tuple[int, int], bound: int, streams: int) -> str:
    """Answer as many lists at once, with runs and without."""
    dice = random.Random(streams)
    lists = [draw_list(dice, numbers) for _ in range(streams)]
    own, other = (answer_lists(lists, bound, runs=runs) for runs in (True, False))
    what = f"modelled, {numbers[0]} to {numbers[1]} of {bound}, {streams} streams"
    ratio = f"{other.now / own.now:.2f} times as quick at once"
    return f"{what:<44}{ratio}, {1e3 * own.now:.0f} in place of {1e3 * other.now:.0f} ms: {dict(own.launches)}"


def answer_lists(lists: Sequence[Sequence[int]], bound: int, *, runs: bool) -> ScriptedRunner:
    """Answer lists on a modelled device; AssertionError for other answers than these."""
    form, bounds = list_format(), (bound,) * 4
    budget = form.budget(OBJECTS + 1, bounds)
    runner = ScriptedRunner(lists)
    limits = Limits(max(STREAMS), 2 * max(STREAMS), max_prefill_tokens=2048, max_crops=8, forced_runs=runs)
    core = EngineCore(Scheduler(CacheManager(PagePool(4000, 16)), limits), runner, 2, clock=lambda: runner.now)
    collectors = [Collector() for _ in lists]
    for number, sink in enumerate(collectors):
        prompt = tuple(Token(place) for place in range(1000 * number, 1000 * number + 300))
        grammar = form.grammar(bounds, budget, OBJECTS + 1)
        sequence = EngineSequence(number, Request("detect", prompt, grammar, budget, SamplingSettings()), sink, 1)
        core.scheduler.prepare(sequence)
        core.submit(sequence)
    while core.tick():
        pass
    if [[token.id for token in one.tokens] for one in collectors] != lists:
        raise AssertionError(f"other lists were answered, forced runs: {runs}")
    return runner
