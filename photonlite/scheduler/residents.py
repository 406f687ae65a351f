"""The sequences that have a row and pages: who is decoded, who gives pages back for others, who lingers as a zombie."""

from photonlite.batch import BatchItem, ScheduledBatch
from photonlite.cache.manager import CacheManager
from photonlite.scheduler.policy import Limits
from photonlite.scheduler.priority import BULK_STEP, Queue, Turns, rank
from photonlite.sequence import Sequence


class Residents:
    """Sequences from their admission to their release.

    Args:
        cache: Has the pages.
        limits: What launches may hold.
        waiting: Takes those that are pre-empted.

    Attributes:
        running: Admitted and not finalized.
        zombies: Finalized, and still carried by a step.
        free_rows: Of the pending table.
    """

    def __init__(self, cache: CacheManager, limits: Limits, waiting: Queue) -> None:
        self.running = Queue()
        self.zombies: set[Sequence] = set()
        self.free_rows = list(range(limits.pending_rows - 1, -1, -1))
        self._cache = cache
        self._max_batch = limits.max_batch
        self._waiting = waiting
        self._turns = Turns(BULK_STEP)
        self._gave_pages: set[bool] = set()  # whether real-time: of whom some have, since somebody has finished

    @property
    def any_realtime(self) -> bool:
        """Whether real-time sequences have rows and pages."""
        return self.running.realtime > 0 or any(sequence.realtime for sequence in self.zombies)

    def decoding(self) -> list[Sequence]:
        """Give those that have tokens to come."""
        return [sequence for sequence in self.running if _has_more(sequence)]

    def has_place(self, *, realtime: bool) -> bool:
        """Tell whether one more of a class may run, as far as rows and the batch allow.

        Bulk sequences run up to a full batch; real-time ones beside them, up to a full batch of their own.
        """
        if self.running and self._gave_pages and (not realtime or True in self._gave_pages):
            return False  # whoever was pre-empted comes back when somebody has finished, not to be pre-empted again
        running = self.running.realtime if realtime else len(self.running)
        return running < self._max_batch and bool(self.free_rows)

    def start(self, sequence: Sequence) -> None:
        """Let a waiting sequence that has its pages run."""
        self._waiting.remove(sequence)
        self.running.add(sequence)
        sequence.row = self.free_rows.pop()
        sequence.num_computed_tokens = sequence.num_tokens

    def finish(self, sequence: Sequence) -> None:
        """Make a zombie of a finalized sequence; it keeps row and pages until `settle` finds it free."""
        self.running.remove(sequence)
        self.zombies.add(sequence)
        self.settle(sequence)

    def settle(self, sequence: Sequence) -> None:
        """Release or pre-empt a sequence once no step carries it any more."""
        if sequence.inflight_refs > 0:
            return
        if sequence in self.zombies:
            self.zombies.remove(sequence)
            self._release(sequence)
            self._gave_pages.clear()
        elif sequence.preempting:
            self._preempt(sequence)

    def requeue(self, sequence: Sequence) -> None:
        """Put a sequence back where it came from, as if it had not run; its tokens stay, and are recomputed."""
        self.running.remove(sequence)
        self._release(sequence)
        sequence.num_computed_tokens = 0
        self._waiting.add(sequence)

    def plan_decode(self) -> ScheduledBatch | None:
        """Decode everybody who has tokens to come, as far as pages and the batch allow."""
        rows: list[BatchItem] = []
        for sequence in self._next_batch():
            if sequence.preempting or sequence.row is None or not self._make_room(sequence):
                continue  # it has given its pages to another one, or waits for some to come free
            rows.append(
                BatchItem(sequence, sequence.num_computed_tokens, 1, len(sequence.tokens) + sequence.inflight_refs)
            )
        for row in rows:
            row.sequence.num_computed_tokens += 1
        return ScheduledBatch("decode", tuple(rows)) if rows else None

    def _next_batch(self) -> list[Sequence]:
        """Choose who is decoded in the next step; in the order of their ranks, in which they may take pages."""
        able = [sequence for sequence in self.decoding() if not sequence.preempting]
        realtime = [sequence for sequence in able if sequence.realtime]
        if not realtime or len(realtime) == len(able):
            return able[: self._max_batch]
        bulk_first = self._turns.due
        self._turns.book(overtakes=not bulk_first)
        if not bulk_first:
            return realtime[: self._max_batch]
        able.sort(key=lambda sequence: (sequence.realtime, sequence.number))
        return sorted(able[: self._max_batch], key=rank)

    def _make_room(self, sequence: Sequence) -> bool:
        """Give a sequence a page for its next position, from the one of the lowest rank if need be."""
        while not self._cache.grow(sequence, sequence.num_computed_tokens + 1):
            if self.zombies or any(other.preempting for other in self.running):
                return False  # pages are on their way
            victim = self.running.last
            victim.preempting = True
            self._gave_pages.add(victim.realtime)
            self.settle(victim)
            if victim is sequence or victim.preempting:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.requeue(sequence)
        sequence.preempting = False
        sequence.times.preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        if sequence.row is None:
            raise AssertionError(f"sequence {sequence.number} has no row to give back")
        self._cache.release(sequence)
        self.free_rows.append(sequence.row)
        sequence.row = None


def _has_more(sequence: Sequence) -> bool:
    """Tell whether a sequence may produce another token behind those on their way."""
    return sequence.samples and len(sequence.tokens) + sequence.inflight_refs < sequence.budget
