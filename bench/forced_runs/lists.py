"""Lists of ten boxes, as Qwen3-VL writes them: random weights of its shape, random prompts."""

import random
import statistics
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from bench.forced_runs.timing import STREAMS, ratio_row
from bench.gpu.qwen import random_qwen
from bench.shapes import SHAPES
from photonlite.config import EngineConfig
from photonlite.device.names import resolve_device
from photonlite.engine.engine import Engine
from photonlite.grammar.decoding.items import ItemFormat, ItemsGrammar
from photonlite.models.qwen.config import QwenConfig
from photonlite.observe.trace import idle_intervals
from photonlite.request import Allowed, Request, SamplingSettings, Token
from photonlite.sequence import Sequence as EngineSequence

OBJECTS, BOUNDS = 10, (999, 1000)
_DIGITS = 3  # of a number, where a grammar allows as many


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
