"""Requests of published length distributions, which arrive at random, and an engine whose memory is short.

The engine's own core, scheduler and cache run on a device that is a table of times, on a virtual clock.
"""

import itertools
import math
from dataclasses import dataclass, field
from random import Random

from bench.policy.modelled import H200, WORD, Costs, ModelledRunner, at
from photonlite.batch import Step
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.engine.core import EngineCore
from photonlite.request import Allowed, Request, SamplingSettings, Token
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.router import Router
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence as EngineSequence

PAGE = 16
POSITION_BYTES = 2 * 24 * 2048 * 2
"""Keys and values of a position of Moondream 2 in bfloat16: two of 24 layers of 2,048 numbers of two bytes."""

MAX_TOKENS, MAX_CONTEXT = 1024, 4096
"""What requests set as their limit, and the longest request; inputs are cut to what is left."""

_STEP_MS, _ROW_MS, _POSITION_MS = 0.84, 0.0015, 4.68e-5
"""A decode step: what it takes at least, for each row, and for each position whose keys and values are read.

Fitted to bench/results/decode.md: 0.88, 1.23, 2.20, 3.47 ms at 1, 8, 32, 64 rows of 850 positions.
"""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of prompts and answers, log-normal, with mean and standard deviation as published for NanoFlow."""

    name: str
    input: tuple[float, float]
    output: tuple[float, float]
    positions: int  # of the KV cache in this bench
    max_batch: int
    capacity: float  # answers a second, about as many as the best router gives

    def draw(self, random: Random) -> tuple[int, int]:
        tokens = min(_draw(random, self.output), MAX_TOKENS)
        return min(_draw(random, self.input), MAX_CONTEXT - MAX_TOKENS - 1), tokens

    @property
    def kv_cache_bytes(self) -> int:
        return self.positions * POSITION_BYTES


LENGTHS = (
    Lengths("Splitwise", (1155, 1109), (211, 163), positions=65_536, max_batch=128, capacity=47),
    Lengths("LMSYS-Chat", (102, 169), (222, 210), positions=98_304, max_batch=512, capacity=215),
    Lengths("ShareGPT", (246, 547), (322, 244), positions=98_304, max_batch=384, capacity=99),
)


@dataclass(frozen=True, slots=True)
class MemoryCosts(Costs):
    """Costs of decode steps that depend on how many positions each row reads.

    A mixed step takes what a prompt of as many positions does, and what reading those of the rows that decode does.
    """

    def device_s(self, step: Step) -> float:
        positions = sum(row.start + 1 for row in step.rows if row.pending)
        if step.kind == "mixed":
            return (at(self.prefill, step.plan.size) + _POSITION_MS * positions) / 1e3
        if step.kind != "decode":
            return Costs.device_s(self, step)
        return (_STEP_MS + _ROW_MS * len(step.rows) + _POSITION_MS * positions) / 1e3


_BUS = 50e9  # bytes a second between page-locked memory and the card

_HOST = {**H200.host, "mixed": H200.host["prefill"]}

COSTS = MemoryCosts(H200.encode, H200.prefill, H200.decode, H200.finalize, _HOST, PAGE * POSITION_BYTES / _BUS)


class Words:
    """A grammar of words that ends after as many as were drawn, below the request's limit."""

    ahead = allowed = Allowed()
    run: tuple[int, ...] = ()
    expected_run: tuple[int, ...] = ()

    def __init__(self, count: int) -> None:
        self._left = count

    @property
    def finish_reason(self) -> str | None:
        return None if self._left else "stop"

    def accept(self, token: Token) -> None:
        self._left -= 1


@dataclass(slots=True)
class Seen:
    """What came out, in seconds and positions."""

    tokens: int = 0
    answers: int = 0
    latencies: list[float] = field(default_factory=list)  # of an answer, for each of its tokens
    first_tokens: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    forecasts: list[tuple[float, float]] = field(default_factory=list)  # predicted and true peaks
    timeline: list[tuple[float, float, float, int]] = field(default_factory=list)  # time, budget, used, running
    victims: int = 0  # times that sequences gave their pages back, and how many of these were swapped
    swaps: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens of answers in a second."""
        return self.tokens / self.seconds


class Memory:
    """An engine and what arrives."""

    def __init__(self, lengths: Lengths, rate: float, limits: Limits, *, seed: int = 0) -> None:
        self.runner = ModelledRunner(COSTS)
        cache = CacheManager(PagePool(lengths.positions // PAGE + 1, PAGE))
        self.core = EngineCore(Scheduler(cache, limits), self.runner, 2, clock=lambda: self.runner.now)
        self.seen = Seen()
        self._lengths, self._rate, self._random = lengths, rate, Random(seed)
        self._numbers = itertools.count()
        self._next = 0.0

    @property
    def router(self) -> Router:
        return self.core.scheduler.running.router

    def run(self, seconds: float, *, warm_up_s: float = 0.0) -> Seen:
        """Let time pass; what happens in the warm-up does not count."""
        self._run_until(self.runner.now + warm_up_s)
        self.seen, start = Seen(), self.runner.now
        computed, swapped = self._given_back()
        self._run_until(start + seconds)
        computed_again, swaps = self._given_back()
        self.seen.swaps = swaps - swapped
        self.seen.victims = self.seen.swaps + computed_again - computed
        self.seen.seconds = self.runner.now - start
        return self.seen

    def _given_back(self) -> tuple[int, int]:
        """Count how often sequences were to be computed again, and how often they were swapped."""
        metrics, times = self.core.metrics, [one.times for one in self.core.open]
        return (
            metrics.preemptions + sum(one.preemptions for one in times),
            metrics.swaps + sum(one.swaps for one in times),
        )

    def _run_until(self, end: float) -> None:
        router, tick = self.router, 0
        last = router.true_peak
        while self.runner.now < end:
            while self._next <= self.runner.now:
                self._submit()
            if not self.core.tick():
                self.runner.now = self._next
            tick += 1
            if router.true_peak != last:
                last = router.true_peak
                self.seen.forecasts.append((router.forecast_peak, last))
            if tick % 16 == 0:
                used = router.used * PAGE
                self.seen.timeline.append((self.runner.now, router.budget, used, len(self.core.scheduler.running)))

    def _submit(self) -> None:
        number = next(self._numbers)
        asked = self._next
        self._next += self._random.expovariate(self._rate)
        prompt, tokens = self._lengths.draw(self._random)
        words = (Token(number % 40_000),) + (WORD,) * (prompt - 1)
        request = Request(self._lengths.name, words, Words(tokens), MAX_TOKENS, SamplingSettings())
        sequence = EngineSequence(number, request, Answer(self, asked), 1)
        self.core.scheduler.prepare(sequence)
        self.core.submit(sequence)


class Answer:
    """A request's sink."""

    def __init__(self, memory: Memory, asked: float) -> None:
        self._memory = memory
        self._asked = asked
        self._last = 0.0

    def on_token(self, token: Token) -> None:
        now, seen = self._memory.runner.now, self._memory.seen
        seen.tokens += 1
        if self._last:
            seen.gaps.append(now - self._last)
        else:
            seen.first_tokens.append(now - self._asked)
        self._last = now

    def on_finish(self, sequence: EngineSequence) -> None:
        if sequence.error is not None:
            raise AssertionError(f"request {sequence.number} has failed") from sequence.error
        seen = self._memory.seen
        seen.answers += 1
        seen.latencies.append((self._memory.runner.now - self._asked) / len(sequence.tokens))


def _draw(random: Random, moments: tuple[float, float]) -> int:
    """Draw a length of at least 1 from the log-normal distribution of that mean and standard deviation."""
    mean, deviation = moments
    variance = math.log1p((deviation / mean) ** 2)
    return max(1, round(random.lognormvariate(math.log(mean) - variance / 2, variance**0.5)))
