"""The sequences that have a row and pages: which are decoded, which give pages back, and zombies."""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from photonlite.batch import BatchItem, ScheduledBatch
from photonlite.cache.manager import CacheManager
from photonlite.scheduler.limits import Limits
from photonlite.sequence import Sequence


class RunningSet:
    """Sequences from their admission to their release, in the order of their ranks.

    Args:
        cache: Has the pages.
        limits: What launches may hold.
        rank: Sort key: when pages run out, the last sequence gives its own back for the others.
        requeue: Takes a sequence that was pre-empted.
    """

    def __init__(
        self,
        cache: CacheManager,
        limits: Limits,
        rank: Callable[[Sequence], Any],
        requeue: Callable[[Sequence], None],
    ) -> None:
        self.sequences: list[Sequence] = []  # admitted and not finalized
        self.zombies: set[Sequence] = set()  # finalized, and still carried by a step
        self.free_rows = list(range(limits.pending_rows - 1, -1, -1))  # of the pending table
        self.victims: list[Sequence] = []  # pre-empted since a sequence was last released
        self.max_batch = limits.max_batch
        self._cache = cache
        self._page_size = cache.pages.page_size
        self._rank = rank
        self._requeue = requeue

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self.sequences

    @property
    def has_place(self) -> bool:
        """Whether one more may run, as far as rows and the batch allow.

        Victims come back when another sequence has finished: earlier, they would be pre-empted again.
        """
        return len(self.sequences) < self.max_batch and bool(self.free_rows) and not (self.sequences and self.victims)

    def decoding(self) -> list[Sequence]:
        """Return the sequences that may produce another token after those of launched steps."""
        return [one for one in self.sequences if len(one.tokens) + one.inflight_refs < one.budget]

    def start(self, sequence: Sequence) -> None:
        """Let a sequence run that has left its queue and has its pages."""
        insort(self.sequences, sequence, key=self._rank)
        sequence.row = self.free_rows.pop()
        sequence.num_computed_tokens = sequence.num_tokens

    def finish(self, sequence: Sequence) -> None:
        """Make a zombie of a finalized sequence: it keeps row and pages until no step carries it."""
        self.sequences.remove(sequence)
        self.zombies.add(sequence)
        self.release_if_unused(sequence)

    def release_if_unused(self, sequence: Sequence) -> None:
        """Release a zombie, or pre-empt a victim, once no step carries it."""
        if sequence.inflight_refs > 0:
            return
        if sequence in self.zombies:
            self.zombies.remove(sequence)
            self._release(sequence)
            self.victims.clear()
        elif sequence.preempting:
            self.put_back(sequence)
            sequence.preempting = False
            sequence.times.preemptions += 1

    def put_back(self, sequence: Sequence) -> None:
        """Return a sequence to its queue as if it had not run; its tokens stay, and are recomputed."""
        self.sequences.remove(sequence)
        self._release(sequence)
        sequence.num_computed_tokens = 0
        self._requeue(sequence)

    def plan_decode(self, sequences: Iterable[Sequence]) -> ScheduledBatch | None:
        """Plan the next token of each sequence, given in the order of ranks, as far as there are pages."""
        rows: list[BatchItem] = []
        for one in sequences:
            position = one.num_computed_tokens
            full = position >= len(one.pages) * self._page_size
            if one.preempting or (full and not self._make_room(one)):
                continue  # it has given its pages to another one, or waits for some to come free
            rows.append(BatchItem(one, position, 1, len(one.tokens) + one.inflight_refs))
            one.num_computed_tokens = position + 1
        return ScheduledBatch("decode", tuple(rows)) if rows else None

    def _make_room(self, sequence: Sequence) -> bool:
        """Give a sequence a page for its next position, if need be that of the last in rank."""
        if sequence.row is None:
            return False  # just pre-empted
        while not self._cache.grow(sequence, sequence.num_computed_tokens + 1):
            if self.zombies or any(other.preempting for other in self.sequences):
                return False  # pages are about to be released
            victim = self.sequences[-1]
            victim.preempting = True
            self.victims.append(victim)
            self.release_if_unused(victim)
            if victim is sequence or victim.preempting:
                return False
        return True

    def _release(self, sequence: Sequence) -> None:
        if sequence.row is None:
            raise AssertionError(f"sequence {sequence.number} has no row to give back")
        self._cache.release(sequence)
        self.free_rows.append(sequence.row)
        sequence.row = None
