"""Where sequences are: waiting queues, the encoder that prepares their images, and the set of running sequences.

```
WaitingQueue ──── image cached or encoded, pages there ────> RunningSet ──── end ────> zombie ──> released
    │      ^                                                     │
    │      └───────────────── pre-empted ────────────────────────┘
    └── image not cached ──> cut (on another thread) ──> EncoderQueue: job ── crop groups ──> encoded
                                                         └ led by one sequence, followed by others
```
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as ListLike
from functools import partial
from operator import attrgetter
from typing import Any

from sortedcontainers import SortedKeyList

from photonlite.batch import BatchItem, CropGroup, EncodeJob, Kind, PageCopy, ScheduledBatch
from photonlite.cache.manager import CacheManager
from photonlite.scheduler.adapters import AdapterSlots
from photonlite.scheduler.chunks import Admitted, UnfinishedPrompts
from photonlite.scheduler.limits import REALTIME_JOBS, Limits
from photonlite.scheduler.router import Router
from photonlite.scheduler.swap import SwapSpace
from photonlite.sequence import ImageInput, ImageRef, ImageSpan, Sequence, read_crops

by_number: Callable[[Sequence], int] = attrgetter("number")

# As `BatchItem._make`, without a call in Python: a plan makes hundreds.
_new_item: Callable[[Iterable[Any]], BatchItem] = partial(tuple.__new__, BatchItem)


class WaitingQueue:
    """Sequences of one class that are not admitted, or pre-empted, oldest first.

    One that is not ready is blocked, so that walking the candidates costs no more than what it finds. Every operation
    takes time in the logarithm of the queue's length.
    """

    def __init__(self, max_jobs: int, *, realtime: bool = False) -> None:
        self.max_jobs = max_jobs  # images of the class that are encoded at a time
        self.realtime = realtime  # the class of requests
        self.batches = not realtime  # launches are held back to batch crops and prompts
        self.prefilled_last = False  # encoding comes first in the next pause
        self.lacks_pages = False  # or room beside prompts that have begun; in this plan
        self._ordered: SortedKeyList[Sequence, int] = SortedKeyList(key=by_number)
        self._candidates: SortedKeyList[Sequence, int] = SortedKeyList(key=by_number)  # not blocked
        self._by_image: dict[str, SortedKeyList[Sequence, int]] = {}

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._ordered)

    @property
    def wants_images(self) -> bool:
        return bool(self._by_image)

    def first(self, count: int) -> list[Sequence]:
        oldest: list[Sequence] = self._ordered[:count]
        return oldest

    def first_about(self, key: str) -> Sequence | None:
        return self._by_image[key][0] if key in self._by_image else None

    def add(self, sequence: Sequence) -> None:
        self._ordered.add(sequence)
        self._candidates.add(sequence)
        for key in {span.key for span in sequence.images}:
            if key not in self._by_image:
                self._by_image[key] = SortedKeyList(key=by_number)
            self._by_image[key].add(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._ordered.remove(sequence)
        self._candidates.discard(sequence)
        for key in {span.key for span in sequence.images}:
            self._by_image[key].remove(sequence)
            if not self._by_image[key]:
                del self._by_image[key]

    def block(self, sequence: Sequence) -> None:
        self._candidates.remove(sequence)

    def unblock(self, key: str) -> None:
        """Note that sequences about an image may be ready: it is encoded, or cached."""
        for sequence in self._by_image.get(key, ()):
            if sequence not in self._candidates:
                self._candidates.add(sequence)

    def resume(self, sequence: Sequence) -> None:
        """Note that a sequence may be ready: its adapter is there, or a slot for it."""
        if sequence in self._ordered:
            self._candidates.discard(sequence)
            self._candidates.add(sequence)

    def candidates(self) -> Iterator[Sequence]:
        """Walk the sequences that are not blocked, oldest first; the caller may remove or block the one it has got."""
        last = -1
        while (found := next(self._candidates.irange_key(last, inclusive=(False, True)), None)) is not None:
            last = found.number
            yield found


class EncoderQueue:
    """Images that are being encoded, by key, in the order of their beginning; each belongs to its leader's class."""

    def __init__(self, cache: CacheManager, limits: Limits, adapters: AdapterSlots) -> None:
        self.jobs: dict[str, EncodeJob] = {}
        self._cache = cache
        self._adapters = adapters
        self._max_jobs = limits.max_jobs + REALTIME_JOBS
        self._max_image_bytes = limits.max_image_bytes
        self._begun = 0

    def jobs_of(self, queue: WaitingQueue) -> list[EncodeJob]:
        return [one for one in self.jobs.values() if one.leader.realtime == queue.realtime]

    def begin(self, queue: WaitingQueue, count: int) -> list[tuple[Sequence, BaseException]]:
        """Begin to encode the images of the first `count` sequences of a queue, or have them cut; returns failures.

        The first sequence may have more images than are encoded at a time: it runs only when it has all of them. One
        that waits for its adapter does not count: those that have theirs go before it. So may later ones that hold a
        slot, for which others wait.
        """
        unusable = []
        place = 0
        first = queue.first(count)
        held = [one for one in self._adapters.waiting_holders() if one.realtime == queue.realtime and one not in first]
        for sequence in (*first, *held):
            for span in self._missing(sequence):
                if self._joins(sequence, span.key):
                    continue
                crops, failure = _request_crops(span.image)
                if failure is not None:
                    unusable.append((sequence, failure))
                    break
                room = crops is not None and (self._has_room(queue) or (place == 0 and len(sequence.images) > 1))
                if crops is not None and room and self._adapters.hold(sequence):
                    self.jobs[span.key] = EncodeJob(self._begun, span.key, crops, sequence)
                    self._begun += 1
            place += not self._adapters.is_blocked(sequence)
        return unusable

    def next_groups(self, queue: WaitingQueue, room: int, enough: int) -> tuple[CropGroup, ...]:
        """Choose the next crops of a queue's class, at most `room`, oldest image first.

        From `enough` crops on a larger launch makes them no cheaper: the launch then ends where the next image would be
        split, so that an image does not wait for another's crops. One that is encoded as a whole goes alone where it
        exceeds the room.
        """
        groups: list[CropGroup] = []
        taken = copied = 0
        for job in self.jobs_of(queue):
            left = job.total - job.launched
            if left == 0 or not self._adapters.hold(job.leader):
                continue
            if taken >= room or ((taken >= enough or (taken and job.is_whole)) and taken + left > room):
                break
            if job.launched == 0:
                copied += job.image_bytes
                if groups and copied > self._max_image_bytes:
                    break  # no later image overtakes it
            count = left if job.is_whole else min(left, room - taken)
            groups.append(CropGroup(job, job.launched, count, job.leader.adapter_slot))
            taken += groups[-1].count
        return tuple(groups)

    def crops_missing(self, sequence: Sequence) -> int:
        """Return how many crops of a sequence's images must be encoded, of those that are cut. Images may raise."""
        found = [_read_crops(span.image) for span in self._missing(sequence)]
        return sum(crops.count for crops in found if crops is not None)

    def is_begun(self, sequence: Sequence) -> bool:
        """Whether a launch has encoded crops of a sequence's images."""
        jobs = [self.jobs[span.key] for span in sequence.images if span.key in self.jobs]
        return any(job.launched > 0 for job in jobs)

    def pop(self, sequence: Sequence, start: int) -> tuple[EncodeJob, ...]:
        """Hand the encoded images that end behind a position to the sequence whose prompt is prefilled with them."""
        keys = dict.fromkeys(span.key for span in sequence.images if span.end > start)  # one may stand there twice
        jobs = tuple(map(self.jobs.pop, keys))
        for job in jobs:
            job.leader = sequence
        return jobs

    def fail(self, job: EncodeJob) -> None:
        job.failed = True
        if self.jobs.get(job.key) is job:
            del self.jobs[job.key]

    def drop_idle(self, find_heir: Callable[[str], Sequence | None]) -> list[EncodeJob]:
        """Find new leaders for images whose leaders have ended; drop and return the images without any."""
        idle: list[EncodeJob] = []
        if not self.jobs:
            return idle
        for job in list(self.jobs.values()):
            if job.leader.finalized:
                # One that gets no slot must not keep the room from those that have theirs.
                if (heir := find_heir(job.key)) is not None and self._adapters.has_slot(heir):
                    job.leader = heir
                else:
                    idle.append(self.jobs.pop(job.key))
        return idle

    def _missing(self, sequence: Sequence) -> list[ImageSpan]:
        """Return the images that are neither cached nor about to be, each once."""
        missing = {span.key: span for span in sequence.images if self._cache.image_state(span) == "missing"}
        return list(missing.values())

    def _has_room(self, queue: WaitingQueue) -> bool:
        return len(self.jobs) < self._max_jobs and len(self.jobs_of(queue)) < queue.max_jobs

    def _joins(self, sequence: Sequence, key: str) -> bool:
        """Whether an image is being encoded already; the first real-time sequence about it takes the lead."""
        job = self.jobs.get(key)
        if job is None:
            return False
        if sequence.realtime and not job.leader.realtime and self._adapters.has_slot(sequence):
            job.leader = sequence
        return True


def _request_crops(image: ImageRef) -> tuple[ImageInput | None, BaseException | None]:
    """Return an image's crops, or why there will be none; have them cut where neither is known.

    An image is a plug-in: what it raises fails its request alone.
    """
    try:
        crops, failure = _read_crops(image), image.failure
        if failure is not None and not isinstance(failure, BaseException):
            raise TypeError(f"an image's failure is {type(failure).__name__}, which is not an exception")
        if crops is None and failure is None:
            image.request_crops()
    except Exception as error:
        return None, error
    return crops, failure


def _read_crops(image: ImageRef) -> ImageInput | None:
    crops = image.crops  # once: another request about it may end meanwhile, and drop them on its own thread
    return None if crops is None else read_crops(crops)


class RunningSet:
    """Sequences from admission to release, by rank; when pages run out, `requeue` puts the last one back."""

    def __init__(
        self,
        cache: CacheManager,
        limits: Limits,
        rank: Callable[[Sequence], Any],
        requeue: Callable[[Sequence], None],
        recompute_s: Callable[[Sequence], float],
        adapters: AdapterSlots,
    ) -> None:
        self.sequences: list[Sequence] = []  # admitted and not finalized
        self.zombies: set[Sequence] = set()  # finalized, and still carried by a step
        self.free_rows = list(range(limits.pending_rows - 1, -1, -1))  # of the pending table
        self.victims: list[Sequence] = []  # pre-empted since a sequence was last released
        self.max_batch = limits.max_batch
        self.router = Router(cache, limits)
        self.swap = SwapSpace(self, cache, limits, recompute_s)
        self.unfinished = UnfinishedPrompts(cache)
        self._max_positions = limits.max_prefill_tokens
        self.ran_last = False  # the last launch was of runs
        self._cache = cache
        self._adapters = adapters
        self._page_size = cache.pages.page_size
        self.rank = rank
        self.requeue = requeue

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences)

    @property
    def has_place(self) -> bool:
        """Whether rows and the batch have room for one more.

        Victims come back when another sequence has finished: earlier, they would be pre-empted again.
        """
        taken = len(self.sequences) + len(self.swap.returning)
        return taken < self.max_batch and bool(self.free_rows) and not (self.sequences and self.victims)

    @property
    def resident(self) -> list[Sequence]:
        """Sequences that hold pages and go on: those that run, and those whose pages are on their way back."""
        return [*self.sequences, *self.swap.returning] if self.swap.returning else self.sequences

    @property
    def departing(self) -> list[Sequence]:
        """Sequences that release their pages as soon as a step or a copy has ended."""
        return [*self.zombies, *self.swap.leaving]

    def decoding(self) -> list[Sequence]:
        """Return the sequences that may produce another token after those of launched steps."""
        return [
            one
            for one in self.sequences
            if (one.num_computed_tokens < one.longest and len(one.tokens) < one.budget) or one.cut
        ]

    def start(self, sequence: Sequence, start: int) -> None:
        """Let a sequence run that has left its queue and has its pages, from the first position that is not cached."""
        self.router.note_start(sequence, self.resident)
        insort(self.sequences, sequence, key=self.rank)
        sequence.row = self.free_rows.pop()
        sequence.num_computed_tokens = start
        sequence.num_committed_tokens = 0

    def resume(self, sequence: Sequence) -> None:
        """Let a sequence run again whose row and pages are as they were."""
        insort(self.sequences, sequence, key=self.rank)

    def finish(self, sequence: Sequence) -> None:
        """Make a zombie of a finalized sequence: it keeps row and pages until no step carries it, and no copy."""
        if sequence in self.swap:
            if sequence in self.swap.swapped:
                self.swap.forget(sequence)
                self._adapters.release(sequence)
            return
        self.sequences.remove(sequence)
        self.router.note_change()
        self.zombies.add(sequence)
        self.release_if_unused(sequence)

    def release_if_unused(self, sequence: Sequence) -> None:
        """Release a zombie, or pre-empt a victim, once no step carries it."""
        if sequence.inflight_refs > 0:
            return
        if sequence in self.zombies:
            self.zombies.remove(sequence)
            self.release_ended(sequence)
            self.victims.clear()
        elif sequence.preempting:
            sequence.preempting = False
            if self.swap.chooses_swap(sequence):
                self.swap.send_out(sequence)
            else:
                self.put_back(sequence)
                sequence.times.preemptions += 1

    def release_ended(self, sequence: Sequence) -> None:
        """Take all that a finalized sequence has: its pages, its row, its adapter's slot."""
        self.release(sequence)
        self._adapters.release(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Return a sequence to its queue as if it had not run; its tokens stay, and are recomputed."""
        self.sequences.remove(sequence)
        self.router.note_change()
        self.start_again(sequence)

    def start_again(self, sequence: Sequence) -> None:
        """Return a sequence that does not run to its queue: its tokens are computed again."""
        self.release(sequence)
        sequence.num_computed_tokens, sequence.cut, sequence.turn_end = 0, False, 0
        self.requeue(sequence)

    def plan_decode(self, sequences: ListLike[Sequence], most_runs: int) -> ScheduledBatch | None:
        """Plan the next token of each sequence, given in the order of ranks, as far as there are pages.

        Sequences with known tokens to compute, such as runs, go in a launch of their own, at most `most_runs` at a
        time; such launches and decode steps take turns where both have something to do.
        """
        # `is_behind`, written out: a plan walks hundreds.
        behind = [
            one for one in sequences if one.cut or one.prompt_length + len(one.tokens) > one.num_computed_tokens + 1
        ]
        steady = [one for one in sequences if not one.is_behind] if behind else sequences
        if not behind:
            batch = self._plan_steps(steady)
        elif self.ran_last and steady:
            batch = self._plan_steps(steady) or self._plan_runs(behind, most_runs)
        else:
            batch = self._plan_runs(behind, most_runs) or self._plan_steps(steady)
        self.ran_last = batch is not None and batch.kind != "decode"
        return batch

    def plan_mixed(
        self, sequences: Iterable[Sequence], room: int, most: int, prompts: Admitted
    ) -> ScheduledBatch | None:
        """Plan one position of each sequence that decodes, and beside these known positions of others.

        Of sequences that run, given in the order of ranks, these are `room` at most, of `most` sequences; `prompts`
        begin behind them.
        """
        pending: list[BatchItem] = []
        known: list[BatchItem] = []
        saves: list[PageCopy] = []
        for one in sequences:
            behind = one.is_behind
            count = min(room, one.num_tokens - one.num_computed_tokens) if behind else 1
            if count <= 0 or (behind and len(known) == most) or not self._may_advance(one, count):
                continue
            if behind:
                row, saved = self.unfinished.advance(one, count)
                known.append(row)
                saves += saved
                room -= count
            else:
                pending.append(BatchItem(one, one.num_computed_tokens, 1, one.next_index, pending=True))
                one.num_computed_tokens += 1
        self.ran_last = any(not row.is_prompt for row in known)
        known += prompts.rows
        alone: Kind = "prefill" if any(row.is_prompt for row in known) else "run"
        kind: Kind = "decode" if not known else "mixed" if pending else alone
        rows = (*pending, *known)
        return ScheduledBatch(kind, rows, (), prompts.copies, (*saves, *prompts.saves)) if rows else None

    def _may_advance(self, one: Sequence, count: int) -> bool:
        """Whether a sequence may compute so many positions more: it gives way to none, and its pages are there."""
        end = one.num_computed_tokens + count
        room = end <= len(one.pages) * self._page_size or (not one.preempting and self._make_room(one, end))
        return room and not one.preempting and one not in self.swap.leaving

    def _plan_steps(self, sequences: Iterable[Sequence]) -> ScheduledBatch | None:
        """Plan one position of each sequence. A plan walks hundreds: nothing is called for most of them."""
        rows: list[tuple[Sequence, int, int, int, tuple[EncodeJob, ...], bool, bool, bool]] = []
        size, leaving = self._page_size, self.swap.leaving
        for one in sequences:
            start = one.num_computed_tokens
            end = start + 1
            if (
                one.preempting
                or (end > len(one.pages) * size and not self._make_room(one, end))
                or (leaving and one in leaving)
            ):
                continue  # it has given its pages to another one, or waits for some to come free
            sampled, known = end - one.prompt_length, len(one.tokens)
            index = sampled if sampled > known else known  # `next_index`
            rows.append((one, start, 1, index, (), False, False, True))
            one.num_computed_tokens = end
        return ScheduledBatch("decode", tuple(map(_new_item, rows))) if rows else None

    def _plan_runs(self, sequences: Iterable[Sequence], most: int) -> ScheduledBatch | None:
        """Plan all known positions of at most so many sequences."""
        rows: list[BatchItem] = []
        saves: list[PageCopy] = []
        positions = 0
        for one in sequences:
            count = one.num_tokens - one.num_computed_tokens
            if rows and (len(rows) >= most or positions + count > self._max_positions):
                break
            if self._may_advance(one, count):
                row, saved = self.unfinished.advance(one)
                rows.append(row)
                saves += saved
                positions += count
        kind: Kind = "prefill" if any(row.is_prompt for row in rows) else "run"
        return ScheduledBatch(kind, tuple(rows), saves=tuple(saves)) if rows else None

    def _make_room(self, sequence: Sequence, positions: int) -> bool:
        """Allocate pages for so many positions of a sequence, if need be by pre-empting the last in rank."""
        if sequence.row is None or sequence in self.swap.leaving:
            return False  # just pre-empted
        while not self._cache.grow(sequence, positions):
            if self.zombies or self.swap.leaving or any(other.preempting for other in self.sequences):
                return False  # pages are about to be released
            victim = self._choose_victim(sequence)
            if any(self.rank(one) > self.rank(victim) for one in self.swap.returning):
                return False  # one that comes after all of these is about to run, and gives way first
            victim.preempting = True
            self.victims.append(victim)
            self.router.note_victim()
            self.release_if_unused(victim)
            if victim is sequence or victim.preempting or self.swap.leaving:
                return False
        return True

    def _choose_victim(self, sequence: Sequence) -> Sequence:
        """Return the sequence that gives way to another: the last in rank, unless one of its class can that has worked.

        No later class than that of the last is asked: a real-time sequence never waits for a bulk one's turn.
        """
        last = self.sequences[-1]
        others = (one for one in reversed(self.sequences) if one.realtime == last.realtime and not one.has_turn)
        return next((one for one in others if self.rank(one) > self.rank(sequence)), last)

    def release(self, sequence: Sequence) -> None:
        if sequence.row is None:
            raise AssertionError(f"sequence {sequence.number} has no row to give back")
        self.unfinished.give_up(sequence)
        self._cache.release(sequence)
        self.free_rows.append(sequence.row)
        sequence.row = None
