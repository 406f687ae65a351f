"""The engine on a simulated device with a fake model, tick by tick, with cancellations, failures and shortages.

```
draw scenario and requests ──> tick, tick, tick ... ──> everything has ended, everything is free
                                 │  at several moments of each: requests and crops arrive or are cancelled,
                                 │  the device runs ahead
                                 └─ after each: `invariants.check`
```

Every token is compared with the oracle's where it comes out, and every end with what may have caused it.
"""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as ListLike
from functools import cache, partial
from random import Random
from typing import Any

import numpy as np

from photonlite.batch import BatchItem, Step, Transfer
from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.engine.core import EngineCore
from photonlite.errors import CapacityError, EngineDiedError
from photonlite.image_inputs import HostTensor, ImageRef, PrefixPages, StoredImage, StoredPages, UncutImage
from photonlite.images.pool import stored_key
from photonlite.request import Request, SamplingSettings, Token
from photonlite.runner.slots import EncoderSlot, Slot
from photonlite.runner.step_executor import StepExecutor
from photonlite.scheduler.adapters import AdapterLoad
from photonlite.scheduler.fifo import FifoPolicy
from photonlite.scheduler.realtime import RealtimePolicy
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import ImageSpan, Sequence, Sink
from tests.cache.sequences import NamedAdapter
from tests.device.simulated import SimulatedDevice
from tests.growth import table_sizes
from tests.simulation import invariants
from tests.simulation.beside import Beside
from tests.simulation.body import SymbolicBody, Violation
from tests.simulation.failing import FailingBody, Failures, InjectedFailure, InjectedShortage
from tests.simulation.family import Family
from tests.simulation.hostile import (
    HostileFault,
    HostileGrammar,
    HostileImage,
    HostileRequest,
    HostileSink,
    Hostility,
    Trap,
)
from tests.simulation.judge import AdapterFailure, ImageFailure, Judge
from tests.simulation.model import Input, adapted, embed, embed_image, image_input
from tests.simulation.oracle import Oracle
from tests.simulation.priority import Priority
from tests.simulation.riding import Riding
from tests.simulation.sharing import Sharing
from tests.simulation.trace import describe, name, standing, state
from tests.simulation.watch import Watch, WatchedRunner
from tests.simulation.workload import (
    Ask,
    CutCrops,
    LateImage,
    Scenario,
    Standing,
    draw_scenario,
    draw_workload,
    lay_out,
)

_SECOND = 1000.0
"""Ticks that pass for a second where it is a matter of milliseconds: when the next real-time request is expected."""
_PUSHED_OUT = 2
"""Times in a row that a bulk sequence may come back and leave without having worked."""
_PATIENCE = 60
"""Ticks that the engine may take for each token and image of a workload before it counts as stuck."""


class Simulation:
    """One engine, from its first request to its last.

    Args:
        seed: Decides everything.
        trace: Takes a line for each thing that happens; None for silence.
        calm: Whether nothing fails or is cancelled.
        policy: Schedules requests that are all bulk ones, from the beginning; None has real-time ones among them.

    Attributes:
        scenario: What was drawn.
        now: Ticks, and jumps over times in which nothing happens: the engine's clock.
        ticks: Calls of `EngineCore.tick`.
        seen: How often what happened.
        sequences: Those that were taken in.
        lent: For each slot, the step that has it; None while it is free.
        beside: Watches images that are encoded beside the other steps.
        failures: Says what fails.
        doomed: Sequences whose step has failed in this tick: they end with it.
        dead: Whether the engine died, as it was made to.
        images: What requests are about.
        traps: Of hostile requests, by number.
        priority: Watches who goes before whom.
        families: Requests that others follow.
        crops: How many each image has, by the prefix that ends with it, which names its tenant too.
        sharing: Watches what launches share.
        riding: Watches prompts that ride with decode steps.
        tables: Sizes of the engine's tables before the first request.
    """

    def __init__(
        self,
        seed: int,
        trace: Callable[[str], None] | None = None,
        *,
        calm: bool = False,
        policy: type[FifoPolicy] | None = None,
    ) -> None:
        self._draw = Random(seed)
        self._random = self._draw.random
        workload, longest, prefix_length = draw_workload(self._draw)
        self.scenario = draw_scenario(self._draw, longest, prefix_length)
        if calm:
            none: Any = {"failures": {}, "spoiled": 0.0, "cancels": 0.0, "deadly": None, "adapter_faults": 0.0}
            self.scenario = dataclasses.replace(self.scenario, **none)
        self.now = 0
        self.ticks = 0
        self.seen: Counter[str] = Counter()
        self.sequences: list[Sequence] = []
        self.lent: list[Step | None] = [None, None]
        self._computed: dict[Sequence, int] = {}  # positions that launches have computed since the last prefill
        self._assumed: dict[Sequence, BatchItem] = {}  # newest rows of sequences, where these assume what follows
        self._prefilled: dict[Sequence, int] = {}  # how often sequences had been given up before their last prompts
        self.moving: list[Transfer] = []  # copies of pages that have not ended
        self._came_back: dict[Sequence, int] = {}  # from host memory, with so many positions
        self._pushed_out: dict[Sequence, int] = {}  # times in a row without having computed any more
        self.failures = Failures(self.scenario.failures, self.scenario.deadly)
        self.doomed: list[Sequence] = []
        self.dead = False
        self._trace = trace
        self._judge = Judge()
        self.priority = Priority(self)
        self.sharing = Sharing(self)
        self.riding = Riding(self)
        self.beside = Beside(self)
        self._policy = policy
        self.asks = workload.asks[::-1]
        if policy is not None:
            self.asks = [ask.as_bulk() for ask in self.asks]
        self.images = workload.images
        self.traps: dict[int, Trap] = {}
        self._crops = [image.numbers for image in workload.images]
        self._cutting: list[tuple[int, LateImage]] = []
        self._loading: list[tuple[int, AdapterLoad]] = []
        self._work = sum(ask.work for ask in workload.asks)
        self._submitted = 0
        self._inbox: list[Callable[[], None]] = []  # what an engine thread reads before its next tick
        self.families: list[Family] = []
        self.crops: dict[bytes, int] = {}
        self._sizes: dict[str, int] = {}  # the same by the images' keys
        self._newest_collected = {False: -1, True: -1}  # of encode steps beside others, and of all others
        self._build(self.scenario, longest)
        self.tables = self.table_sizes()

    def make_hostile(self, index: int, hostility: Hostility) -> None:
        """Make one request of the workload raise, by its place in the order of arrival, and no other one."""
        asks = [dataclasses.replace(ask, hostility=None, fails=False, deadline=None) for ask in self.asks]
        asks[-1 - index] = dataclasses.replace(asks[-1 - index], hostility=hostility)
        self.asks = asks

    def run(self) -> None:
        """Run to the end.

        Raises:
            Violation: An invariant is broken.
            AssertionError: The same, found by the engine itself.
        """
        logger = logging.getLogger("photonlite")
        logger.disabled, before = True, logger.disabled  # each of thousands of faults would be told
        try:
            while self._tick():
                if self.ticks > _PATIENCE * self._work:
                    raise Violation(f"nothing ends: {len(self.core.open)} requests are open after {self.ticks} ticks")
        except EngineDiedError as death:
            self._die(death)
        finally:
            logger.disabled = before
        invariants.check_end(self)
        for trap in self.traps.values():
            self.seen.update(trap.sites)
        self.seen["given up before their deadlines"] += self.core.metrics.dropped_hopeless
        self.seen["pre-emptions"] += self.core.metrics.preemptions
        self.seen["images restored"] += self.core.metrics.images_restored
        self.seen["evictions"] += self.cache.prefix.evictions
        self.seen["padding rows"] += self.core.metrics.padding_rows

    def moment(self) -> None:
        """Let requests, crops and the device progress: called between any two actions of the engine."""
        drawn, scenario = self._random(), self.scenario
        if drawn < scenario.cancels:
            self._cancel_random()
        elif drawn > 1 - scenario.pushes:
            self.device.step()
        if self._cutting and drawn > 0.5:
            self._deliver_crops()
        if self._loading:
            self._deliver_adapters()

    def launching(self, step: Step) -> None:
        """Check a launch before it is done."""
        if self._trace is not None:
            self._say(f"launch {describe(step)}")
        slots = self.slots_of(step)
        if (holder := slots[step.slot]) is not None:
            raise Violation(f"step {step.number} gets slot {step.slot}, which step {holder.number} still has")
        slots[step.slot] = step
        seen = self.seen
        self.beside.launching(step)
        self.priority.launching(step)
        for row in step.rows:
            # A prompt beside others is launched behind their step: meanwhile it may have ended.
            if row.sequence.preempting or (row.sequence.finalized and not step.plan.beside):
                raise Violation(f"step {step.number} carries {name(row.sequence)}, which has no use for it")
            if 0 < row.start < row.sequence.block - 1:
                raise Violation(f"{name(row.sequence)} goes on at {row.start}, inside its block")
            if row.restored:
                self._check_restored(row)
            elif row.begins and row.start > 0:
                seen["hits of whole prompts"] += row.sequence.prompt_block > 0
                seen["prefix hits"] += 1
        seen["rows of real-time sequences"] += sum([row.sequence.realtime for row in step.rows])
        self._compute(step)
        seen["launches over a step in flight"] += len(self.core.pipeline.in_flight) > 1
        seen["launches without a free page"] += self.pages.free == 0
        self.sharing.launching(step)
        if not step.plan.beside:
            self.riding.launching(step)
        plan, depth = step.plan, self.scenario.depth
        seen["batches of more than 8 rows"] += len(step.rows) > 8
        seen[f"{step.kind} {'beside others' if self.beside.is_beside(step) else f'in depth {depth}'}"] += 1
        seen["page copies"] += len(plan.copies)
        seen["page saves"] += len(plan.saves)
        adapters = {row.sequence.adapter_slot for row in step.rows}
        if len(adapters) > 1:
            seen["launches of several adapters"] += len(adapters - {0}) > 1
            seen["launches with and without adapters"] += 0 in adapters
        if plan.groups:
            seen["images encoded with adapters"] += sum(group.adapter_slot > 0 for group in plan.groups)
            seen["encode steps of several images"] += len(plan.groups) > 1
            seen["images encoded in several steps"] += any(group.first > 0 for group in plan.groups)

    def slots_of(self, step: Step) -> list[Step | None]:
        """Return who has which slot, of those that a step may have."""
        return self.beside.lent if self.beside.is_beside(step) else self.lent

    def transferring(self, transfer: Transfer) -> None:
        """Check a copy of pages before it is queued."""
        sequence, way = transfer.sequence, transfer.direction
        if self._trace is not None:
            self._say(f"swap {way} {name(sequence)}: pages {transfer.pages}, places {transfer.places}")
        if sequence.inflight_refs or sequence in self.scheduler.running:
            raise Violation(f"{name(sequence)} is copied {way} while it runs")
        if way == "in" and any(self.pages.refcount(page) != 1 for page in transfer.pages):
            raise Violation(f"pages {transfer.pages} come in for {sequence.number}, and others use them")
        if way == "in":
            self._came_back[sequence] = sequence.num_computed_tokens
        elif not sequence.realtime:
            idle = self._came_back.pop(sequence, -1) == sequence.num_computed_tokens
            self._pushed_out[sequence] = self._pushed_out.get(sequence, 0) + 1 if idle else 0
            self.seen["bulk sequences that left without a turn"] += idle
            if self._pushed_out[sequence] > _PUSHED_OUT:
                raise Violation(f"{name(sequence)} comes back again and again, and never works")
        self.moving.append(transfer)
        self.sharing.transferring(transfer)
        self.seen[f"swapped {way}"] += 1
        self.seen["pages of the cache that need not come in"] += way == "in" and sequence.shared_pages

    def transferred(self, transfer: Transfer) -> None:
        """Note that a copy has ended; where copies take no time, it always pays to keep what was computed."""
        self.moving.remove(transfer)
        self.seen["copies of pages that failed"] += transfer.failure is not None
        if self.scenario.free_copies:
            transfer.device_s = 0.0

    def _check_moving(self, step: Step) -> None:
        """Check that no page is written on its way out, nor read on its way in."""
        size = self.scenario.page_size
        out = {page for transfer in self.moving if transfer.direction == "out" for page in transfer.pages}
        coming = {page for transfer in self.moving if transfer.direction == "in" for page in transfer.pages}
        for row in step.rows:
            pages = row.sequence.pages
            if coming.intersection(pages):
                raise Violation(f"step {step.number} reads pages of {name(row.sequence)} that are on their way in")
            first = min((page for _, _, page in row.restored), default=row.start // size)
            if out.intersection(pages[first : (row.start + row.count - 1) // size + 1]):
                raise Violation(f"step {step.number} writes pages of {name(row.sequence)} that are on their way out")
        if any(copy.target in out | coming for copy in (*step.plan.copies, *step.plan.saves)):
            raise Violation(f"step {step.number} copies to pages that are moving: {step.plan.copies}")
        self.seen["launches while pages move"] += 1

    def _check_restored(self, row: BatchItem) -> None:
        """Check that stored pages are written only to pages that nobody reads yet."""
        restored, sequence = row.restored, row.sequence
        blocks = self.cache._chains.get(sequence.number, ())
        built = Counter(page for block in blocks if block.state == "building" for page in block.pages)
        for _, place, first in restored:
            pages = sequence.pages[first : place.stop]
            if any(self.pages.refcount(page) != 1 + built[page] for page in pages):
                raise Violation(f"stored pages are written to {pages} of {name(sequence)}, which others use")
        self.seen["restored pages behind others"] += restored[0][1].first > 0
        self.seen["restored pages, some shared"] += sequence.shared_pages > 0
        self.seen["restored pages of several images"] += len(restored) > 1

    def _compute(self, step: Step) -> None:
        """Check that each position is computed once, from a token that is known by then, and that none overtakes."""
        if self.moving:
            self._check_moving(step)
        swapped = {one.realtime for one in self.scheduler.running.swap.swapped}
        if early := [row.sequence for row in step.rows if row.begins and row.sequence.realtime in swapped]:
            raise Violation(f"{name(early[0])} is admitted before swapped sequences have come back")
        for row in step.rows:
            sequence = row.sequence
            if row.begins:
                self._assumed.pop(sequence, None)
                chosen = sequence.times.preemptions
                if self._prefilled.get(sequence, -1) >= chosen:
                    raise Violation(f"{name(sequence)} is computed again, though nothing of it was given up")
                self._prefilled[sequence] = chosen
            else:
                self._check_assumed(row)
                if row.start != self._computed[sequence]:
                    raise Violation(f"{name(sequence)} computes {row.start}, behind {self._computed[sequence]}")
                if row.pending and row.count != 1 + len(row.assumed):
                    raise Violation(f"{name(sequence)} decodes {row.count} positions at once")
            end = row.start + row.count
            known = sequence.num_tokens - step.plan.beside  # there the last one is decoded
            if not row.pending and ((end != known) != row.cut or end > known):
                raise Violation(f"{name(sequence)} computes up to {end} of {sequence.num_tokens}, cut: {row.cut}")
            self._computed[sequence] = end
            forced = not row.pending and not row.begins and sequence.num_committed_tokens > 0
            self.seen["tokens of runs"] += row.count if forced else 0
            if row.assumed:
                self._assumed[sequence] = row

    def _check_assumed(self, row: BatchItem) -> None:
        """Check that what a launch has assumed of a sequence counts if it followed, and is computed again if not."""
        before = self._assumed.pop(row.sequence, None)
        if before is None or before.index is None:
            return
        known = row.sequence.tokens[before.index - len(before.assumed) : before.index]
        followed = [token.id for token in known] == list(before.assumed)
        self.seen["runs that followed as assumed" if followed else "runs that did not follow"] += 1
        if not followed:
            self._computed[row.sequence] = before.start

    def uncompute(self, step: Step) -> None:
        """Take back what a launch that raised would have computed."""
        for row in step.rows:
            self._computed[row.sequence] = row.start
            self._assumed.pop(row.sequence, None)
            if row.begins:
                del self._prefilled[row.sequence]

    def finalizing(self, step: Step) -> None:
        """Note whether a step is sampled before those in front of it have been read."""
        if self._trace is not None:
            self._say(f"finalize step {step.number}")
        early = self.core.pipeline.oldest is not step
        self.seen["sampled before the last commit" if early else "sampled after it"] += 1
        self.moment()

    def collecting(self, step: Step) -> None:
        """Check that commits keep the order of launches."""
        self.moment()
        if self._trace is not None:
            self._say(f"commit step {step.number}")
        beside = self.beside.is_beside(step)
        if step.number <= self._newest_collected[beside]:
            raise Violation(f"step {step.number} is committed after step {self._newest_collected[beside]}")
        self._newest_collected[beside] = step.number
        for row in step.rows:
            self.seen["zombie rows"] += row.sequence.finalized
            self.seen["rows of the pre-empted"] += row.sequence.preempting

    def doom(self, step: Step, error: Exception) -> None:
        """Note which sequences must end now: those that a failed step carries, and those whose images it encodes.

        Where memory was short for several crops or prompts, they may be tried again, a few at a time. So may a prompt
        whose image was among these, whatever became of its own step.
        """
        if isinstance(error, MemoryError) and len(step.rows) + step.plan.crops > 1:
            return
        void = {row for row in step.rows if any(job.failed for job in row.jobs) and row.sequence.preempting}
        self.doomed += [row.sequence for row in step.rows if row not in void]
        self.doomed += [group.job.leader for group in step.plan.groups]

    def ended(self, sequence: Sequence, oracle: Oracle) -> None:
        """Receive a sequence's end."""
        if self._trace is not None:
            self._say(f"end {name(sequence)}: {type(sequence.error).__name__}")
        self.seen[f"ended by {type(sequence.error).__name__}" if sequence.error else "answered"] += 1
        if sequence.number not in self.traps or not isinstance(sequence.error, HostileFault):
            self._judge.judge(sequence, oracle, self.now, dying=self.failures.dying)

    def fail(self, kind: str, step: Step | None) -> None:
        """Raise if this call is one of those that fail."""
        if not self.failures.due(kind):
            return
        if step is None:
            raise Violation(f"a call of {kind} runs for a slot that no step has")
        if self._trace is not None:
            self._say(f"fail {kind} of step {step.number}")
        self.seen[f"failed {kind}"] += 1
        self.seen["two steps failed in a row"] += self.failures.wounds > 1
        self._judge.strike(step)
        if not self.failures.dying and self._random() < 0.3:
            raise InjectedShortage("of memory")
        raise InjectedFailure(f"this call of {kind} fails")

    def _build(self, scenario: Scenario, longest: int) -> None:
        spoils = self._spoils if scenario.spoiled else None
        body = scenario.slots(longest), scenario.prefix_length, scenario.pages, scenario.sizes, spoils
        self.body = (
            FailingBody(*body, fail=self._fail_call, late=lambda: self._random() < 0.5)
            if scenario.failures
            else SymbolicBody(*body)
        )
        if isinstance(self.body, FailingBody):
            self.body.copy_fails = lambda: self._random() < 0.2
        self.device = SimulatedDevice(self._draw, encodes_beside=scenario.encodes_beside)
        self.pages = PagePool(scenario.pages, scenario.page_size)
        self.cache = CacheManager(self.pages, prefix_caching=scenario.prefix_caching)
        self.scheduler = Scheduler(self.cache, scenario.limits(), _SECOND)
        if self._policy is RealtimePolicy:
            self.scheduler.prioritise()
        beside = {"encodes_beside": scenario.encodes_beside, "prompts_beside": scenario.divides}
        self.runner = StepExecutor(self.device, self.body, scenario.depth, **beside)
        runner = WatchedRunner(self.runner, self)
        self.core = EngineCore(self.scheduler, runner, scenario.depth, clock=lambda: float(self.now))
        self.core.load_adapter = self._begin_to_load

    def _tick(self) -> bool:
        """Tick once; returns whether anything is left to do."""
        while self.asks and self.asks[-1].at <= self.now:
            self._submit(self.asks.pop())
        while self._inbox:
            self._inbox.pop(0)()
        self.moment()
        if self._trace is not None:
            self._say(f"tick {standing(self.scheduler)}")
        self.priority.planning()
        self.beside.planning()
        busy = self.core.tick()
        self.ticks += 1
        self.now += 1
        invariants.check(self)
        if busy:
            return True
        if self.core.open and self.scheduler.policy.kept_idle_until is not None:
            self.seen["ticks in which the device was kept idle"] += 1
            return True
        if self._inbox:
            return True
        if self._cutting or self._loading or self.asks:
            self._skip()
            return True
        if self.core.open:
            left = ", ".join(name(sequence) for sequence in self.core.open)
            raise Violation(f"the engine has nothing to do, but these are open: {left}")
        return False

    def _skip(self) -> None:
        """Jump to the next event."""
        times = [at for at, _ in (*self._cutting, *self._loading)] + [ask.at for ask in self.asks[-1:]]
        self.now = max(self.now, min(times))
        self._deliver_crops()
        self._deliver_adapters()

    def table_sizes(self) -> dict[str, int]:
        """Measure the tables of engine, scheduler, cache and runner."""
        return table_sizes([self.core, self.runner])

    def request_of(self, ask: Ask) -> Request:
        """Make the request that an `Ask` describes."""
        settings = _settings(ask.temperature, ask.top_p, penalized=ask.penalized)
        return Request(
            "simulated",
            ask.prompt,
            ask.grammar(),
            ask.budget,
            settings,
            cache_salt=ask.cache_salt,
            realtime=ask.realtime,
            kept=ask.seed % 2 == 0,
            adapter=NamedAdapter(str(ask.adapter), f"adapter {ask.adapter}") if ask.adapter else None,
        )

    def follow(self, request: Request, sink: Sink, ask: Ask) -> Sequence:
        """Submit a follow-up: it is read before the next tick."""
        sequence = self._sequence(request, ask, sink)
        self._prepare(sequence)
        self._inbox.append(lambda: self._hand_in(sequence))
        return sequence

    def cancel_soon(self, sequence: Sequence) -> None:
        """Cancel a sequence before the next tick."""
        self._inbox.append(lambda: self._cancel(sequence))

    def _submit(self, ask: Ask) -> None:
        family = Family(self, ask) if ask.further else None
        if family is not None:
            self.families.append(family)
        try:
            sequence = self._sequence(self.request_of(ask), ask, family)
            self._prepare(sequence)
        except CapacityError as error:
            if family is not None:
                family.ends.append(error)
            return
        except HostileFault:
            self.seen["refused for raising"] += 1
            return
        self._hand_in(sequence)

    def _sequence(self, request: Request, ask: Ask, follower: Family | Sink | None) -> Sequence:
        number, scenario = self._submitted, self.scenario
        self._submitted += 1
        leading = None if scenario.inside else ask.image
        before = 0 if scenario.inside else 1 if leading is None else scenario.prefix_length
        image: ImageRef | None = None if leading is None else self._image(ask, leading)
        standing: list[Standing] = []
        inputs: list[Input] | None = None
        if scenario.inside:
            prompt, standing = lay_out(ask, len(self.images), scenario.prefix_length)
            request, inputs = dataclasses.replace(request, prompt=prompt), self._inputs(ask, prompt, standing)
        images = [self._image(ask, one.image) for one in standing]
        begun = ask.seed % min(3, len(request.prompt) or 1) if scenario.prefix_lm else None
        block = 0 if begun is None else before + len(request.prompt) - begun
        draws = ask.temperature, ask.top_p, ask.seed
        oracle = Oracle(
            None if leading is None else self._crops[leading], before, ask.prompt, ask.grammar(), *draws,
            penalized=ask.penalized, begun=begun, adapter=ask.adapter, inside=inputs,
        )  # fmt: skip
        deadline = None if ask.deadline is None else self.now + ask.deadline
        watch = Watch(self, number, oracle, follower)
        sink: Any = watch
        if self._trace is not None:
            kind = "real-time" if ask.realtime else "bulk"
            what = f"image {ask.image}, {ask.hostility or 'peaceful'}"
            self._say(f"submit {kind} {number}: {before} + {len(ask.prompt)} + {ask.budget}, {what}")
        hostile: Any = request
        if ask.hostility is not None:
            trap = self.traps[number] = Trap(ask.hostility)
            hostile = HostileRequest(dataclasses.replace(request, grammar=HostileGrammar(request.grammar, trap)), trap)
            sink = HostileSink(sink, trap)
            image = None if image is None else HostileImage(image, trap)
            images = [HostileImage(one, trap) for one in images]
        spans = tuple(ImageSpan(one, at.start, at.count) for one, at in zip(images, standing, strict=True))
        watch.sequence = Sequence(
            number, hostile, sink, before, image, deadline, ask.seed, prompt_block=block, inside=spans
        )
        return watch.sequence

    def _image(self, ask: Ask, which: int) -> ImageRef:
        failure = ImageFailure(f"image {which} of {self._submitted}") if ask.fails else None
        key = f"image {which} of {ask.cache_salt!r}"
        stored_as = stored_key(key, f"adapter {ask.adapter}" if ask.adapter else "")
        self._sizes[stored_as] = len(self.images[which].pixels)

        def restore(pages: PrefixPages | None) -> StoredImage | None:
            return None if ask.hostility is not None else self._restore(stored_as, pages)

        return LateImage(key, self._cut(ask, which), ask.delay, failure, self._begin_to_cut, restore)

    def _inputs(self, ask: Ask, prompt: ListLike[Token], standing: list[Standing]) -> list[Input]:
        """Return what stands at each position of a prompt with images inside."""
        inputs = [embed(token) for token in prompt]
        for one in standing:
            image = embed_image([adapted(crop, ask.adapter) for crop in self._crops[one.image]])
            inputs[one.start : one.start + one.count] = [image_input(image, place) for place in range(one.count)]
        return inputs

    def _restore(self, key: str, place: PrefixPages | None) -> StoredImage | None:
        """Return what a store has of an image; None where it was never made, or cannot be read."""
        embeddings = self.body.kept.get(key)
        if embeddings is None or not self.scenario.stored:
            return None
        if self._random() >= self.scenario.stored:
            self.seen["stored images that could not be read"] += 1
            return None
        self.seen["stored images"] += 1
        cells = None if place is None else self.body.kept_pages.get(place.key)
        if place is None or cells is None or self._random() >= self.scenario.stored:
            return StoredImage(_numbers([embeddings]))
        self.seen["stored pages"] += 1
        return StoredImage(_numbers([embeddings]), StoredPages(place, _numbers(cells)))

    def _cut(self, ask: Ask, which: int) -> CutCrops | UncutImage:
        """Return an image's crops, or for every other image one that the device cuts."""
        cut = self.images[which]
        # A whole image of two crops cannot be written down.
        if which % 2 == 0 or len(cut.pixels) == 2 or ask.hostility is not None:
            return cut
        self.seen["uncut images"] += 1
        return cut.uncut()

    def _prepare(self, sequence: Sequence) -> None:
        """Prepare a sequence as its caller does, and check that it is refused if and only if it can never fit."""
        positions = sequence.prefix_len + len(sequence.prompt) + max(0, sequence.budget - 1)
        kept = [span.end for span in sequence.images]
        if sequence.prompt_block:
            kept = [sequence.prompt_block - 1] if sequence.prompt_block > max(kept, default=0) else []
        fits = self.scenario.fits(positions, kept=kept)
        try:
            self.core.scheduler.prepare(sequence)
        except CapacityError:
            if fits:
                raise
            self.seen["refused"] += 1
            raise
        if not fits:
            raise Violation(f"{name(sequence)} was taken in, but can never fit")
        self.crops.update({span.link: self._sizes[span.key] for span in sequence.images})

    def _hand_in(self, sequence: Sequence) -> None:
        try:
            self.core.submit(sequence)
        except HostileFault as fault:
            raise Violation(f"{name(sequence)} raises on the engine's thread when it is handed in") from fault
        self.sequences.append(sequence)

    def _begin_to_cut(self, image: LateImage) -> None:
        self._cutting.append((self.now + image.delay, image))

    def _deliver_crops(self) -> None:
        for entry in [entry for entry in self._cutting if entry[0] <= self.now]:
            self._cutting.remove(entry)
            entry[1].arrive()

    def _begin_to_load(self, load: AdapterLoad) -> None:
        self.seen["adapters loaded"] += 1
        self._loading.append((self.now + int(self._random() * (self.scenario.adapter_delay + 1)), load))

    def _deliver_adapters(self) -> None:
        """Write adapters to their slots, as a thread of its own does, which then tells the engine."""
        for entry in [entry for entry in self._loading if entry[0] <= self.now]:
            self._loading.remove(entry)
            load, error = entry[1], None
            if self._random() < self.scenario.adapter_faults:
                error = AdapterFailure(f"{load.adapter.key} cannot be read")
                self.body.bank.pop(load.slot, None)
            else:
                self.body.bank[load.slot] = int(load.adapter.name)
            self._inbox.append(partial(self.core.note_adapter, load, error))

    def _cancel_random(self) -> None:
        """Cancel a sequence of a random queue."""
        scheduler = self.scheduler
        running = scheduler.running
        queues = [queue for queue in (scheduler.waiting, running, running.zombies, list(running.swap)) if queue]
        if not queues or self._random() < 0.05:
            queues = [self.sequences[:]]
        # Sorted, since the order of a set is not the seed's.
        queue = sorted(queues[int(self._random() * len(queues))], key=lambda one: one.number)
        if not queue:
            return
        sequence = queue[int(self._random() * len(queue))]
        self.seen[f"cancelled {state(sequence, scheduler)}"] += 1
        self.seen["cancelled while encoded beside others"] += self.beside.encodes(sequence)
        self._cancel(sequence)
        if self.families and self._random() < 0.1:
            self.families[int(self._random() * len(self.families))].give_up()

    def _cancel(self, sequence: Sequence) -> None:
        if self._trace is not None:
            self._say(f"cancel {name(sequence)}")
        if not sequence.finalized:
            self._judge.cancelled.add(sequence.number)
        self.core.cancel(sequence)
        if not sequence.finalized:
            raise Violation(f"{name(sequence)} goes on after it was cancelled")

    def _fail_call(self, kind: str, slot: EncoderSlot | None) -> None:
        lent = self.lent if isinstance(slot, Slot) and not slot.beside else self.beside.lent
        self.fail(kind, self.core.pipeline.in_flight[-1] if slot is None else lent[slot.index])

    def _spoils(self, slot: Slot, index: int) -> bool:
        step = self.lent[slot.index]
        if step is None or self._random() >= self.scenario.spoiled:
            return False
        row = step.rows[index]
        self._judge.spoiled.setdefault(
            row.sequence.number, len(row.sequence.tokens) if row.index is None else row.index
        )
        self.seen[f"NaNs in {step.kind}"] += 1
        return True

    def _die(self, death: EngineDiedError) -> None:
        """Fail all requests, as the engine's thread does when it dies."""
        if not self.failures.dying:
            raise Violation("the engine died of fewer failures than it can bear") from death
        self.dead = True
        self.seen["died"] += 1
        notes, self._inbox = self._inbox, []  # what ended in this tick has submitted follow-ups
        for note in notes:
            note()
        self.core.end_all_after_fault(death)

    def _say(self, line: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now:5} {line}")


@cache
def _settings(temperature: float, top_p: float, *, penalized: bool) -> SamplingSettings:
    """Return settings, which do not change: few differ."""
    return SamplingSettings(temperature=temperature, top_p=top_p, repetition_penalty=1.5 if penalized else 1.0)


def _numbers(values: list[int]) -> HostTensor:
    return HostTensor(np.array(values, np.int64).view(np.uint8), (len(values),), "int64")
