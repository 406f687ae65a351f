"""The sequences that run, from admission to release, and what each launch computes for them. No torch."""

from bisect import insort
from collections.abc import Callable, Container, Iterable, Iterator
from collections.abc import Sequence as ListLike
from functools import partial
from typing import Any

from photonlite.batch import BatchItem, EncodeJob, Kind, PageCopy, ScheduledBatch
from photonlite.cache.manager import CacheManager
from photonlite.scheduler.adapters import AdapterSlots
from photonlite.scheduler.chunks import Admitted, UnfinishedPrompts
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.router import Router
from photonlite.scheduler.swap import SwapSpace
from photonlite.sequence import Sequence

# As `BatchItem._make`, without a call in Python: a plan makes hundreds.
_new_item: Callable[[Iterable[Any]], BatchItem] = partial(tuple.__new__, BatchItem)


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
        # Others may have waited for the images that its prompt would have left in the cache.
        self.on_prompt_given_up: Callable[[Sequence], None] = lambda _: None

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
            if ((one.num_computed_tokens < one.longest and len(one.tokens) < one.budget) or one.cut) and not one.beside
        ]

    def start(self, sequence: Sequence, start: int) -> None:
        """Let a sequence run that has left its queue and has its pages, from the first position that is not cached."""
        self.router.note_start(sequence, self.resident)
        insort(self.sequences, sequence, key=self.rank)
        sequence.row = self.free_rows.pop()
        sequence.num_computed_tokens = sequence.filled = start
        sequence.num_committed_tokens = 0

    def start_beside(self, sequence: Sequence, start: int, jobs: tuple[EncodeJob, ...]) -> BatchItem:
        """Let a sequence run whose prompt is computed on the encoder's stream; returns its row, of all but the last."""
        self.start(sequence, start)
        sequence.num_computed_tokens, sequence.beside = sequence.num_tokens - 1, True
        return BatchItem(sequence, start, sequence.num_computed_tokens - start, None, jobs, begins=True)

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
        self._cache.keep_answer(sequence)
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
        sequence.beside = False
        self.requeue(sequence)

    def plan_decode(
        self, sequences: ListLike[Sequence], most_runs: int, expecting: Container[Sequence] = ()
    ) -> ScheduledBatch | None:
        """Plan the next token of each sequence, given in the order of ranks, as far as there are pages.

        Sequences with known tokens to compute, such as runs, go in a launch of their own, at most `most_runs` at a
        time, and with them those `expecting` a run behind their token in flight; such launches and decode steps take
        turns where both have something to do.
        """
        # `is_behind`, written out: a plan walks hundreds.
        behind = [
            one for one in sequences if one.cut or one.prompt_length + len(one.tokens) > one.num_computed_tokens + 1
        ]
        steady = [one for one in sequences if not one.is_behind] if behind else sequences
        alone = [one for one in steady if one not in expecting] if expecting else steady
        if len(alone) == len(sequences):
            batch = self._plan_steps(steady)
        elif self.ran_last and alone:
            batch = self._plan_steps(steady) or self._plan_runs(behind, most_runs)
        else:
            runs = [one for one in sequences if one.is_behind or one in expecting] if expecting else behind
            batch = self._plan_runs(runs, most_runs) or self._plan_steps(steady)
        self.ran_last = batch is not None and batch.kind != "decode"
        return batch

    def plan_mixed(
        self,
        sequences: Iterable[Sequence],
        room: int,
        most: int,
        prompts: Admitted,
        expecting: Container[Sequence] = (),
    ) -> ScheduledBatch | None:
        """Plan one position of each decoding sequence, and known positions of others in the same launch.

        Running sequences, given in the order of ranks, get `room` known positions at most, in `most` sequences at most,
        and of these some that decode may assume theirs; `prompts` follow them in the launch.
        """
        pending: list[BatchItem] = []
        known: list[BatchItem] = []
        saves: list[PageCopy] = []
        for one in sequences:
            behind, assumed = one.is_behind, len(one.assumable) if one in expecting else 0
            if assumed > room or (assumed and not self._may_advance(one, 1 + assumed)):
                assumed = 0  # its own position may still have room
            count = min(room, one.num_tokens - one.num_computed_tokens) if behind else 1 + assumed
            if count <= 0 or (behind and len(known) == most) or not self._may_advance(one, count):
                continue
            if behind:
                row, saved = self.unfinished.advance(one, count)
                known.append(row)
                saves += saved
                room -= count
            elif assumed:
                pending.append(_assume(one))
                room -= assumed
            else:
                pending.append(BatchItem(one, one.num_computed_tokens, 1, one.next_index, pending=True))
                one.num_computed_tokens += 1
        steps = sum(not row.assumed for row in pending)
        self.ran_last = steps < len(pending) or any(not row.is_prompt for row in known)
        known += prompts.rows
        alone: Kind = "prefill" if any(row.is_prompt for row in known) else "run"
        rows = (*pending, *known)
        kind: Kind = "decode" if steps == len(rows) else "mixed" if steps else alone
        return ScheduledBatch(kind, rows, (), prompts.copies, (*saves, *prompts.saves)) if rows else None

    def _may_advance(self, one: Sequence, count: int) -> bool:
        """Whether a sequence may compute so many positions more: it gives way to none, and its pages are there."""
        end = one.num_computed_tokens + count
        room = end <= len(one.pages) * self._page_size or (not one.preempting and self._make_room(one, end))
        return room and not one.preempting and one not in self.swap.leaving

    def _plan_steps(self, sequences: Iterable[Sequence]) -> ScheduledBatch | None:
        """Plan one position of each sequence. A plan walks hundreds: nothing is called for most of them."""
        rows: list[tuple[Any, ...]] = []
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
            rows.append((one, start, 1, index, (), False, False, True, (), ()))
            one.num_computed_tokens = end
        return ScheduledBatch("decode", tuple(map(_new_item, rows))) if rows else None

    def _plan_runs(self, sequences: Iterable[Sequence], most: int) -> ScheduledBatch | None:
        """Plan all known positions of at most so many sequences; those that are not behind assume theirs."""
        rows: list[BatchItem] = []
        saves: list[PageCopy] = []
        positions = 0
        for one in sequences:
            count = one.num_tokens - one.num_computed_tokens if one.is_behind else 1 + len(one.assumable)
            if rows and (len(rows) >= most or positions + count > self._max_positions):
                break
            if not self._may_advance(one, count):
                continue
            if one.is_behind:
                row, saved = self.unfinished.advance(one)
                saves += saved
            else:
                row = _assume(one)
            rows.append(row)
            positions += count
        rows.sort(key=lambda row: not row.pending)
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
        if not sequence.num_committed_tokens:
            self.on_prompt_given_up(sequence)


def _assume(sequence: Sequence) -> BatchItem:
    """Schedule the token that a sequence awaits, and the ids that are expected behind it, before it has come."""
    start, ids = sequence.num_computed_tokens, sequence.assumable
    sequence.assumed = ids
    sequence.num_computed_tokens += 1 + len(ids)
    index = sequence.num_computed_tokens - sequence.prompt_length
    return BatchItem(sequence, start, 1 + len(ids), index, pending=True, assumed=ids)
