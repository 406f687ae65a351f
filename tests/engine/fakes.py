"""An engine core on a fake executor: tokens come from a script, and every call is recorded."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from photonlite.batch import EncodeJob, ScheduledBatch, Step, Transfer
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.config import RouterRule
from photonlite.engine.core import EngineCore
from photonlite.image_inputs import StoredImage
from photonlite.images.crops import ImageCrops
from photonlite.request import Allowed, Grammar, Request, SamplingSettings, Token
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.parts import PartSpeeds, PartTable
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence as EngineSequence
from tests.cache.sequences import check_pool

PREFIX = 10
PAGE = 4
END, WORD = 0, 7
GARBAGE = Token(999)


class Words:
    """A grammar of words up to the end id; `constrained` ones do not know their masks ahead."""

    def __init__(self, budget: int = 100, constrained: bool = False) -> None:
        self.budget = budget
        self.constrained = constrained
        self.seen: list[int] = []

    @property
    def allowed(self) -> Allowed:
        return Allowed((WORD, END)) if self.constrained else Allowed()

    @property
    def ahead(self) -> Allowed | None:
        return None if self.constrained else Allowed()

    @property
    def run(self) -> tuple[int, ...]:
        return ()

    @property
    def expected_run(self) -> tuple[int, ...]:
        return ()

    @property
    def finish_reason(self) -> str | None:
        if self.seen and self.seen[-1] == END:
            return "stop"
        return "length" if len(self.seen) >= self.budget else None

    def accept(self, token: Token) -> None:
        if self.finish_reason is not None:
            raise ValueError("it has ended")
        self.seen.append(token.id)


@dataclass(eq=False)
class FakeImage:
    key: str
    cut: bool = True
    size: tuple[int, int] | None = (6, 4)
    failure: BaseException | None = None
    asked: int = 0
    dropped: int = 0
    stored: StoredImage | None = None

    @property
    def crops(self) -> ImageCrops | StoredImage | None:
        return (
            self.stored
            if self.stored is not None
            else ImageCrops(np.zeros((3, 2, 2, 3), np.uint8), (1, 2))
            if self.cut
            else None
        )

    def request_crops(self, pages: object = None) -> None:
        self.asked += 1

    def drop_crops(self) -> None:
        self.dropped += 1


@dataclass(eq=False)
class FakeSink:
    tokens: list[Token] = field(default_factory=list)
    ends: list[EngineSequence] = field(default_factory=list)

    def on_token(self, token: Token) -> None:
        self.tokens.append(token)

    def on_finish(self, sequence: EngineSequence) -> None:
        self.ends.append(sequence)


Script = Callable[[EngineSequence, int], Token | Exception]


class FakeRunner:
    """Returns scripted tokens, and garbage where no token is wanted."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.per_crop = self.per_position = self.per_page = 0.0  # seconds
        self.transfers: list[Transfer] = []
        self.copying: list[Transfer] = []  # those that have not ended
        self.copies_last = False  # they end only when they are waited for
        self.encodes_last = False  # encode steps beside the others end only when they are waited for
        self.failing_copies: set[int] = set()
        self.calls: list[tuple[str, int]] = []
        self.steps: list[Step] = []
        self.allowed: dict[int, list[Allowed | None]] = {}
        self.fails: set[tuple[str, int]] = set()
        self.forgotten: list[EncodeJob] = []
        self.before_collect: Callable[[Step], None] = lambda step: None

    def launch(self, step: Step) -> None:
        self._note("launch", step)
        self.steps.append(step)

    def finalize(self, step: Step, allowed: Sequence[Allowed | None]) -> None:
        self._note("finalize", step)
        self.allowed[step.number] = list(allowed)

    def collect(self, step: Step) -> list[Token | Exception | None]:
        self.before_collect(step)
        self._note("collect", step)
        step.device_s = step.plan.crops * self.per_crop
        # Few positions take as long as one: as long as the weights are read.
        step.device_s += sum(1 if step.kind == "run" else row.count for row in step.rows) * self.per_position
        if step.kind == "encode" or step.plan.beside:
            return [None] * len(step.rows)
        return [
            None if row.index is None else GARBAGE if choice is None else self.script(row.sequence, row.index)
            for row, choice in zip(step.rows, self.allowed[step.number], strict=True)
        ]

    def has_ended(self, step: Step) -> bool:
        return not self.encodes_last

    def transfer(self, transfer: Transfer) -> None:
        self.transfers.append(transfer)
        self.copying.append(transfer)

    def transferred(self, transfer: Transfer, *, wait: bool) -> bool:
        if self.copies_last and not wait:
            return False
        assert self.copying.pop(0) is transfer
        transfer.device_s = self.per_page * len(transfer.pages)
        if transfer.number in self.failing_copies:
            transfer.failure = RuntimeError(f"copy {transfer.number} fails")
        return True

    def forget(self, job: EncodeJob) -> None:
        self.forgotten.append(job)

    def free_memory(self) -> None:
        self.calls.append(("free_memory", -1))

    def close(self) -> None:
        self.calls.append(("close", -1))

    def _note(self, call: str, step: Step) -> None:
        self.calls.append((call, step.number))
        if (call, step.number) in self.fails:
            raise RuntimeError(f"{call} {step.number} fails")


class Bench:
    """An engine core with scheduler, cache and fake executor."""

    def __init__(
        self,
        script: Script,
        *,
        depth: int = 2,
        pages: int = 100,
        max_batch: int = 4,
        prefix_caching: bool = True,
        max_pause_s: float = 0.0,
        max_positions: int = sys.maxsize,
        pending_rows: int | None = None,
        router: RouterRule = "greedy",
        swap_pages: int = 0,
        encodes_beside: bool = False,
        divides: bool = False,
        realtime_part: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.pages = PagePool(pages, PAGE)
        self.cache = CacheManager(self.pages, prefix_caching=prefix_caching)
        limits = Limits(
            max_batch,
            pending_rows or 2 * max_batch,
            max_prefill_tokens=1000,
            max_crops=8,
            max_pause_s=max_pause_s,
            max_positions=max_positions,
            router=router,
            swap_pages=swap_pages,
            encodes_beside=encodes_beside,
            parts=PartTable({32: PartSpeeds(0.54, 0.67)}) if divides else None,
            realtime_part=realtime_part,
        )
        self.scheduler = Scheduler(self.cache, limits)
        self.runner = FakeRunner(script)
        self.core = EngineCore(self.scheduler, self.runner, depth, clock=clock)
        self.sequences: list[EngineSequence] = []
        self.clock = clock

    def ask(
        self,
        grammar: Grammar | None = None,
        image: FakeImage | None = None,
        budget: int = 100,
        deadline: float | None = None,
        realtime: bool = False,
        kept: bool = False,
    ) -> FakeSink:
        sink = FakeSink()
        prompt = (Token(1), Token(2)) if budget else ()
        request = Request(
            "query", prompt, grammar or Words(budget), budget, SamplingSettings(), realtime=realtime, kept=kept
        )
        before = PREFIX if image else 1
        sequence = EngineSequence(len(self.sequences), request, sink, before, image, deadline)
        self.sequences.append(sequence)
        self.hand_in(sequence)
        return sink

    def hand_in(self, sequence: EngineSequence) -> None:
        self.core.scheduler.prepare(sequence)
        self.core.submit(sequence)

    def plan(self) -> ScheduledBatch | None:
        return self.scheduler.plan(self.clock()).batch

    def run(self, ticks: int = 1000) -> None:
        for _ in range(ticks):
            if not self.core.tick():
                return
        raise AssertionError(f"not done after {ticks} ticks")

    def check(self) -> None:
        owners = self.cache.prefix.owners()
        for sequence in self.sequences:
            owners.update(sequence.pages)
        check_pool(self.pages, owners)

    def everything_is_free(self) -> bool:
        self.check()
        self.cache.prefix.evict(self.cache.prefix.idle_pages)
        running = self.scheduler.running
        return self.pages.free == self.pages.usable and not running.zombies and not len(running)


def ends_at(length: int) -> Script:
    """Words, and the end id as token number `length` (from 1)."""
    return lambda sequence, index: Token(END if index == length - 1 else WORD)
