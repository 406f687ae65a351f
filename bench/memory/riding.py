"""How long what decodes waits for a long prompt or a picture: in turns, and where prompts ride with decode steps.

The delay of a prompt is the longest interval between two tokens of any stream from its arrival to its first token,
minus the median of the intervals before it; that of a picture goes to the last token of its answer.
"""

import itertools
import threading
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean, median
from typing import Any

import torch
from PIL import Image

from bench.bubble.report import table
from bench.gpu.command import say
from bench.gpu.models import crop_spec, endless_model, make_images, prompts_of, size_with_crops
from bench.gpu.samples import Sample
from bench.memory.load import COSTS, PAGE, Words
from bench.policy.modelled import ModelledRunner
from photonlite.api import VisionModel
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.config import Batching, EngineConfig
from photonlite.engine.core import EngineCore
from photonlite.engine.engine import Engine
from photonlite.models.checkpoint import LoadedModel, load_files
from photonlite.models.loading import resolve
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence as EngineSequence

WAYS: tuple[Batching, ...] = ("turns", "mixed")
SERVED: dict[str, dict[str, Any]] = {"turns": {"batching": "turns"}, "mixed": {"batching": "mixed"}}
PICTURES = SERVED | {"mixed, encoding beside": {"batching": "mixed", "encoding": "beside", "encode_sms": 0}}
"""Engine settings of ways to serve prompts of words, and pictures."""

AIM_MS, PICTURE_AIM_MS, SPREAD_AIM = 4.0, 12.0, 1.2
"""Aims: for delays at the 99th percentile, and for intervals there over their mean."""

CROPS = 13


@dataclass(frozen=True, slots=True)
class Load:
    """Streams that decode, and prompts that come one after the other meanwhile."""

    streams: int
    context: int  # positions of a stream's prompt
    tokens: int  # of a stream
    prompt: int  # positions of each prompt that comes
    prompts: int
    answer: int = 4  # tokens of these


LOAD = Load(streams=32, context=740, tokens=1000, prompt=1500, prompts=40)
CPU_LOAD = Load(streams=4, context=60, tokens=60, prompt=300, prompts=3)
_BEFORE = 6  # intervals of each stream in front of a prompt, of which the median is usual
_ON_DEVICE = 20  # pictures of a round, so that streams go on beside the last one


@dataclass(eq=False)
class Stream:
    """A request's sink: when its tokens came."""

    clock: Callable[[], float]
    times: list[float] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def on_token(self, token: Token) -> None:
        self.times.append(self.clock())
        self.begun.set()

    def on_finish(self, sequence: EngineSequence) -> None:
        self.error = sequence.error
        self.begun.set()
        self.ended.set()


@dataclass(frozen=True, slots=True)
class Found:
    """Delays and intervals in seconds, and tokens of all answers in a second."""

    delays: list[float]
    gaps: list[float]
    rate: float


def request_of(number: int, positions: int, tokens: int, vocabulary: int) -> Request:
    """Make a request of BOS and random words, which answers with so many tokens."""
    dice = Random(number)
    words = tuple(Token(dice.randrange(60, vocabulary)) for _ in range(positions - 1))
    return Request("bench", words, Words(tokens), tokens, SamplingSettings(temperature=0))


def found_of(streams: Sequence[Stream], visits: Sequence[tuple[float, float]], tokens: int, seconds: float) -> Found:
    """Compare intervals of streams between the arrival and the first token of each prompt with those before it."""
    pairs = sorted(pair for stream in streams for pair in itertools.pairwise(stream.times))
    quiet = [pair for pair in pairs if not any(pair[0] < last and pair[1] > at for at, last in visits)]
    delays = []
    for at, last in visits:
        # Steps take longer as contexts grow: the last ones before tell what a step takes.
        before = quiet[: bisect(quiet, (at, at))][-_BEFORE * len(streams) :] or quiet
        usual = median(end - start for start, end in before)
        delays.append(max((end - start for start, end in pairs if start < last and end > at), default=usual) - usual)
    return Found(delays, [end - start for start, end in pairs], tokens / seconds)


def modelled(way: Batching, load: Load) -> Found:
    """Run a load on a device that is a table of times."""
    runner, config = ModelledRunner(COSTS), EngineConfig()
    pages = PagePool((load.streams + 2) * (load.context + load.tokens + load.prompt) // PAGE, PAGE)
    limits = Limits(
        64, 128, config.max_prefill_tokens, config.max_crops, launch_budget_s=config.launch_budget_s,
        max_pause_s=config.max_pause_s, mixes=way == "mixed",
    )  # fmt: skip
    core = EngineCore(Scheduler(CacheManager(pages), limits), runner, 2, clock=lambda: runner.now)
    numbers = itertools.count()

    def submit(positions: int, tokens: int) -> Stream:
        stream, number = Stream(lambda: runner.now), next(numbers)
        sequence = EngineSequence(number, request_of(number, positions, tokens, 40_000), stream, 1)
        core.scheduler.prepare(sequence)
        core.submit(sequence)
        return stream

    streams = [submit(load.context, load.tokens) for _ in range(load.streams)]
    while not all(len(stream.times) > 8 for stream in streams):
        core.tick()
    visits, dice = [], Random(0)
    for _ in range(load.prompts):
        for _ in range(dice.randrange(4, 12)):
            core.tick()
        at, stream = runner.now, submit(load.prompt, load.answer)
        while not stream.times:
            core.tick()
        if any(one.ended.is_set() for one in streams):
            break
        visits.append((at, stream.times[0]))
    while core.tick():
        pass
    return found_of(streams, visits, core.metrics.tokens, runner.now)


def served(engine: Engine, load: Load, seed: int, vocabulary: int, picture: Callable[[], object] | None) -> Found:
    """Run a load on an engine: prompts of words, or whatever asks about a picture and waits for the answer."""

    def submit(request: Request) -> Stream:
        stream = Stream(time.perf_counter)
        engine.submit(request, stream)
        return stream

    def visit(prompt: Request) -> tuple[float, float]:
        at = time.perf_counter()
        if picture is not None:
            picture()
            return at, time.perf_counter()
        stream = submit(prompt)
        stream.ended.wait()
        return at, stream.times[0]

    # Made before: to draw 1,500 words takes milliseconds, for which no other thread of Python runs.
    kinds = [(load.context, load.tokens)] * load.streams + [(load.prompt, load.answer)] * load.prompts
    requests = [request_of(seed + number, *kind, vocabulary) for number, kind in enumerate(kinds)]
    begun = time.perf_counter()
    streams = [submit(request) for request in requests[: load.streams]]
    for stream in streams:
        stream.begun.wait()
    visits, answered = [], 0
    for prompt in requests[load.streams :]:
        seen = len(streams[0].times)
        while len(streams[0].times) < seen + 8 and not streams[0].ended.is_set():
            time.sleep(1e-3)
        visits.append(visit(prompt))
        answered += load.answer
        if any(stream.ended.is_set() for stream in streams):
            visits.pop()  # beside fewer streams than the others
            break
    for stream in streams:
        stream.ended.wait()
    errors = [stream.error for stream in streams if stream.error is not None]
    if errors:
        raise errors[0]
    tokens = load.streams * load.tokens + answered
    return found_of(streams, visits, tokens, time.perf_counter() - begun)


def on_device(name: str, rounds: int) -> str:
    """Measure all ways in every round, with Moondream 2's shape on a card, with the shipped checkpoint on a CPU."""
    where = torch.device(name)
    if where.type == "cuda":
        load, dtype, memory = LOAD, torch.bfloat16, 13 << 30
        config = MoondreamConfig.from_dict({"model_type": "moondream2"})
        loaded = LoadedModel("random weights", endless_model(config, where, dtype), prompts_of(config))
    else:
        load, dtype, memory = CPU_LOAD, torch.float32, 1 << 29
        loaded = load_files(resolve(None), device=where, dtype=dtype)
        assert isinstance(loaded.model, MoondreamModel)
        config = loaded.model.config
    spec = crop_spec(config)
    crops = min(CROPS, spec.max_crops + 1) if spec.max_crops > 1 else 1
    width, height = size_with_crops(spec, crops)
    pictures = make_images(width, height)
    texts = []
    for ways, aim in ((SERVED, AIM_MS), (PICTURES, PICTURE_AIM_MS)):
        models = {
            way: VisionModel(
                loaded, where, dtype, engine=EngineConfig(kv_cache_bytes=memory, prefix_caching=False, **given)
            )
            for way, given in ways.items()
        }
        shown = None if ways is SERVED else pictures
        found = _by_turns(models, load, rounds, loaded.model.shape.vocab_size, shown)
        rows = [row_of(way, [value for one in own for value in one.delays], own) for way, own in found.items()]
        costs = {way: model._session.engine.get_unit_costs()[1] for way, model in models.items()}
        for model in models.values():
            model.close()
        what = f"A prompt of {load.prompt:,} tokens" if shown is None else f"A picture, crops: {crops}"
        spent = ", ".join(f"{way} {1e6 * (cost or 0):.1f} us" for way, cost in costs.items())
        aims = f"Aims: a delay of {aim:.0f} ms (p99), intervals of {SPREAD_AIM} x their mean (p99), no fewer tokens/s."
        texts.append(f"{what}:\n\n{_table(rows)}\n\n{_rates(found)} A position of a prompt takes: {spent}. {aims}")
    return "\n\n".join(texts)


def _by_turns(
    models: dict[str, VisionModel], load: Load, rounds: int, vocabulary: int, pictures: Iterator[Image.Image] | None
) -> dict[str, list[Found]]:
    """Run a load on each model in every round; the first round is a warm-up."""
    found: dict[str, list[Found]] = {way: [] for way in models}
    if pictures is not None:
        load = replace(load, prompts=min(load.prompts, _ON_DEVICE))
    for place in range(rounds + 1):
        for way, model in models.items():

            def ask(model: VisionModel = model) -> object:
                assert pictures is not None
                return model.query(next(pictures), "a", settings={"max_tokens": load.answer})

            picture = None if pictures is None else ask
            one = served(model._session.engine, load, 10_000 * place, vocabulary, picture)
            if place:
                found[way].append(one)
                delays = Sample.of([delay for other in found[way] for delay in other.delays])
                told = f"p99 {1e3 * delays.p99:.2f} ms, longest {1e3 * delays.high:.2f}"
                say(f"after round {place}, {way}: {len(delays.values)} delays, {told}")
    return found


def _rates(found: dict[str, list[Found]]) -> str:
    """Say how many tokens a second each way answers, over those of the first one in the same round."""
    first, *others = found
    ratios = [
        f"{way} / {first} {median(two.rate / one.rate for one, two in zip(found[first], found[way], strict=True)):.3f}"
        for way in others
    ]
    return f"Tokens a second: {', '.join(ratios)}."


def row_of(name: str, delays: Sequence[float], found: Sequence[Found]) -> list[str]:
    """Return a row: delays, intervals and rate."""
    sample, gaps = Sample.of(delays), [gap for one in found for gap in one.gaps]
    times = [f"{1e3 * seconds:.2f}" for seconds in (sample.median, sample.p99)]
    mean, p99 = fmean(gaps), Sample.of(gaps).p99
    return [name, *times, f"{1e3 * mean:.2f}", f"{p99 / mean:.2f}", f"{fmean(one.rate for one in found):,.0f}"]


def modelled_table() -> str:
    found = {way: modelled(way, LOAD) for way in WAYS}
    return _table([row_of(way, one.delays, [one]) for way, one in found.items()])


def _table(rows: Sequence[Sequence[str]]) -> str:
    return table(["batching", "delay (ms)", "p99", "interval (ms)", "p99 / mean", "tokens/s"], rows)
