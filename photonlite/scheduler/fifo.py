"""First come, first served: the scheduling policy without priorities.

```
waiting ── image encoded, pages there ──> running ──────────────> finished
   ^                                          │  decode: one position a step, a page every few
   └──── pages run out: the last one goes ────┘

decode │ encode ─ encode ─ prefill │ decode │ encode ...
       └ a pause: the longer, the more sequences wait for each that decodes; at least one launch ┘
```

Encoding and prefills take turns at the beginning of a pause, so that neither starves the other. A sequence
that is not ready (its image is being cut or encoded) is passed by; one that lacks pages is not: none behind it may
take them.

Where images are encoded beside the other steps (`scheduler.images`), pauses are for prompts alone, unless the card is
divided.

Where prompts ride (`Limits.mixes`), they need no pause: each launch of prompts carries the sequences that decode as
well, and as much of the prompts as fits beside these. What is left comes with the next steps, before other prompts.
"""

import math
import sys
from collections.abc import Iterator
from collections.abc import Sequence as ListLike
from typing import Any, Literal, NamedTuple, TypeAlias

from photonlite.batch import BatchItem, EncodeJob, PageCopy, RestoredPages, ScheduledBatch, Step
from photonlite.cache.manager import CacheManager
from photonlite.scheduler.adapters import AdapterSlots
from photonlite.scheduler.chunks import Admitted, least_count
from photonlite.scheduler.images import ImageLaunches
from photonlite.scheduler.limits import MOST_BESIDE, LaunchModel, Limits, PauseBudget, RunCost
from photonlite.scheduler.queues import EncoderQueue, WaitingQueue
from photonlite.scheduler.running import RunningSet
from photonlite.sequence import Sequence

NO_PROMPTS = Admitted()

_SPREAD = 16
"""Steps over which the prompts that wait are spread where they ride, so that steps take about as long as each other."""

_SHARE = 0.4
"""Share of a decode step that prompts may take beside it, however few wait: less delays first tokens for little."""

_COUNTED = 64
"""Waiting prompts whose positions are counted, at most: a plan has no time for thousands."""

_LEAST_ROOM = 64
"""Least positions of prompts in a step beside rows that decode: on a card fewer take as long."""

_SATISFIED = 64
"""Waiting sequences that one plan ends because they need no launch: ending one takes time."""

Runs: TypeAlias = ListLike[tuple[Sequence, tuple[int, ...]]]
"""Sequences, and the ids that must follow in each."""

DropCause = Literal["waiting", "hopeless", "running"]
"""Where a deadline met a request: before its prompt ran, before it could be in time at all, while it was answered."""


class Ended(NamedTuple):
    """A sequence that ends without a launch: with an error, or answered by what is cached."""

    sequence: Sequence
    error: BaseException | None = None
    dropped: DropCause | None = None


class PromptRoom(NamedTuple):
    """What a launch has room for beside the rows that it has."""

    positions: int
    prompts: int
    cuts: bool = False  # a prompt that is longer is cut
    pages: int = 0  # that rows which decode are about to get


class FifoPolicy:
    """Decodes all running sequences; encodes images and prefills prompts in the pauses between decode steps."""

    queues: tuple[WaitingQueue, ...]

    def __init__(self, cache: CacheManager, limits: Limits) -> None:
        self.cache = cache
        self.limits = limits
        self.prompts = LaunchModel(limits.max_batch)
        self.run_cost = RunCost()
        self.adapters = AdapterSlots(limits.adapter_slots)
        self.encoder = EncoderQueue(cache, limits, self.adapters)
        self.running = RunningSet(cache, limits, self.rank, self.requeue, self.recompute_s, self.adapters)
        self.images = ImageLaunches(limits, self.encoder, self.running, self._end)
        self.crops = self.images.crops
        self.queues = (WaitingQueue(limits.max_jobs),)
        self.ended: list[Ended] = []  # found while planning, and no longer waiting
        self.kept_idle_until: float | None = None  # idle, for a request that is about to come
        self._unlaunched = 0  # positions of prompts; see `count_prompts`
        self._held_s = 0.0  # how long encode and prefill launches have held up the sequences that decode

    def rank(self, sequence: Sequence) -> Any:
        """Return the sort key of running sequences."""
        return sequence.number

    def queue_of(self, sequence: Sequence) -> WaitingQueue:
        return self.queues[0]

    def add(self, sequence: Sequence, now: float) -> None:
        self.requeue(sequence)

    def requeue(self, sequence: Sequence) -> None:
        self.queue_of(sequence).add(sequence)

    def note_end(self, sequence: Sequence, now: float) -> None:
        """Note that a sequence has ended."""

    def give_up(self, now: float) -> list[Ended]:
        """Return waiting sequences that cannot meet their deadlines any more."""
        return []

    def has_place(self, queue: WaitingQueue) -> bool:
        return self.running.has_place and not self.running.swap.has_swapped(realtime=False)

    def bring_back(self) -> None:
        """Let swapped sequences come back: before waiting ones are admitted, and when another has finished."""
        while self.running.has_place and self.running.swap.bring_back(realtime=False):
            pass

    def recompute_s(self, sequence: Sequence) -> float:
        """Return the seconds that computing a running sequence again takes, by measured rates; infinite without any.

        What others use too stays in the cache; an image that none of them does may have to be encoded again.
        """
        kept = self.cache.shared_positions(sequence)
        encode_s = sequence.times.encode_s if any(span.end > kept for span in sequence.images) else 0.0
        return self.prompts.cost(sequence.num_tokens - kept) + encode_s

    def is_held_up(self, queue: WaitingQueue) -> bool:
        """Whether the prompts of a queue must leave pages and rows to another class."""
        return False

    def plan(self, now: float, *, admit: bool) -> ScheduledBatch | None:
        """Choose the next launch and take what it needs; without `admit` only running sequences are decoded."""
        if admit:
            self.bring_back()
        (queue,), decoding = self.queues, self.running.decoding()
        pause = self.pause(self.pause_s(len(queue), len(decoding))) if decoding else PauseBudget()
        if not admit:
            return self.plan_decode(decoding)
        if pause.over:
            return self.plan_decode(decoding) or self.plan_launch(queue, pause, pause)
        return self.plan_launch(queue, pause, pause) or self.plan_decode(decoding)

    def begin_images(self, now: float) -> None:
        """Begin to encode the next images, or have them cut, and decide whether they have a part of the card.

        Where images are encoded beside the other steps this is done before anything is planned: real-time sequences may
        take the lead of an image, which decides where it is encoded.
        """
        for queue in self.queues:
            self.images.begin(queue)
        if self.limits.parts is not None:
            self.choose_parts(now)

    def choose_parts(self, now: float) -> None:
        """Decide whether the next images have a part of the card."""
        self.images.divide(self.queues[0], self.run_cost.decode_s)

    def plan_beside(self, now: float) -> ScheduledBatch | None:
        """Choose the next images to encode beside the other steps, or prompts about them."""
        (queue,) = self.queues
        return self.plan_prompts_beside(queue) or self.images.plan(queue, PauseBudget(), beside=True)

    def plan_prompts_beside(self, queue: WaitingQueue) -> ScheduledBatch | None:
        """Plan prompts behind their images, in the encoder's part of the card."""
        if not self.images.divided or not self.has_place(queue) or self.is_held_up(queue):
            return None
        room = PromptRoom(min(MOST_BESIDE, self.limits.max_prefill_tokens), self.prompts.most)
        rows, copies, saves = self._admit(queue, room, fresh=True, beside=True)
        return ScheduledBatch("prefill", rows, copies=copies, saves=saves, beside=True) if rows else None

    def runs_beside(self, sequence: Sequence) -> bool:
        """Whether a prompt runs behind its images, in the encoder's part of the card."""
        return self.images.takes_prompt(sequence)

    def pause_s(self, waiting: int, decoding: int) -> float:
        """Return the seconds that encode and prefill launches may take between two decode steps.

        The more sequences wait for each that decodes, the longer: larger launches and decode steps cost less per row.
        """
        budget_s = self.limits.launch_budget_s
        return max(budget_s, min(self.limits.max_pause_s, budget_s * waiting / decoding))

    def pause(self, allowed_s: float) -> PauseBudget:
        """Return what is left of a pause of that length.

        Launches before any sequence decodes count too: sequences prefilled there are decoded next.
        """
        held_s = self._held_s
        over = held_s >= allowed_s
        return PauseBudget(allowed_s if over else allowed_s - held_s, over or held_s == 0, over)

    @property
    def mixes(self) -> bool:
        """Whether prompts ride with decode steps: not where memory was short for it a moment ago."""
        return self.limits.mixes and self.prompts.most > 1

    def choose_rows(self, decoding: list[Sequence]) -> list[Sequence]:
        """Choose the running sequences whose next tokens are computed together."""
        return decoding

    def plan_decode(self, decoding: list[Sequence], prompts: Admitted = NO_PROMPTS) -> ScheduledBatch | None:
        """Plan the next tokens of running sequences, which ends a pause where it gives all a turn that have no runs.

        Where prompts ride, those that have begun go on beside these, and `prompts` begin.
        """
        chosen = self.choose_rows(decoding)
        # New prompts have the room that what is assumed would take.
        expecting = frozenset() if prompts.rows else self.choose_expecting(chosen, len(decoding))
        steady = any(not sequence.is_behind and sequence not in expecting for sequence in chosen)
        if self.mixes:
            room = self.room_beside(sum(not sequence.is_behind for sequence in chosen))
            batch = self.running.plan_mixed(chosen, room, self.prompts.most, prompts, expecting)
        else:
            batch = self.running.plan_decode(chosen, self.prompts.most, expecting)
        if batch is not None and (batch.kind in ("decode", "mixed") or not steady):
            self._held_s = 0.0
        return batch

    def choose_expecting(self, chosen: list[Sequence], decoding: int) -> frozenset[Sequence]:
        """Choose the sequences whose tokens in flight are computed with the runs that probably follow them, or none.

        They are worth a launch where it computes as many positions as decode steps would in its time.
        """
        found = {one: 1 + len(ids) for one in chosen if (ids := one.assumable)}
        return frozenset() if sum(found.values()) < self.run_cost.steps * decoding else frozenset(found)

    def count_prompts(self) -> None:
        """Count the positions of prompts that have begun and of the next ones, before a plan."""
        if self.limits.mixes:
            waiting = (sequence.num_tokens for queue in self.queues for sequence in queue.first(_COUNTED))
            self._unlaunched = self.running.unfinished.positions + sum(waiting)

    def room_beside(self, decoding: int) -> int:
        """Return the positions of prompts that a step may carry beside so many rows that decode: at least one."""
        limits = self.limits
        if limits.mixed_tokens is not None:
            room = limits.mixed_tokens - decoding
        elif decoding:
            room = self._even_room()
        else:
            room = limits.max_prefill_tokens
        return max(1, min(room, limits.max_prefill_tokens - decoding))

    def _even_room(self) -> int:
        """Return what takes a share of a decode step, or more where many prompts wait, within the budget."""
        decode_s, fits = self.run_cost.decode_s, self.prompts.within_shares
        most = fits(max(self.limits.launch_budget_s, decode_s / 2))  # a slow device has long steps
        return min(most, max(_LEAST_ROOM, fits(_SHARE * decode_s), -(-self._unlaunched // _SPREAD)))

    def choose_runs(self, runs: Runs) -> Runs:
        """Choose which forced runs are appended at once, given sequences whose tokens have come in one step.

        A launch of runs takes the time of some decode steps, for which all others wait. It saves each of its rows as
        many decode steps as its run has tokens, if these are several. So runs are taken where they save at least as
        many positions as those steps would compute; else they come token by token.
        """
        return self.worth_a_launch(runs, len(self.running.decoding()))

    def worth_a_launch(self, runs: Runs, decoding: int) -> Runs:
        """Return runs that save more than they cost to the sequences that decode, or none."""
        saved = sum(len(run) for _, run in runs if len(run) > 1)
        if saved >= self.run_cost.steps * decoding:
            return runs
        self.run_cost.refuse()
        return ()

    def plan_launch(self, queue: WaitingQueue, budget: PauseBudget, pause: PauseBudget) -> ScheduledBatch | None:
        """Plan an encode or a prefill launch of a queue within a budget; the pause has time for as much, or more."""
        if not len(queue):
            return None
        images = self.images
        if not images.takes_turns:
            batch = self._plan_prefill(queue, budget)
        elif queue.prefilled_last or (queue.batches and images.has_time(queue, pause, self.prompts)):
            batch = images.plan(queue, budget, beside=False) or self._plan_prefill(queue, budget)
        else:
            batch = self._plan_prefill(queue, budget) or images.plan(queue, budget, beside=False)
        if batch is not None and batch.kind != "decode":  # which it is where no prompt could ride
            self.note_launch(queue, batch)
        return batch

    def note_launch(self, queue: WaitingQueue, batch: ScheduledBatch) -> None:
        """Count an encode or prefill launch; the other kind comes first in the next pause."""
        queue.prefilled_last = batch.kind != "encode"
        if batch.kind != "mixed":
            self._held_s += self.model_of(batch).cost(batch.size)

    def model_of(self, batch: ScheduledBatch) -> LaunchModel:
        return self.crops if batch.kind == "encode" else self.prompts

    def observe(self, step: Step, *, failed: bool = False) -> None:
        """Learn from the seconds that a step took on the device."""
        batch, seconds, costs = step.plan, self._seconds_alone(step), self.run_cost
        if step.kind == "decode":
            costs.observe_decode(seconds)
        elif step.kind == "run":
            costs.observe_run(seconds)
        elif step.kind == "mixed":
            if not failed and all(row.is_prompt or (row.pending and not row.assumed) for row in step.rows):
                self.prompts.observe(batch.known_positions, costs.beyond_decode(seconds))
        elif not failed and not batch.stored_images and not (batch.rows and batch.beside):
            # Copies from the host and prompts beside others say nothing about the cost.
            self.model_of(batch).observe(batch.size, seconds)

    def _seconds_alone(self, step: Step) -> float:
        """Return the seconds that a step takes on the whole card, estimated for one that ran in a part."""
        parts = self.limits.parts
        if parts is not None and step.in_part:
            return step.device_s * parts.at(len(step.rows)).decode
        if parts is not None and step.plan.in_part:
            return step.device_s * parts.at(len(self.running.decoding())).encode
        return step.device_s

    def ready(self, queue: WaitingQueue) -> Iterator[Sequence]:
        """Walk the sequences of a queue whose images are cached or encoded, and whose adapters are there."""
        for sequence in queue.candidates():
            if self.is_ready(sequence) and self.adapters.hold(sequence):
                yield sequence
            else:
                queue.block(sequence)

    def is_ready(self, sequence: Sequence) -> bool:
        for span in sequence.images:
            state = self.cache.image_state(span)
            job = self.encoder.jobs.get(span.key) if state == "missing" else None
            if state != "ready" and (job is None or not job.encoded):
                return False
        return True

    def positions(self, sequence: Sequence) -> int:
        """Return the positions that a prefill computes for a sequence, at most."""
        cached = [span.end for span in sequence.images if self.cache.image_state(span) == "ready"]
        return sequence.num_tokens - max(cached, default=0)

    def needs_launch(self, sequence: Sequence) -> bool:
        """Whether a ready sequence needs a launch: not where it is answered, or only wants an image that is cached."""
        return not sequence.answered and (sequence.samples or self.positions(sequence) > 0)

    def _plan_prefill(self, queue: WaitingQueue, budget: PauseBudget) -> ScheduledBatch | None:
        """Plan the prompts of the oldest ready sequences, as far as pages, rows and time allow."""
        if not self.has_place(queue) or self.is_held_up(queue) or (self.mixes and budget.left_s <= 0):
            return None
        chosen = self.running.decoding() if self.mixes else []
        if self.running.ran_last:  # runs and prompts take turns, as prompts that cannot be cut need all the room
            chosen = [one for one in chosen if one.cut or not one.is_behind]
        fresh = not any(one.is_behind for one in chosen)
        full = len(chosen) >= self.limits.max_batch
        if full and not fresh:
            return None  # prompts that have begun go on first
        if chosen and not full:
            admitted = self._admit(queue, self._room_among(chosen), fresh=fresh)
            goes_on = any(one.cut for one in chosen)
            return self.plan_decode(chosen, admitted) if admitted.rows or goes_on else None
        positions = self.limits.max_prefill_tokens
        if budget.left_s < math.inf:
            positions = min(positions, self.prompts.within(budget.left_s))
        room = PromptRoom(positions, self.prompts.most, cuts=self.mixes)
        rows, copies, saves = self._admit(queue, room, fresh=budget.fresh)
        return ScheduledBatch("prefill", rows, copies=copies, saves=saves) if rows else None

    def _room_among(self, chosen: list[Sequence]) -> PromptRoom:
        """Return what new prompts may take of a launch that carries running sequences: those that are behind first."""
        behind = [one for one in chosen if one.is_behind and not one.preempting]
        decoding = sum(not one.is_behind for one in chosen)
        left = self.room_beside(decoding) - sum(one.num_tokens - one.num_computed_tokens for one in behind)
        size = self.cache.pages.page_size
        growing = (-(-max(one.num_tokens, one.num_computed_tokens + 1) // size) - len(one.pages) for one in chosen)
        places = min(self.prompts.most - len(behind), self.limits.max_batch - len(chosen))
        return PromptRoom(left, places, cuts=True, pages=sum(max(0, pages) for pages in growing))

    def _admit(self, queue: WaitingQueue, room: PromptRoom, *, fresh: bool, beside: bool = False) -> Admitted:
        """Let the oldest ready sequences run; the first one takes more than there is room for if `fresh`.

        With `beside` those run whose prompts are computed in the encoder's part, else the others.
        """
        rows: list[BatchItem] = []
        copies: list[PageCopy] = []
        saves: list[PageCopy] = []
        left, running = room.positions, self.running
        if room.cuts and left <= 0:
            return NO_PROMPTS
        for sequence in self._admissible(queue):
            if self.runs_beside(sequence) != beside:
                continue
            positions = self.positions(sequence)
            if room.cuts:
                positions = min(positions, least_count(sequence, sequence.num_tokens - positions))
            if len(rows) >= room.prompts or ((rows or not fresh) and positions > left):
                queue.lacks_pages |= room.cuts and not rows
                break
            allowed = running.router.admits(sequence, running.resident, running.departing)
            admission = self.cache.admit(sequence, room.pages, whole=not beside) if allowed else None
            if admission is None:
                queue.lacks_pages = True
                break
            start, copied, saved = admission
            queue.remove(sequence)
            jobs = self.encoder.pop(sequence, start)
            if beside:
                row, done = running.start_beside(sequence, start, jobs), saved
            else:
                row, done = self._start(sequence, start, jobs, saved, left if room.cuts else sys.maxsize)
            rows.append(row)
            copies += copied
            saves += done
            left -= row.count
        return Admitted(tuple(rows), tuple(copies), tuple(saves))

    def _admissible(self, queue: WaitingQueue) -> Iterator[Sequence]:
        """Walk the sequences that may start now; end those that need no launch."""
        for sequence in self.ready(queue):
            if not self.has_place(queue):
                return
            if self.needs_launch(sequence):
                yield sequence
            else:
                self._end(queue, sequence)
                if len(self.ended) >= _SATISFIED:
                    return

    def _start(
        self, sequence: Sequence, start: int, jobs: tuple[EncodeJob, ...], saves: tuple[PageCopy, ...], room: int
    ) -> tuple[BatchItem, tuple[PageCopy, ...]]:
        start, restored = _restore(sequence, start, jobs)
        self.running.start(sequence, start)
        self.running.unfinished.begin(sequence, jobs, saves)
        row, saved = self.running.unfinished.advance(sequence, room, begins=True)
        return row._replace(restored=restored), saved

    def _end(self, queue: WaitingQueue, sequence: Sequence, error: BaseException | None = None) -> None:
        queue.remove(sequence)
        self.adapters.release(sequence)
        sequence.finalized = True
        self.ended.append(Ended(sequence, error))


def _restore(sequence: Sequence, start: int, jobs: ListLike[EncodeJob]) -> tuple[int, tuple[RestoredPages, ...]]:
    """Return where a prompt begins whose first `start` positions are cached, and the stored pages that follow these.

    A job may have pages of its image in another prompt.
    """
    stored = {job.pages.place: job for job in jobs if job.pages is not None}
    found: list[RestoredPages] = []
    for span in sequence.images:
        place = span.pages
        if place is not None and place in stored and place.start <= start < place.end < sequence.num_tokens:
            found.append(RestoredPages(stored[place], place, max(place.first, sequence.shared_pages)))
            start = place.end
    return start, tuple(found)
