"""The scheduler: first come, first served in each of two classes, with pages instead of promises.

```
submit ─> waiting ── image encoded, pages there ──> running ──────────────> finished
             ^                                          │  decode: one position a step, a page every few
             └──── pages run out: the last one goes ────┘
```

`plan` says what to launch next and takes what it needs: rows, pages, crops. `commit` books what a step has done. While
there is decoding to do, launches alternate:

```
decode │ encode ─ encode ─ prefill │ decode │ encode ...
       └ a pause: as long as those that wait outweigh those that are decoded, and at least one launch ┘
```

Encoding and prefills take turns at the beginning of a pause, so that neither holds the other up for ever. A sequence
that is not ready (its image is being cut or encoded) is passed by; one that lacks pages is not: nobody behind it may
take them.

Real-time requests come before bulk ones, in every queue, and in launches of their own (`priority`, `policy.Pause`):

- Their crops and prompts go first, also where the pause of bulk work is over.
- While one is ready to run and cannot, no bulk prompt is admitted: pages and rows that come free are its own.
- They run beside a full batch, and are decoded in steps of their own: each row more makes a step longer.
- No bulk prompt or image is launched between these steps, nor in the moments before the next request of a loop is
  expected, whose rhythm the engine knows. Such moments are bounded (`engine.rhythm`), and count as overtaking launches.
- When pages run out, the youngest bulk sequence gives its own back before any real-time one does.

After `BULK_TURN` launches that overtook bulk work which waits, the next launch is bulk's; `BULK_STEP` decode steps may
pass a bulk sequence by, and as many are the longest time without a launch for bulk work that waits. A bulk request that
lacks pages at its turn holds real-time ones up, but only while some of these run: else it is other bulk work that it
waits for.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

from photonlite.batch import BatchItem, EncodeJob, PageCopy, ScheduledBatch, Step
from photonlite.cache.manager import CacheManager
from photonlite.scheduler.encoding import Encodings, Unusable
from photonlite.scheduler.policy import Allowance, Limits, Load, Pause, Rates, Room
from photonlite.scheduler.priority import BULK_STEP, Queue, Turns
from photonlite.scheduler.readiness import Need, Readiness
from photonlite.scheduler.residents import Residents
from photonlite.scheduler.waiting import Waiting
from photonlite.sequence import Sequence

_SATISFIED = 64
"""Waiting sequences that need no launch, of those that one plan ends: ending one takes time."""


class Scheduler:
    """Queues of sequences, and the choice of the next launch.

    Args:
        cache: Pages and prefixes.
        limits: What launches may hold.

    Attributes:
        waiting: Not yet admitted, or pre-empted.
        unusable: Waiting sequences whose images could not be cut, and why; the engine ends them.
        satisfied: Waiting sequences that asked for nothing but an image that is cached; the engine ends them.
        realtime_near: Whether real-time requests are open or come again within a second or so; the engine, which has
            the clock, says so.
        realtime_soon: Whether one will be ready in a moment: no bulk prompt or image is launched any more.
        admits: Whether prompts and images are launched at all; else only those that run are decoded.
    """

    def __init__(self, cache: CacheManager, limits: Limits) -> None:
        self.cache = cache
        self.limits = limits
        self.rates = Rates()
        self._pause = Pause(limits, self.rates)
        self.waiting = Waiting()
        self._residents = Residents(cache, limits, self.waiting)
        self._enough = max(1, limits.max_crops // 2)
        self._crops = Allowance(limits.max_crops)
        self._prompts = Allowance(limits.max_batch)
        self._encodings = Encodings(cache, limits.max_jobs, limits.max_image_bytes)
        self._readiness = Readiness(cache, self._encodings, limits)
        self.unusable: list[Unusable] = []
        self.satisfied: list[Sequence] = []
        self.realtime_near = False
        self.realtime_soon = False
        self.admits = True
        self._kept_free = False
        self._turns = Turns()
        self._steps = Turns(BULK_STEP)
        self._realtime_decoding = False
        self._prefilled_last = {True: False, False: False}  # for real-time requests, and for bulk ones
        self._bulk_lacks_pages = False

    @property
    def running(self) -> Queue:
        """Admitted and not finalized."""
        return self._residents.running

    @property
    def zombies(self) -> set[Sequence]:
        """Finalized, and still carried by a step."""
        return self._residents.zombies

    @property
    def free_rows(self) -> list[int]:
        """Of the pending table."""
        return self._residents.free_rows

    @property
    def bulk_waits(self) -> bool:
        """Whether bulk requests wait that rows and the batch have room for."""
        return self.waiting.bulk > 0 and self._residents.has_place(realtime=False)

    @property
    def jobs(self) -> dict[str, EncodeJob]:
        """Images that are being encoded, by key."""
        return self._encodings.jobs

    def prepare(self, sequence: Sequence) -> None:
        """Check a sequence and name its prefixes. Changes nothing of the scheduler: for the thread that asks.

        Raises:
            CapacityError: It could not run even alone.
            ValueError: It produces tokens and has no prompt to predict them from, or the reverse; or its prompt holds
                what a step could not carry.
        """
        self._readiness.check_fits(sequence)
        self.cache.name(sequence)

    def submit(self, sequence: Sequence) -> None:
        """Queue a prepared sequence.

        Raises:
            AssertionError: It was not prepared.
        """
        if sequence.prefix_keys is None:
            raise AssertionError(f"sequence {sequence.number} is submitted before it was prepared")
        self.waiting.add(sequence)

    def plan(self) -> ScheduledBatch | None:
        """Choose the next launch and take what it needs; None where nothing can be launched now."""
        plan = self._choose()
        kept_free = self.realtime_soon and self.bulk_waits and plan is None
        if kept_free and not self._kept_free:  # it begins: bulk work is overtaken by a launch that is still to come
            self._turns.book(overtakes=True)
        self._kept_free = kept_free
        return plan

    def _choose(self) -> ScheduledBatch | None:
        load = self._load()
        self._pause.consider(load)
        self._realtime_decoding = load.realtime_decoding > 0
        self._bulk_lacks_pages = False
        for choose in self._order():
            if (plan := choose()) is not None:
                self._book(plan)
                return plan
        return None

    def abandon(self, plan: ScheduledBatch) -> None:
        """Give back what a plan took: its launch raised."""
        for group in plan.groups:
            self._encodings.fail(group.job)
        for row in plan.rows:
            sequence = row.sequence
            if plan.kind == "prefill":
                self.cache.withdraw(sequence)
                self._residents.requeue(sequence)
            else:
                sequence.num_computed_tokens -= row.count

    def commit(self, step: Step, failed: list[bool]) -> None:
        """Book what a step has done.

        Args:
            step: Collected.
            failed: For each row, whether its results are worth nothing; for an encode step, one for all.
        """
        if not any(failed):
            self.rates.observe(step)
            if step.kind != "decode":
                (self._crops if step.kind == "encode" else self._prompts).book()
        for group in step.plan.groups:
            if failed[0]:
                self._encodings.fail(group.job)
        if step.kind == "prefill":
            for row, lost in zip(step.rows, failed, strict=True):
                lost = lost or (row.job is not None and row.job.failed)
                (self.cache.withdraw if lost else self.cache.confirm)(row.sequence)
                if row.job is not None:
                    self.waiting.open(row.job.key)

    def finish(self, sequence: Sequence) -> None:
        """Take a finalized sequence out of the queues; a zombie keeps row and pages until `settle` finds it free."""
        if sequence in self.running:
            self._residents.finish(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def settle(self, sequence: Sequence) -> None:
        """Release or pre-empt a sequence once no step carries it any more."""
        self._residents.settle(sequence)

    def drop_idle_jobs(self) -> list[EncodeJob]:
        """Drop encodings that nobody waits for any more, and name them, so that the device forgets them."""
        return self._encodings.drop_idle(self.waiting)

    def spare_memory(self, plan: ScheduledBatch) -> list[EncodeJob]:
        """Launch less at a time from now on, because memory was short for a plan; begin images again.

        Pages stay as they are: all keys and values lie in one allocation, of which none can be given back.

        Returns:
            Images that the device has to forget.
        """
        if plan.kind == "encode":
            self._crops.shrink(sum(group.count for group in plan.groups))
        elif plan.kind == "prefill":
            self._prompts.shrink(len(plan.rows))
        return self._encodings.restart()

    def need(self, sequence: Sequence) -> Need | None:
        """Give what a waiting sequence needs before its first token; None where it has begun.

        Raises:
            Exception: What its image raises.
        """
        return self._readiness.need(sequence)

    def _load(self) -> Load:
        decoding = self._residents.decoding()
        realtime = sum(sequence.realtime for sequence in decoding)
        return Load(len(self.waiting), len(decoding), realtime, self.realtime_near, self.realtime_soon)

    def _book(self, plan: ScheduledBatch) -> None:
        self._pause.book(plan)
        if plan.kind == "decode":
            self._steps.book(overtakes=self._realtime_decoding and self.waiting.bulk > 0)
            return
        realtime = plan.realtime
        self._prefilled_last[realtime] = plan.kind == "prefill"
        ending = [*self.satisfied, *(one.sequence for one in self.unusable)]  # at once, without a launch
        ends = sum(not sequence.realtime for sequence in ending)
        self._turns.book(overtakes=realtime and self.waiting.bulk > ends)
        if not realtime:
            self._steps.book(overtakes=False)

    @property
    def _bulk_is_due(self) -> bool:
        return self._turns.due and self.waiting.realtime > 0

    def _order(self) -> tuple[Callable[[], ScheduledBatch | None], ...]:
        """Say which kinds of launches to try, one after the other."""
        pause, decode, bulk = self._pause, self._residents.plan_decode, self._admission(realtime=False)
        if not self.admits:
            return (decode,)
        bulk_over = pause.bulk.over and not (self._realtime_decoding and self._steps.due)
        if not self.waiting.realtime:
            return (decode, *bulk) if bulk_over else (*bulk, decode)
        urgent = self._admission(realtime=True)
        admit = (*bulk, *urgent) if self._bulk_is_due else (*urgent, *bulk)
        if pause.realtime.over:
            return (decode, *admit)
        if bulk_over and not self._bulk_is_due:
            return (*urgent, decode, *bulk)
        return (*admit, decode)

    def _admission(self, *, realtime: bool) -> tuple[Callable[[], ScheduledBatch | None], ...]:
        prefill, encode = partial(self._plan_prefill, realtime), partial(self._plan_encode, realtime)
        if self._prefilled_last[realtime] or (not realtime and self._encodes_on()):
            return encode, prefill
        return prefill, encode

    def _room(self, realtime: bool) -> Room:
        if realtime:
            return self._pause.realtime
        return Room(self.limits.launch_budget_s) if self._bulk_is_due else self._pause.bulk

    def _encodes_on(self) -> bool:
        """Tell whether a pause has time for more bulk crops and, after them, for the prompts that could run before.

        Then these wait for company. The first launch of a pause is not asked: it goes by turns, lest somebody starve.
        """
        if self._pause.bulk.fresh:
            return False
        crops = self._encodings.next_crops(self._crops.now, self._enough, realtime=False)
        prompts = sum(sequence.num_tokens for sequence in self._encodings.leaders(realtime=False))
        taken_s = self.rates.crops.cost(crops) + self.rates.positions.cost(prompts)
        return crops > 0 and taken_s <= self._pause.bulk.left_s

    def _plan_prefill(self, realtime: bool) -> ScheduledBatch | None:
        if self._is_held_up(realtime):
            return None
        rows: list[BatchItem] = []
        copies: list[PageCopy] = []
        saves: list[PageCopy] = []
        room = self._room(realtime)
        positions, budget = 0, self.limits.max_prefill_tokens
        if room.left_s < math.inf:
            budget = min(budget, self.rates.positions_within(room.left_s))
        for sequence in self._admissible(realtime):
            if len(rows) == self._prompts.now:
                break
            if (rows or not room.fresh) and positions + self._readiness.positions(sequence) > budget:
                break
            admission = self.cache.admit(sequence)
            if admission is None:
                self._bulk_lacks_pages = not realtime
                break
            row = self._start(sequence, admission.start)
            rows.append(row)
            copies += admission.copies
            saves += admission.saves
            positions += row.count
        return ScheduledBatch("prefill", tuple(rows), copies=tuple(copies), saves=tuple(saves)) if rows else None

    def _plan_encode(self, realtime: bool) -> ScheduledBatch | None:
        self.unusable += self._encodings.begin(self.waiting, realtime=realtime)
        crops, room = self._crops.now, self._room(realtime)
        if room.left_s < math.inf:
            if not (realtime or room.fresh) and self.rates.crops.cost(self._enough) > room.left_s:
                return None  # a small launch now makes another one necessary
            crops = min(crops, self.rates.crops_within(room.left_s))
        groups = self._encodings.groups(crops, self._enough, realtime=realtime)
        for group in groups:
            if group.job.encoded:
                self.waiting.open(group.job.key)
        return ScheduledBatch("encode", groups=groups) if groups else None

    def _is_held_up(self, realtime: bool) -> bool:
        """Tell whether prompts of a class must leave pages and rows that come free to the other one."""
        if realtime:
            return self._bulk_lacks_pages and self._residents.any_realtime
        return not self._bulk_is_due and any(self._runs(sequence) for sequence in self._ready(realtime=True))

    def _admissible(self, realtime: bool) -> Iterator[Sequence]:
        """Walk the waiting sequences of a class that may start now, as far as rows and the batch allow."""
        for sequence in self._ready(realtime=realtime):
            if not self._residents.has_place(realtime=realtime):
                return
            if self._runs(sequence):
                yield sequence
            else:
                self.satisfied.append(sequence)
                if len(self.satisfied) >= _SATISFIED:
                    return

    def _ready(self, *, realtime: bool) -> Iterator[Sequence]:
        """Walk the waiting sequences of a class whose images are there, oldest first."""
        for sequence in self.waiting.candidates(realtime=realtime):
            if self._readiness.ready(sequence):
                yield sequence
            else:
                self.waiting.close(sequence)

    def _runs(self, sequence: Sequence) -> bool:
        """Tell whether a ready sequence needs a launch at all."""
        return sequence.samples or self._readiness.positions(sequence) > 0

    def _start(self, sequence: Sequence, start: int) -> BatchItem:
        self._residents.start(sequence)
        job = self._encodings.take(sequence) if start == 0 else None
        index = len(sequence.tokens) if sequence.samples else None
        return BatchItem(sequence, start, sequence.num_tokens - start, index, job)
