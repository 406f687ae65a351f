"""Clients of an engine on a modelled device: who asks what and when, and how long each waits."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import numpy.typing as npt

from bench.policy.modelled import WORD, Costs, ModelledRunner
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.engine.core import EngineCore
from photonlite.errors import DeadlineError
from photonlite.grammar.decoding.grammars import TextGrammar, Vocabulary
from photonlite.request import Request, SamplingSettings, Token
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence as EngineSequence

PREFIX, PROMPT = 730, 10
"""Positions of BOS and image, and tokens of a question."""

_PREPARE_S, _CUT_S = 0.9e-3, 0.4e-3
"""From the call to the queue, and what packing an image takes after that."""

ROWS = 64
"""Sequences that run at a time, and rows of a decode step in what is reckoned as the least."""

_VOCABULARY = Vocabulary(0, 1, 2, 3, 4, 5, any_id_continues=False)
_PAGE = 16


@dataclass(frozen=True, slots=True)
class Group:
    """Clients that do the same.

    Attributes:
        name: For the report.
        clients: How many; each asks again as soon as it has its answer, unless something below says when.
        tokens: Of an answer.
        crops: Of an image, every one of them new; 0 asks without an image.
        period_s: Each asks so often, and at once if its answer came later than that.
        rate: They all ask so often per second, at random moments, whether others have been answered or not.
        deadline_s: From the call; an answer that comes later is a miss, and the engine drops it.
        realtime: Whether they come before others.
        ready: Whether their images are ever cut; else their requests wait until the deadline.
    """

    name: str
    clients: int = 1
    tokens: int = 3
    crops: int = 9
    period_s: float | None = None
    rate: float | None = None
    deadline_s: float | None = None
    realtime: bool = False
    ready: bool = True

    def best_s(self, costs: Costs) -> float:
        """Return the seconds of a device that a request needs at least, as one of many."""
        return costs.best_s(self.crops, PROMPT + (PREFIX if self.crops else 1), self.tokens, ROWS)


@dataclass(slots=True)
class Waits:
    """What the clients of a group have seen.

    Attributes:
        answers: Seconds from the call to the answer.
        gaps: Seconds from one token of an answer to the next.
        dropped: Calls whose deadlines passed, or could not be met any more.
    """

    answers: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    dropped: int = 0

    def clear(self) -> None:
        """Forget all that was seen."""
        self.answers.clear()
        self.gaps.clear()
        self.dropped = 0

    @property
    def missed(self) -> float:
        """The share of calls that were dropped."""
        return self.dropped / max(1, self.dropped + len(self.answers))


class World:
    """An engine, its clients, and the time that passes.

    Args:
        groups: The clients.
        limits: Of launches.
        costs: Of the device.
        depth: Steps in flight.
        seed: Of what comes at random.

    Attributes:
        runner: Has the clock.
        waits: For each group, in their order.
    """

    def __init__(self, groups: Sequence[Group], limits: Limits, costs: Costs, *, depth: int = 2, seed: int = 0) -> None:
        self.runner = ModelledRunner(costs)
        self.waits = [Waits() for _ in groups]
        cache = CacheManager(PagePool(8_000, _PAGE))
        self._core = EngineCore(Scheduler(cache, limits), self.runner, depth, clock=lambda: self.runner.now)
        self._random = Random(seed)
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for group, waits in zip(groups, self.waits, strict=True):
            for place in range(1 if group.rate else group.clients):
                # They do not all come at one moment, nor in step with each other.
                first = (group.period_s or 1e-3) * place / group.clients
                self._at(first, _Client(self, group, waits).ask)

    def run(self, seconds: float, *, warm_up_s: float = 0.0) -> None:
        """Let time pass; what happens in the warm-up does not count."""
        self._run_until(self.runner.now + warm_up_s)
        self.runner.clear_counts()
        for waits in self.waits:
            waits.clear()
        self._run_until(self.runner.now + seconds)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something when the clock has moved on."""
        self._at(self.runner.now + seconds, action)

    def draw_wait(self, rate: float) -> float:
        """Return the seconds until the next of many independent arrivals."""
        return self._random.expovariate(rate)

    def submit(self, group: Group, sink: "_Answer", asked: float) -> None:
        """Hand a request in."""
        number = next(self._numbers)
        words = (Token(number),) + (WORD,) * (PROMPT - 1)
        grammar, budget = TextGrammar(_VOCABULARY, group.tokens), group.tokens
        request = Request("query", words, grammar, budget, SamplingSettings(), realtime=group.realtime)
        deadline = None if group.deadline_s is None else asked + group.deadline_s
        image = _Image(str(number), group.crops, self if group.ready else None) if group.crops else None
        sequence = EngineSequence(number, request, sink, PREFIX if image else 1, image, deadline)
        self._core.scheduler.prepare(sequence)
        self._core.submit(sequence)

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), action))

    def _run_until(self, end: float) -> None:
        while self.runner.now < end:
            while self._events and self._events[0][0] <= self.runner.now:
                heapq.heappop(self._events)[2]()
            if not self._core.tick():
                moments = [self._events[0][0] if self._events else end]
                if (when := self._core.wake_at) is not None and when > self.runner.now:
                    moments.append(when)
                self.runner.now = min(moments)


class _Client:
    """One client, or the crowd behind a rate."""

    def __init__(self, world: World, group: Group, waits: Waits) -> None:
        self._world = world
        self._group = group
        self._waits = waits
        self._due = 0.0

    def ask(self) -> None:
        world, group = self._world, self._group
        now = self._due = world.runner.now
        answer = _Answer(world.runner, self._waits, now, self._answered)
        world.later(_PREPARE_S, lambda: world.submit(group, answer, now))
        if group.rate:
            world.later(world.draw_wait(group.rate), self.ask)

    def _answered(self) -> None:
        if not self._group.rate:
            wait = self._due + (self._group.period_s or 0.0) - self._world.runner.now
            self._world.later(max(0.0, wait), self.ask)


class _Answer:
    """A request's sink."""

    def __init__(self, runner: ModelledRunner, waits: Waits, asked: float, then: Callable[[], None]) -> None:
        self._runner = runner
        self._waits = waits
        self._asked = asked
        self._then = then
        self._last: float | None = None

    def on_token(self, token: Token) -> None:
        now = self._runner.now
        if self._last is not None:
            self._waits.gaps.append(now - self._last)
        self._last = now

    def on_finish(self, sequence: EngineSequence) -> None:
        if sequence.error is None:
            self._waits.answers.append(self._runner.now - self._asked)
        elif isinstance(sequence.error, DeadlineError):
            self._waits.dropped += 1
        else:
            raise AssertionError(f"request {sequence.number} has failed") from sequence.error
        self._then()


@dataclass(frozen=True, slots=True)
class _Crops:
    pixels: npt.NDArray[np.uint8]
    tiling: tuple[int, int] = (1, 1)


class _Image:
    """An image that is cut some time after it was requested; never without a world."""

    size = None
    failure = None

    def __init__(self, key: str, crops: int, world: World | None) -> None:
        self.key = key
        self.crops: _Crops | None = None
        self._count = crops
        self._world = world

    def request_crops(self, pages: object = None) -> None:
        if self._world is not None:
            self._world.later(_CUT_S, self._cut)
            self._world = None

    def drop_crops(self) -> None:
        self.crops = None

    def _cut(self) -> None:
        self.crops = _Crops(np.zeros((self._count, 1, 1, 3), np.uint8))
