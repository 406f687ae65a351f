"""The scheduler: first come, first served, with pages instead of promises.

```
submit ─> waiting ── picture encoded, pages there ──> running ──────────────> finished
             ^                                          │  decode: one position a step, a page every few
             └──── pages run out: the youngest goes ────┘
```

`plan` says what to launch next and takes what it needs: rows, pages, crops. `commit` books what a step has done. While
there is decoding to do, launches alternate:

```
decode │ encode ─ encode ─ prefill │ decode │ encode ...
       └ a pause: as long as those that wait outweigh those that are decoded, and at least one launch ┘
```

Encoding and prefills take turns at the beginning of a pause, so that neither holds the other up for ever. A sequence
that is not ready (its picture is being cut or encoded) is passed by; one that lacks pages is not: nobody behind it may
take them.
"""

import math
from bisect import insort
from collections.abc import Callable, Iterator

from photonlite.batch import EncodeJob, PageCopy, Plan, Row, Step
from photonlite.cache.manager import CacheManager
from photonlite.errors import CapacityError
from photonlite.scheduler.encoding import Encodings
from photonlite.scheduler.policy import Limits, Pause, Rates
from photonlite.sequence import Sequence

_LOOKED_AT, _LOOKED_AT_PER_ROW = 64, 4
"""Waiting requests that are looked at for admission: a tick's time must not grow with the queue."""


class Scheduler:
    """Queues of sequences, and the choice of the next launch.

    Args:
        cache: Pages and prefixes.
        limits: What launches may hold.

    Attributes:
        waiting: Not yet admitted, or pre-empted; oldest first.
        running: Admitted and not finalized; oldest first.
        zombies: Finalized, and still carried by a step.
        unusable: Waiting sequences whose pictures could not be cut; the engine ends them.
        satisfied: Waiting sequences that asked for nothing but a picture that is cached; the engine ends them.
    """

    def __init__(self, cache: CacheManager, limits: Limits) -> None:
        self.cache = cache
        self.limits = limits
        self.rates = Rates()
        self._pause = Pause(limits, self.rates)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.zombies: set[Sequence] = set()
        self._enough = max(1, limits.max_crops // 2)
        self._encodings = Encodings(cache, limits.max_jobs, limits.max_picture_bytes)
        self.unusable: list[Sequence] = []
        self.satisfied: list[Sequence] = []
        self._free_rows = list(range(limits.pending_rows - 1, -1, -1))
        self._prefilled_last = False
        self._short_of_pages = False

    @property
    def jobs(self) -> dict[str, EncodeJob]:
        """Pictures that are being encoded, by key."""
        return self._encodings.jobs

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises:
            CapacityError: It could not run even alone.
            ValueError: It produces tokens and has no prompt to predict them from, or the reverse.
        """
        if sequence.samples != bool(sequence.request.prompt):
            raise ValueError("a request either has a prompt and produces tokens, or asks for its picture alone")
        if sequence.longest > self.limits.max_positions:
            raise CapacityError(
                f"the request may grow to {sequence.longest} positions, but the model's context has "
                f"{self.limits.max_positions}: lower max_tokens or max_objects, or shorten the text"
            )
        if not self.cache.fits(sequence.longest, sequence.picture is not None):
            needed = self.cache.pages_needed(sequence.longest, sequence.picture is not None)
            size = self.cache.pages.page_size
            raise CapacityError(
                f"the request may grow to {sequence.longest} positions, which takes {needed} pages of {size}, but the "
                f"KV cache has {self.cache.pages.usable}: lower max_tokens or max_objects, or raise kv_cache_bytes"
            )
        insort(self.waiting, sequence, key=_arrival)

    def plan(self) -> Plan | None:
        """Choose the next launch and take what it needs; None where nothing can be launched now."""
        self._pause.consider(len(self.waiting), sum(map(_has_more, self.running)))
        for choose in self._order():
            if (plan := choose()) is not None:
                self._pause.book(plan)
                if plan.kind != "decode":
                    self._prefilled_last = plan.kind == "prefill"
                return plan
        return None

    def abandon(self, plan: Plan) -> None:
        """Give back what a plan took: its launch raised."""
        for group in plan.groups:
            self._encodings.fail(group.job)
        for row in plan.rows:
            sequence = row.sequence
            if plan.kind == "prefill":
                self.cache.withdraw(sequence)
                self._requeue(sequence)
            else:
                sequence.filled -= row.count

    def commit(self, step: Step, failed: list[bool]) -> None:
        """Book what a step has done.

        Args:
            step: Collected.
            failed: For each row, whether its results are worth nothing; for an encode step, one for all.
        """
        if not any(failed):
            self.rates.observe(step)
        for group in step.plan.groups:
            if failed[0]:
                self._encodings.fail(group.job)
        if step.kind == "prefill":
            for row, lost in zip(step.rows, failed, strict=True):
                lost = lost or (row.job is not None and row.job.failed)
                (self.cache.withdraw if lost else self.cache.confirm)(row.sequence)

    def finish(self, sequence: Sequence) -> None:
        """Take a finalized sequence out of the queues; a zombie keeps row and pages until `settle` finds it free."""
        if sequence in self.running:  # the short list first
            self.running.remove(sequence)
            self.zombies.add(sequence)
            self.settle(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def settle(self, sequence: Sequence) -> None:
        """Release or pre-empt a sequence once no step carries it any more."""
        if sequence.inflight_refs > 0:
            return
        if sequence in self.zombies:
            self.zombies.remove(sequence)
            self._release(sequence)
            self._short_of_pages = False
        elif sequence.preempting:
            self._preempt(sequence)

    def drop_idle_jobs(self) -> list[EncodeJob]:
        """Drop encodings that nobody waits for any more, and name them, so that the device forgets them."""
        return self._encodings.drop_idle(self.waiting)

    def _order(self) -> tuple[Callable[[], Plan | None], ...]:
        """Say which kinds of launches to try, one after the other."""
        admit = (self._plan_prefill, self._plan_encode)
        if self._prefilled_last or self._encodes_on():
            admit = (self._plan_encode, self._plan_prefill)
        return (self._plan_decode, *admit) if self._pause.over else (*admit, self._plan_decode)

    def _encodes_on(self) -> bool:
        """Tell whether a pause has time for more crops and, after them, for the prompts that could run before them.

        Then these wait for company. The first launch of a pause is not asked: it goes by turns, lest somebody starve.
        """
        if self._pause.fresh:
            return False
        crops = self._encodings.next_crops(self.limits.max_crops, self._enough)
        prompts = sum(sequence.known_length for sequence in self._encodings.leaders())
        return crops > 0 and self.rates.crops.cost(crops) + self.rates.positions.cost(prompts) <= self._pause.left_s

    def _plan_prefill(self) -> Plan | None:
        rows: list[Row] = []
        copies: list[PageCopy] = []
        saves: list[PageCopy] = []
        positions, budget = 0, self.limits.max_prefill_tokens
        if self._pause.left_s < math.inf:
            budget = min(budget, self.rates.positions_within(self._pause.left_s))
        for sequence in self._admissible():
            if (rows or not self._pause.fresh) and positions + self._positions_to_compute(sequence) > budget:
                break
            admission = self.cache.admit(sequence)
            if admission is None:
                break
            row = self._start(sequence, admission.start)
            rows.append(row)
            copies += admission.copies
            saves += admission.saves
            positions += row.count
        return Plan("prefill", tuple(rows), copies=tuple(copies), saves=tuple(saves)) if rows else None

    def _plan_encode(self) -> Plan | None:
        self.unusable += self._encodings.begin(self.waiting)
        room, left_s = self.limits.max_crops, self._pause.left_s
        if left_s < math.inf:
            if not self._pause.fresh and self.rates.crops.cost(self._enough) > left_s:
                return None  # a small launch now makes another one necessary
            room = min(room, self.rates.crops_within(left_s))
        groups = self._encodings.groups(room, self._enough)
        return Plan("encode", groups=groups) if groups else None

    def _plan_decode(self) -> Plan | None:
        rows: list[Row] = []
        for sequence in list(self.running):
            if sequence.preempting or not _has_more(sequence):
                continue
            if sequence.row is None or not self._make_room(sequence):
                continue  # it has given its pages to an older one, or waits for some to come free
            rows.append(Row(sequence, sequence.filled, 1, len(sequence.tokens) + sequence.inflight_refs))
        for row in rows:
            row.sequence.filled += 1
        return Plan("decode", tuple(rows)) if rows else None

    def _admissible(self) -> Iterator[Sequence]:
        """Walk the waiting sequences that may start now, as far as rows and the batch allow."""
        if self._short_of_pages and self.running:
            return  # whoever was pre-empted comes back when somebody has finished, not to be pre-empted again
        for sequence in self._looked_at():
            if len(self.running) >= self.limits.max_batch or not self._free_rows:
                return
            if not self._picture_is_ready(sequence):
                continue
            if sequence.samples or self._positions_to_compute(sequence):
                yield sequence
            else:
                self.satisfied.append(sequence)

    def _looked_at(self) -> list[Sequence]:
        """Give the first waiting sequences, and those that encodings are done for, wherever they stand by now."""
        first = self.waiting[: max(_LOOKED_AT, _LOOKED_AT_PER_ROW * self.limits.max_batch)]
        return list(dict.fromkeys(first + sorted(self._encodings.leaders(), key=_arrival)))

    def _positions_to_compute(self, sequence: Sequence) -> int:
        """Give the positions that a prefill launch computes for a sequence, at most."""
        picture = sequence.picture
        cached = picture is not None and self.cache.picture_state(picture.key) == "ready"
        return sequence.known_length - (sequence.before if cached else 0)

    def _picture_is_ready(self, sequence: Sequence) -> bool:
        if sequence.picture is None:
            return True
        key = sequence.picture.key
        state = self.cache.picture_state(key)
        if state == "missing":
            return self._encodings.done(key)
        return state == "ready"

    def _start(self, sequence: Sequence, start: int) -> Row:
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_arrival)
        sequence.row = self._free_rows.pop()
        sequence.filled = sequence.known_length
        job = self._encodings.take(sequence) if start == 0 else None
        index = len(sequence.tokens) if sequence.samples else None
        return Row(sequence, start, sequence.known_length - start, index, job)

    def _make_room(self, sequence: Sequence) -> bool:
        """Give a sequence a page for its next position, from the youngest sequence if need be."""
        while not self.cache.grow(sequence, sequence.filled + 1):
            if self.zombies or any(other.preempting for other in self.running):
                return False  # pages are on their way
            victim = self.running[-1]
            victim.preempting = True
            self._short_of_pages = True
            self.settle(victim)
            if victim is sequence or victim.preempting:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._requeue(sequence)
        sequence.preempting = False
        sequence.times.preemptions += 1

    def _requeue(self, sequence: Sequence) -> None:
        """Put a sequence back where it came from, as if it had not run; its tokens stay, and are recomputed."""
        self.running.remove(sequence)
        self._release(sequence)
        sequence.filled = 0
        insort(self.waiting, sequence, key=_arrival)

    def _release(self, sequence: Sequence) -> None:
        if sequence.row is None:
            raise AssertionError(f"sequence {sequence.number} has no row to give back")
        self.cache.release(sequence)
        self._free_rows.append(sequence.row)
        sequence.row = None


def _arrival(sequence: Sequence) -> int:
    return sequence.number


def _has_more(sequence: Sequence) -> bool:
    """Tell whether a sequence may produce another token behind those on their way."""
    return sequence.samples and len(sequence.tokens) + sequence.inflight_refs < sequence.request.budget
