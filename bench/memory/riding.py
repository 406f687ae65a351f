"""How long what decodes waits for a long prompt: in turns, and where prompts ride with decode steps.

The delay of a prompt is the longest interval between two tokens of any stream from its arrival to its first token,
minus the median interval without it.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean, median

import torch

from bench.bubble.report import table
from bench.bubble.subjects import random_model
from bench.gpu.samples import Sample
from bench.memory.load import COSTS, PAGE, Words
from bench.policy.modelled import ModelledRunner
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.config import Batching, EngineConfig
from photonlite.engine.core import EngineCore
from photonlite.engine.engine import Engine
from photonlite.models.base import Model
from photonlite.models.checkpoint import load_files
from photonlite.models.loading import resolve
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence as EngineSequence

WAYS: tuple[Batching, ...] = ("turns", "mixed")

AIM_MS = 4.0


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
    """Compare intervals of streams between the arrival and the first token of each prompt with the others."""
    pairs = [pair for stream in streams for pair in itertools.pairwise(stream.times)]
    usual = median(end - start for start, end in pairs if not any(start < last and end > at for at, last in visits))
    delays = [
        max((end - start for start, end in pairs if start < last and end > at), default=usual) - usual
        for at, last in visits
    ]
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
        visits.append((at, stream.times[0]))
    while core.tick():
        pass
    return found_of(streams, visits, core.metrics.tokens, runner.now)


def served(engine: Engine, load: Load, seed: int, vocabulary: int) -> Found:
    """Run a load on an engine."""
    numbers = itertools.count(seed)

    def submit(positions: int, tokens: int) -> Stream:
        stream = Stream(time.perf_counter)
        engine.submit(request_of(next(numbers), positions, tokens, vocabulary), stream)
        return stream

    begun = time.perf_counter()
    streams = [submit(load.context, load.tokens) for _ in range(load.streams)]
    for stream in streams:
        stream.begun.wait()
    visits = []
    for _ in range(load.prompts):
        seen = len(streams[0].times)
        while len(streams[0].times) < seen + 8 and not streams[0].ended.is_set():
            time.sleep(1e-3)
        at, stream = time.perf_counter(), submit(load.prompt, load.answer)
        stream.ended.wait()
        visits.append((at, stream.times[0]))
    for stream in streams:
        stream.ended.wait()
    errors = [stream.error for stream in streams if stream.error is not None]
    if errors:
        raise errors[0]
    tokens = load.streams * load.tokens + load.prompts * load.answer
    return found_of(streams, visits, tokens, time.perf_counter() - begun)


def on_device(name: str, rounds: int) -> str:
    """Measure both ways alternately on one model: Moondream 2's shape on a card, the shipped checkpoint on a CPU."""
    where = torch.device(name)
    cuda = where.type == "cuda"
    model: Model
    if cuda:
        load, dtype, memory = LOAD, torch.bfloat16, 24 << 30
        model = random_model(MoondreamConfig.from_dict({"model_type": "moondream2"}), where, dtype)
    else:
        load, dtype, memory = CPU_LOAD, torch.float32, 1 << 29
        model = load_files(resolve(None), device=where, dtype=dtype).model
    engines = {
        way: Engine(model, where, dtype, EngineConfig(kv_cache_bytes=memory, batching=way, prefix_caching=False))
        for way in WAYS
    }
    found: dict[Batching, list[Found]] = {way: [] for way in WAYS}
    for place in range(rounds + 1):
        for way in WAYS:
            one = served(engines[way], load, 10_000 * place, model.shape.vocab_size)
            if place:  # the first round warms up
                found[way].append(one)
    costs = {way: engine.get_unit_costs()[1] for way, engine in engines.items()}
    for engine in engines.values():
        engine.close()
    rows = [row_of(way, [value for one in found[way] for value in one.delays], found[way]) for way in WAYS]
    ratio = median(two.rate / one.rate for one, two in zip(found["turns"], found["mixed"], strict=True))
    spent = ", ".join(f"{way} {1e6 * (cost or 0):.1f} us" for way, cost in costs.items())
    return f"{_table(rows)}\n\nTokens a second, mixed / turns: {ratio:.3f}. A position of a prompt takes: {spent}."


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
