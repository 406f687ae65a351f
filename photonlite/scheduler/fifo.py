"""First come, first served: the scheduling policy without priorities.

```
waiting ── image encoded, pages there ──> running ──────────────> finished
   ^                                          │  decode: one position a step, a page every few
   └──── pages run out: the last one goes ────┘

decode │ encode ─ encode ─ prefill │ decode │ encode ...
       └ a pause: the longer, the more sequences wait for each that decodes; at least one launch ┘
```

Encoding and prefills take turns at the beginning of a pause, so that neither holds the other up for ever. A sequence
that is not ready (its image is being cut or encoded) is passed by; one that lacks pages is not: none behind it may
take them.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from photonlite.batch import BatchItem, EncodeJob, PageCopy, ScheduledBatch
from photonlite.cache.manager import CacheManager
from photonlite.scheduler.decision import Ended
from photonlite.scheduler.encoding import EncoderQueue, Member
from photonlite.scheduler.limits import Allowance, Limits
from photonlite.scheduler.rates import Rates
from photonlite.scheduler.running import RunningSet
from photonlite.scheduler.waiting import WaitingQueue, by_number
from photonlite.sequence import Sequence

Choose = Callable[[], ScheduledBatch | None]

_CUT_AHEAD = 16
"""Waiting requests whose images are cut into crops in advance."""

_SATISFIED = 64
"""Waiting sequences that one plan ends because they need no launch: ending one takes time."""


class PauseBudget(NamedTuple):
    """What a pause between decode steps has time for."""

    left_s: float = math.inf  # seconds that the next launch may take; infinite where no sequence is held up
    fresh: bool = True  # that launch is the first, which goes however long it takes: a crop or prompt cannot be split
    over: bool = False  # a decode step comes first


class PauseClock:
    """How long encode and prefill launches have held up the sequences that decode."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._held_s = 0.0

    def budget(self, allowed_s: float) -> PauseBudget:
        """Return what is left of a pause of that length."""
        over = self._held_s >= allowed_s
        return PauseBudget(allowed_s if over else allowed_s - self._held_s, over or self._held_s == 0, over)

    def book(self, batch: ScheduledBatch) -> None:
        """Count a launch. Those before any sequence decodes count too: sequences prefilled there are decoded next."""
        self._held_s = 0.0 if batch.kind == "decode" else self._held_s + self._rates.cost(batch)


class Resources:
    """What all launches share, whatever the policy: pages, rows, the encoder, and what was measured."""

    def __init__(
        self, cache: CacheManager, limits: Limits, rank: Callable[[Sequence], Any], requeue: Callable[[Sequence], None]
    ) -> None:
        self.cache = cache
        self.limits = limits
        self.rates = Rates()
        self.running = RunningSet(cache, limits, rank, requeue)
        self.encoder = EncoderQueue(cache, limits)
        self.crops = Allowance(limits.max_crops)
        self.prompts = Allowance(limits.max_batch)
        self.enough_crops = max(1, limits.max_crops // 2)

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether a sequence's image, if it has one, is cached or encoded."""
        key = sequence.image_key
        if key is None:
            return True
        state = self.cache.image_state(key)
        if state == "missing":
            return self.encoder.is_encoded(key)
        return state == "ready"

    def positions(self, sequence: Sequence) -> int:
        """Return the positions that a prefill computes for a sequence, at most."""
        key = sequence.image_key
        cached = key is not None and self.cache.image_state(key) == "ready"
        return sequence.num_tokens - (sequence.prefix_len if cached else 0)

    def needs_launch(self, sequence: Sequence) -> bool:
        """Whether a ready sequence needs a launch at all: one that only wants its image cached may not."""
        return sequence.samples or self.positions(sequence) > 0


class FifoQueue:
    """The waiting sequences of one class, and the encode and prefill launches that begin them.

    Args:
        resources: What launches draw on.
        member: Whether a sequence is of this class.
        max_jobs: Images of the class that are encoded at a time.
        has_place: Whether one more sequence of the class may run.
        is_held_up: Whether its prompts must leave pages and rows to another class.
        batches: Whether launches are held back to batch crops and prompts.
    """

    def __init__(
        self,
        resources: Resources,
        member: Member,
        max_jobs: int,
        has_place: Callable[[], bool],
        is_held_up: Callable[[], bool],
        *,
        batches: bool = True,
    ) -> None:
        self.waiting = WaitingQueue()
        self.ended: list[Ended] = []  # found while planning, and no longer waiting
        self.lacks_pages = False  # in this plan
        self._resources = resources
        self._member = member
        self._max_jobs = max_jobs
        self._has_place = has_place
        self._is_held_up = is_held_up
        self._batches = batches
        self._prefilled_last = False

    def launches(self, budget: PauseBudget, pause: PauseBudget) -> tuple[Choose, ...]:
        """Return both kinds of launches in the order in which to try them; none where no sequence waits.

        Args:
            budget: What the launch may take.
            pause: What the pause has time for: the same, or more.
        """
        if not len(self.waiting):
            return ()
        encode, prefill = partial(self.plan_encode, budget), partial(self.plan_prefill, budget)
        if self._prefilled_last or (self._batches and self._has_time_to_encode(pause)):
            return encode, prefill
        return prefill, encode

    def book(self, batch: ScheduledBatch) -> None:
        """Note a launch of this class: the other kind comes first in the next pause."""
        self._prefilled_last = batch.kind == "prefill"

    def ready(self) -> Iterator[Sequence]:
        """Walk the waiting sequences whose images are there, oldest first."""
        for sequence in self.waiting.candidates():
            if self._resources.is_ready(sequence):
                yield sequence
            else:
                self.waiting.close(sequence)

    def plan_encode(self, budget: PauseBudget) -> ScheduledBatch | None:
        """Plan the next crops of the oldest images."""
        if not self.waiting.wants_images:
            return None
        resources, encoder = self._resources, self._resources.encoder
        oldest = self.waiting.first(max(_CUT_AHEAD, resources.limits.max_jobs))
        for sequence, error in encoder.begin(oldest, self._member, self._max_jobs):
            self._end(sequence, error)
        crops, enough = resources.crops.now, resources.enough_crops
        if budget.left_s < math.inf:
            if self._batches and not budget.fresh and resources.rates.crops.cost(enough) > budget.left_s:
                return None  # a small launch now makes another one necessary
            crops = min(crops, resources.rates.crops.within(budget.left_s))
        groups = encoder.next_groups(self._member, crops, enough)
        encoder.launch(groups)
        return ScheduledBatch("encode", groups=groups) if groups else None

    def plan_prefill(self, budget: PauseBudget) -> ScheduledBatch | None:
        """Plan the prompts of the oldest ready sequences, as far as pages, rows and time allow."""
        if not self._has_place() or self._is_held_up():
            return None
        resources = self._resources
        rows: list[BatchItem] = []
        copies: list[PageCopy] = []
        saves: list[PageCopy] = []
        positions, most = 0, resources.limits.max_prefill_tokens
        if budget.left_s < math.inf:
            most = min(most, resources.rates.positions.within(budget.left_s))
        for sequence in self._admissible():
            if len(rows) == resources.prompts.now:
                break
            if (rows or not budget.fresh) and positions + resources.positions(sequence) > most:
                break
            admission = resources.cache.admit(sequence)
            if admission is None:
                self.lacks_pages = True
                break
            rows.append(self._start(sequence, admission.start))
            copies += admission.copies
            saves += admission.saves
            positions += rows[-1].count
        return ScheduledBatch("prefill", tuple(rows), copies=tuple(copies), saves=tuple(saves)) if rows else None

    def _admissible(self) -> Iterator[Sequence]:
        """Walk the sequences that may start now; end those that need no launch."""
        for sequence in self.ready():
            if not self._has_place():
                return
            if self._resources.needs_launch(sequence):
                yield sequence
            else:
                self._end(sequence)
                if len(self.ended) >= _SATISFIED:
                    return

    def _has_time_to_encode(self, pause: PauseBudget) -> bool:
        """Whether a pause has time for more crops and, after them, for the prompts that could run before.

        Prompts are then held back to batch them. The first launch of a pause is exempt, which prevents starvation.
        """
        if pause.fresh:
            return False
        encoder, rates = self._resources.encoder, self._resources.rates
        groups = encoder.next_groups(self._member, self._resources.crops.now, self._resources.enough_crops)
        encoded = [job.leader for job in encoder.jobs_of(self._member) if job.encoded]
        prompts = sum(leader.num_tokens for leader in encoded if leader is not None and not leader.finalized)
        crops = sum(group.count for group in groups)
        return crops > 0 and rates.crops.cost(crops) + rates.positions.cost(prompts) <= pause.left_s

    def _start(self, sequence: Sequence, start: int) -> BatchItem:
        self.waiting.remove(sequence)
        self._resources.running.start(sequence)
        job: EncodeJob | None = self._resources.encoder.pop(sequence) if start == 0 else None
        index = len(sequence.tokens) if sequence.samples else None
        return BatchItem(sequence, start, sequence.num_tokens - start, index, job)

    def _end(self, sequence: Sequence, error: BaseException | None = None) -> None:
        self.waiting.remove(sequence)
        sequence.finalized = True
        self.ended.append(Ended(sequence, error))


class FifoPolicy:
    """Decodes all running sequences; encodes images and prefills prompts in the pauses between decode steps."""

    def __init__(self, cache: CacheManager, limits: Limits) -> None:
        self.resources = Resources(cache, limits, by_number, self.add_back)
        self.queue = FifoQueue(
            self.resources, lambda _: True, limits.max_jobs, lambda: self.resources.running.has_place, lambda: False
        )
        self.queues: tuple[FifoQueue, ...] = (self.queue,)
        self.pause = PauseClock(self.resources.rates)
        self.kept_free_until: float | None = None  # idle, for a request that is about to come

    def queue_of(self, sequence: Sequence) -> FifoQueue:
        """Return the queue in which a sequence waits."""
        return self.queue

    def add(self, sequence: Sequence, now: float) -> None:
        """Queue a new sequence."""
        self.queue_of(sequence).waiting.add(sequence)

    def add_back(self, sequence: Sequence) -> None:
        """Queue a sequence again that was running."""
        self.queue_of(sequence).waiting.add(sequence)

    def note_end(self, sequence: Sequence, now: float) -> None:
        """Note that a sequence has ended."""

    def give_up(self, now: float) -> list[Ended]:
        """Return waiting sequences that cannot meet their deadlines any more."""
        return []

    def plan(self, now: float, *, admit: bool) -> ScheduledBatch | None:
        """Choose the next launch and take what it needs.

        Args:
            now: The time.
            admit: Whether images and prompts may be launched; else only running sequences are decoded.
        """
        limits, running = self.resources.limits, self.resources.running
        decoding = running.decoding()
        pause = PauseBudget()
        if decoding:
            pause = self.pause.budget(limits.pause_s(len(self.queue.waiting), len(decoding)))
        decode = partial(running.plan_decode, decoding[: limits.max_batch])
        launches = self.queue.launches(pause, pause) if admit else ()
        batch = first_batch((decode, *launches) if pause.over else (*launches, decode))
        if batch is not None:
            self.pause.book(batch)
            if batch.kind != "decode":
                self.queue.book(batch)
        return batch


def first_batch(order: tuple[Choose, ...]) -> ScheduledBatch | None:
    """Return the first launch that is possible."""
    return next((batch for choose in order if (batch := choose()) is not None), None)
