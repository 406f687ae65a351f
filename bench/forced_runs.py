"""Tokens that must follow, appended at once or decoded one by one: `python -m bench.forced_runs`.

```
agree     typed questions to the shipped checkpoint, on two engines that differ in `forced_runs` alone
typed     seconds of as many typed answers as there are streams, one by one over at once
boxes     the same of lists of ten boxes, as Qwen3-VL writes them: random weights of its shape, random prompts
modelled  the same lists on a device that is a table of times, with the scheduler and the engine's core as they are
```

On a card: `python -m bench.forced_runs --only boxes --device cuda --shape qwen3-vl-2b`. Coordinates have three digits.
Where the largest is 999, nothing but a separator may follow them; where it is 1000, as Qwen3-VL's, a digit may.
"""

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from PIL import Image

import photonlite
from bench.gpu.qwen import random_qwen
from bench.nano.questions.text import properties
from bench.policy.modelled import Costs, ModelledRunner, at
from bench.shapes import SHAPES
from photonlite.api import VisionModel
from photonlite.batch import Step
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.config import EngineConfig
from photonlite.device.names import resolve_device
from photonlite.engine.core import EngineCore
from photonlite.engine.engine import Engine
from photonlite.grammar.decoding.items import ItemFormat, ItemsGrammar
from photonlite.models.qwen.config import QwenConfig
from photonlite.observe.trace import idle_intervals
from photonlite.request import Allowed, Request, SamplingSettings, Token
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence as EngineSequence

PARTS = ("agree", "typed", "boxes", "modelled")
STREAMS = (1, 4, 16)
OBJECTS, BOUNDS = 10, (999, 1000)
PICTURES = ("assets/desk.png", "assets/market.png", "assets/street.png")
_DIGITS = 3  # of a number, where a grammar allows as many
_CLOSE = 1e-4  # coordinates, scores: sums in another order round otherwise
_CLOSE_SCORE = 1e-3


# ---- typed answers


def draw_schema(dice: random.Random) -> dict[str, Any]:
    """Draw a schema of one to five properties with names and types as the shipped checkpoint knows them."""
    kinds: dict[properties.Meaning, dict[str, Any]] = {
        "box": {"type": "object", "format": "box"},
        "where": {"type": "object", "format": "point"},
        "count": {"type": "integer", "minimum": 0, "maximum": 30},
        "present": {"type": "boolean"},
        "name": {"enum": dice.sample(["banana", "red apple", "mug", "key", "car", "bus", "cherries", "pear"], 4)},
        "colour": {"enum": ["red", "green", "blue", "yellow", "brown"]},
    }
    chosen = dice.sample(list(kinds), dice.randint(1, 5))
    found = {dice.choice(properties.variants(properties.names(one, "train"))): kinds[one] for one in chosen}
    schema: dict[str, Any] = {"type": "object", "properties": found, "required": list(found)}
    if dice.random() < 0.2:
        return {"type": "array", "items": schema, "minItems": 1, "maxItems": 3}
    return schema


def load_pair(streams: int, device: str) -> dict[bool, VisionModel]:
    """Load the shipped checkpoint twice: with runs, and without."""
    settings: Any = {"max_batch": streams, "grammar_limit_s": 60.0}
    return {runs: photonlite.load(device=device, engine=settings | {"forced_runs": runs}) for runs in (True, False)}


def agree(questions: int, device: str) -> list[str]:
    """Compare answers with runs and without; returns what to print."""
    models, dice = load_pair(8, device), random.Random(1)
    pictures = [Image.open(path).convert("RGB") for path in PICTURES]
    images = {runs: [model.encode_image(one) for one in pictures] for runs, model in models.items()}
    found: Counter[str] = Counter()
    shown: list[str] = []
    for first in range(0, questions, 40):
        tasks: list[dict[str, Any]] = [
            {"skill": "query", "question": f"what is in the picture {place}", "schema": draw_schema(dice)}
            for place in range(first, min(first + 40, questions))
        ]
        texts = {
            runs: [
                str(answer["text"])
                for answer in model.batch(
                    [task | {"image": images[runs][place % len(pictures)]} for place, task in enumerate(tasks)]
                )
            ]
            for runs, model in models.items()
        }
        for task, own, other in zip(tasks, texts[True], texts[False], strict=True):
            kind = compare(own, other)
            found[kind] += 1
            if kind == "different":
                shown.append(f"{json.dumps(task['schema'])}\n  at once     {own}\n  one by one  {other}")
    counters = {runs: model.metrics()["counters"] for runs, model in models.items()}
    for model in models.values():
        model.close()
    steps = [
        f"{'at once' if runs else 'one by one'}: {one['forced_tokens']} of {one['tokens']} tokens, {one['steps']}"
        for runs, one in counters.items()
    ]
    return [f"{questions} typed answers: {dict(found)}", *steps, *shown]


def compare(own: str, other: str) -> str:
    """Say how two JSON texts agree: "equal", "equal but for rounding", or "different"."""
    if own == other:
        return "equal"
    return "equal but for rounding" if _is_close(json.loads(own), json.loads(other)) else "different"


def _is_close(one: Any, two: Any, name: str = "") -> bool:
    if isinstance(one, float) and isinstance(two, float):
        return abs(one - two) < (_CLOSE_SCORE if name == "score" else _CLOSE)
    if isinstance(one, dict) and isinstance(two, dict):
        return list(one) == list(two) and all(_is_close(one[key], two[key], key) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_is_close, one, two))
    return bool(one == two)


def typed(rounds: int, device: str) -> list[str]:
    """Measure typed answers of the shipped checkpoint about one encoded image."""
    models = load_pair(max(STREAMS), device)
    picture = Image.open(PICTURES[0]).convert("RGB")
    images = {runs: model.encode_image(picture) for runs, model in models.items()}
    schema = {
        "type": "object",
        "properties": {
            "object_name": {"enum": ["banana", "red apple", "pear"]},
            "total_count": {"type": "integer", "minimum": 0, "maximum": 20},
            "bounding_box": {"type": "object", "format": "box"},
            "center_point": {"type": "object", "format": "point"},
        },
        "required": ["object_name", "total_count", "bounding_box", "center_point"],
    }

    def ask(runs: bool, streams: int) -> None:
        task = {"skill": "query", "question": "what is on the desk", "schema": schema, "image": images[runs]}
        models[runs].batch([task] * streams)

    rows = [ratio_row(f"typed answers, {streams} streams", rounds, ask, streams) for streams in STREAMS]
    for model in models.values():
        model.close()
    return rows


# ---- lists of boxes


class FullList(ItemsGrammar):
    """A list that goes on to its last item, of numbers of three digits: both ways then write as many tokens.

    Where a model of random weights might end the list or a number, it is asked as ever and not heard.
    """

    @property
    def allowed(self) -> Allowed:
        allowed = super().allowed
        ids = allowed.ids or ()
        ends = (self.form.none[2], self.form.last[6])
        kept = tuple(one for one in ids if one not in ends)
        if len(self._place.digits or "") == _DIGITS:
            kept = tuple(one for one in kept if one not in self.form.digits)
        elif digits := tuple(one for one in kept if one in self.form.digits):
            kept = digits if len(digits) < len(ids) else digits[1:]  # none after a zero
        return Allowed(kept, scored=allowed.scored) if kept != ids else allowed


def list_format() -> ItemFormat:
    r"""Return the spelling of lists with as many tokens as the public tokenizer takes; the ids stand for nothing.

    ```
    first   ``` json \n [\n \t {" bbox _ 2 d ": [        more   ], _" label ": _" mug "},\n \t {" bbox _ 2 d ": [
    none    ``` json [] \n ``` end                         last   ], _" label ": _" mug "}\n ] \n ``` end
    ```
    """
    opening = tuple(range(30, 38))
    closing = tuple(range(40, 46))
    return ItemFormat(
        numbers=4,
        digits=tuple(range(10, 20)),
        separator=(20, 21),
        first=(22, 23, 24, 25, *opening),
        more=(*closing, 46, *opening),
        last=(*closing, 47, 48, 49, 22, 50),
        none=(22, 23, 26, 27, 22, 50),
    )


@dataclass(eq=False)
class Collector:
    tokens: list[Token] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def on_token(self, token: Token) -> None:
        self.tokens.append(token)

    def on_finish(self, sequence: EngineSequence) -> None:
        self.error = sequence.error
        self.done.set()


def ask_boxes(engine: Engine, streams: int, prompt: int, seed: int, bound: int) -> list[list[int]]:
    """Ask for as many lists at once and wait; returns their ids."""
    form, bounds = list_format(), (bound,) * 4
    budget = form.budget(OBJECTS, bounds)
    collectors = []
    for place in range(streams):
        dice = random.Random(1000 * seed + place)
        tokens = tuple(Token(dice.randrange(60, 500)) for _ in range(prompt))
        grammar = FullList(form, bounds, budget, OBJECTS)
        collectors.append(Collector())
        engine.submit(Request("detect", tokens, grammar, budget, SamplingSettings()), collectors[-1])
    for one in collectors:
        one.done.wait()
        if one.error is not None:
            raise one.error
    return [[token.id for token in one.tokens] for one in collectors]


def boxes(rounds: int, device: str, shape: str) -> list[str]:
    """Measure lists of ten boxes; checks that they are equal."""
    where = resolve_device(device)
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    raw, prompt = (SHAPES["qwen3-vl-2b"].tiny, 100) if shape == "tiny" else (SHAPES[shape].raw, 300)
    model = random_qwen(QwenConfig.from_dict(raw), where, dtype).model
    memory = (4 << 30) if where.type == "cuda" else (1 << 29)
    engines = {
        runs: Engine(model, where, dtype, EngineConfig(max_batch=max(STREAMS), kv_cache_bytes=memory, forced_runs=runs))
        for runs in (True, False)
    }
    equal: Counter[bool] = Counter()

    def check(streams: int, seed: int, bound: int) -> None:
        own, other = (ask_boxes(engines[runs], streams, prompt, seed, bound) for runs in (True, False))
        equal.update(one == two for one, two in zip(own, other, strict=True))

    rows: list[str] = []
    for bound in BOUNDS:

        def ask(runs: bool, streams: int, bound: int = bound) -> None:
            ask_boxes(engines[runs], streams, prompt, 0, bound)

        for seed, streams in enumerate(STREAMS):
            check(streams, seed, bound)
        rows += [ratio_row(f"boxes up to {bound}, {streams} streams", rounds, ask, streams) for streams in STREAMS]
        for runs, engine in engines.items():
            rows.append(f"one list {'at once' if runs else 'one by one'}: {traced(engine, partial(ask, runs, 1))}")
    for engine in engines.values():
        engine.close()
    return [*rows, f"lists that are equal with runs and without: {equal[True]} of {equal.total()}"]


# ---- lists of boxes on a table of times


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


def traced(engine: Engine, work: Callable[[], None]) -> str:
    """Say how often the device did what, how long that took at the median, and how long it did nothing in all."""
    engine.tracer.clear()
    engine.tracer.enabled = True
    work()
    engine.tracer.enabled = False
    times: dict[str, list[float]] = {}
    spans = engine.tracer.spans()
    for span in spans:
        if span.track == "compute":
            times.setdefault(span.name, []).append(1e3 * (span.end_s - span.start_s))
    parts = [f"{len(each)} {name} of {statistics.median(each):.3f} ms" for name, each in times.items()]
    idle = 1e3 * sum(end - start for start, end in idle_intervals(spans))
    return ", ".join([*parts, f"{idle:.1f} ms idle"])


def ratio_row(what: str, rounds: int, ask: Callable[[bool, int], None], streams: int) -> str:
    """Measure both ways alternately, after a warm-up; return their ratio: above 1, runs are faster."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for place in range(rounds + 1):
        for runs in (True, False):
            begun = time.perf_counter()
            ask(runs, streams)
            if place:
                seconds[runs].append(time.perf_counter() - begun)
    ratios = sorted(other / own for own, other in zip(seconds[True], seconds[False], strict=True))
    middle = statistics.median(seconds[False]) / statistics.median(seconds[True])
    own, other = (1e3 * statistics.median(seconds[runs]) for runs in (True, False))
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    row = f"{what:<34}{middle:.2f} times as quick at once ({spread}), {own:.0f} in place of {other:.0f} ms"
    print(row, file=sys.stderr, flush=True)
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.forced_runs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shapes = ["tiny", *(name for name, shape in SHAPES.items() if shape.family == "qwen")]
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--shape", choices=shapes, default="tiny", help="of the model that lists boxes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--questions", type=int, default=2000, help="that `agree` asks")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each ratio, after a warm-up")
    options = parser.parse_args(arguments)
    lines: list[str] = []
    if "typed" in options.only:
        lines += typed(options.rounds, options.device)
    if "boxes" in options.only:
        lines += boxes(options.rounds, options.device, options.shape)
    if "modelled" in options.only:
        lines += modelled()
    if "agree" in options.only:
        lines += agree(options.questions, options.device)
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
