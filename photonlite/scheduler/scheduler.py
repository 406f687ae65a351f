"""The scheduler: queues of sequences, and the decision what to launch next.

```
submit ─> waiting ──plan──> running ──commit, commit ...──> finish ──last commit──> released
             ^                 │
             └── pre-empted ───┘
```

`plan` decides what to launch and takes what it needs: rows, pages, crops. `commit` books what a step has done, and
`abandon` gives back what a batch took whose launch raised. Which launch comes next is a policy's choice:
`photonlite.scheduler.fifo`, and from the first real-time request on `photonlite.scheduler.realtime`.
"""

import itertools
import math
import operator
from collections.abc import Iterable
from collections.abc import Sequence as ListLike
from typing import NamedTuple

from sortedcontainers import SortedKeyList

from photonlite.batch import EncodeJob, ScheduledBatch, Step, Transfer
from photonlite.cache.manager import CacheManager
from photonlite.errors import CapacityError, DeadlineError
from photonlite.request import IMAGE, Token
from photonlite.scheduler.adapters import AdapterLoad
from photonlite.scheduler.fifo import Ended, FifoPolicy, Runs
from photonlite.scheduler.limits import Limits
from photonlite.scheduler.realtime import RealtimePolicy
from photonlite.sequence import Sequence

_EXPIRED = 64
"""Requests that one plan ends because their deadlines have passed: running ones must not wait for thousands."""


class Decision(NamedTuple):
    batch: ScheduledBatch | None  # to launch
    encoding: ScheduledBatch | None = None  # to launch beside it
    ended: tuple[Ended, ...] = ()  # sequences that have left the scheduler's queues
    dropped: tuple[EncodeJob, ...] = ()  # images that no request waits for: the device frees their features
    loads: tuple[AdapterLoad, ...] = ()  # adapters to bring to the device
    wake_at: float | None = None  # when time alone may change the decision; None where only an event can


class Scheduler:
    """Queues and the policy; `second` is one second in the unit of the clock, whose times its methods are given."""

    def __init__(self, cache: CacheManager, limits: Limits, second: float = 1.0) -> None:
        self.cache = cache
        self.limits = limits
        self.policy = FifoPolicy(cache, limits)
        self._second = second
        self.running = self.policy.running
        self.running.on_prompt_given_up = self._unblock_about
        self.encoder = self.policy.encoder
        self.adapters = self.policy.adapters
        # Of open requests alone: one that has ended would keep its image in memory until its deadline.
        self._deadlines: SortedKeyList[Sequence, tuple[float, int]] = SortedKeyList(key=_deadline)

    @property
    def waiting(self) -> list[Sequence]:
        return list(itertools.chain.from_iterable(self.policy.queues))

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self.policy.queues))

    def oldest_submission(self, *, realtime: bool) -> float | None:
        """Return when the oldest waiting request of a class was submitted; from any thread."""
        return min((one.times.submitted for one in self.waiting if one.realtime == realtime), default=None)

    def prepare(self, sequence: Sequence) -> None:
        """Check a sequence and name its prefixes; any thread may call it.

        Raises a CapacityError if it could not run alone, a ValueError if no step could carry its prompt.
        """
        self._check_fits(sequence)
        self.cache.name(sequence)

    def submit(self, sequence: Sequence, now: float) -> None:
        if sequence.links is None:
            raise AssertionError(f"sequence {sequence.number} is submitted before it was prepared")
        if sequence.realtime:
            self.prioritise()
        self.policy.add(sequence, now)
        if sequence.deadline is not None:
            self._deadlines.add(sequence)

    def prioritise(self) -> None:
        """Schedule real-time requests before bulk ones from now on."""
        if not isinstance(self.policy, RealtimePolicy):
            self.policy = RealtimePolicy(self.policy, self._second)

    def plan(self, now: float, *, encodes: bool = False) -> Decision:
        """Decide what to launch; sequences that end without a launch leave their queues.

        With `encodes` there is a slot for images that are encoded beside the other steps.
        """
        for sequence in self.adapters.take_unblocked():
            self.policy.queue_of(sequence).resume(sequence)
        ended = self._expired(now) if self._next_deadline <= now else []
        self._finish_all(ended, now)
        hopeless = self.policy.give_up(now)
        self._finish_all(hopeless, now)
        # First, so that no batch holds an image that is being dropped, nor lacks the place of one.
        dropped = self.encoder.drop_idle(self._find_heir)
        admit = not ended or self._next_deadline > now
        self.policy.count_prompts()
        beside = admit and self.limits.encodes_beside
        if beside:
            self.policy.begin_images(now)
        batch = self.policy.plan(now, admit=admit)
        encoding = self.policy.plan_beside(now) if beside and encodes else None
        for planned in (batch, encoding):
            if planned is not None:
                self._book(planned, now)
        dropped += self.running.unfinished.take_dropped()
        ended += hopeless
        if self.policy.ended:
            for one in self.policy.ended:
                self._note_end(one.sequence, now)
            ended += self.policy.ended
            self.policy.ended.clear()
        return Decision(batch, encoding, tuple(ended), tuple(dropped), self.adapters.take_loads(), self._wake_at())

    def _finish_all(self, ended: Iterable[Ended], now: float) -> None:
        for one in ended:
            one.sequence.error = one.error  # first: nothing is to be learned from an answer that was cut
            self.finish(one.sequence, now)

    def abandon(self, batch: ScheduledBatch) -> None:
        """Release what a batch took: its launch raised."""
        self.adapters.release_step(batch)
        for group in batch.groups:
            self.encoder.fail(group.job)
        for row in batch.rows:
            one = row.sequence
            if row.begins or one.finalized:
                self.cache.withdraw(one)
            if one.finalized:  # between the plan of this launch and its failure
                self.running.release_if_unused(one)
                continue
            if row.begins:
                self.running.put_back(one)
                continue
            one.num_computed_tokens -= row.count
            one.assumed = ()
            if row.pending:
                continue
            one.cut = True  # the device has no token for its next position
            if not one.num_committed_tokens:
                # Its images may be lost with this launch, and an earlier one may be in flight.
                self.cache.withdraw(one)
                one.preempting = True
                self.running.release_if_unused(one)

    def choose_runs(self, runs: Runs) -> Runs:
        """Choose which forced runs are appended at once; see `FifoPolicy.choose_runs`."""
        return self.policy.choose_runs(runs) if runs else ()

    def commit(self, step: Step, outcomes: ListLike[Token | Exception | None]) -> None:
        """Book what a step has done, given the outcomes of its rows; an encode step has one if it failed."""
        if step.kind == "decode":
            self.policy.observe(step)
            return
        failed = [isinstance(outcome, Exception) for outcome in outcomes]
        self.policy.observe(step, failed=any(failed))
        self.adapters.release_step(step.plan)
        if step.kind == "encode" and any(failed):
            for group in step.plan.groups:
                self.encoder.fail(group.job)
        elif step.plan.beside:
            self._note_readable(step.plan)
        for row, lost in zip(step.rows, failed if step.rows else (), strict=True):
            if row.pending:
                continue
            row.sequence.beside = False
            if lost or any(job.failed for job in row.jobs):
                # Also where a later part is in flight, which then has nothing left to confirm.
                self.cache.withdraw(row.sequence)
            elif row.cut:
                continue
            else:
                self.cache.confirm(row.sequence)
            for job in row.jobs:
                self._unblock(job.key)

    def finish(self, sequence: Sequence, now: float) -> None:
        """Finalize a sequence and take it out of its queue; a zombie keeps row and pages until no step carries it."""
        if sequence.finalized:
            return
        sequence.finalized = True
        sequence.preempting = False
        if sequence.row is None and sequence not in self.running.swap:
            self.policy.queue_of(sequence).remove(sequence)
            self.adapters.release(sequence)
        else:
            self.running.finish(sequence)
        self._note_end(sequence, now)

    def finish_transfer(self, transfer: Transfer) -> None:
        self.running.swap.finish(transfer)

    def release_if_unused(self, sequence: Sequence) -> None:
        self.running.release_if_unused(sequence)

    def reduce_memory(self, batch: ScheduledBatch) -> list[EncodeJob]:
        """Shrink later launches, as memory was short for a batch; returns the images whose encoding starts again.

        Pages stay as they are: all keys and values lie in one allocation, of which nothing can be given back.
        """
        if batch.kind != "decode":
            model = self.policy.model_of(batch)
            # Rows that decode do not count as prompts, but their number makes the difference until prompts go alone.
            model.shrink(batch.crops or min(len(batch.rows), model.most))
        begun = list(self.encoder.jobs.values())
        for job in begun:
            self.encoder.fail(job)
        return begun

    def _check_fits(self, sequence: Sequence) -> None:
        cache, most = self.cache, self.limits.max_positions
        if sequence.samples != bool(sequence.prompt) and not sequence.inside:
            raise ValueError("a request either has a prompt and produces tokens, or asks for its image alone")
        for token in sequence.prompt:
            if token is not IMAGE:
                self._check_token(token)
        if sequence.longest > most:
            raise CapacityError(
                f"the request may grow to {sequence.longest} positions, but the model's context has {most}: "
                "lower max_tokens or max_objects, or shorten the text"
            )
        if not cache.fits(sequence):
            raise CapacityError(
                f"the request may grow to {sequence.longest} positions, which takes "
                f"{cache.pages_needed(sequence)} pages of {cache.pages.page_size}, but the KV "
                f"cache has {cache.pages.usable}: lower max_tokens or max_objects, or raise kv_cache_bytes"
            )

    def _check_token(self, token: Token) -> None:
        values = token.values
        if not 0 <= operator.index(token.id) < self.limits.vocab_size:
            raise ValueError(f"a prompt has id {token.id}, but the vocabulary has {self.limits.vocab_size}")
        if len(values) > 2 or not all(isinstance(value, float | int) for value in values):
            raise ValueError(f"token {token.id} of a prompt carries {values!r:.60}, not up to two numbers")

    def _expired(self, now: float) -> list[Ended]:
        late: list[Ended] = []
        for sequence in self._deadlines[:_EXPIRED]:
            if _deadline(sequence)[0] > now:
                break
            error = DeadlineError("the request's deadline passed before its answer was complete")
            late.append(Ended(sequence, error, "running" if sequence.times.admitted else "waiting"))
        return late

    def _book(self, batch: ScheduledBatch, now: float) -> None:
        self.adapters.hold_for_step(batch)
        for row in batch.rows if batch.kind != "decode" else ():
            if row.begins:
                row.sequence.times.admitted = row.sequence.times.admitted or now
        # Else prompts could be launched before the features are there.
        if not batch.beside:
            self._note_readable(batch)

    def _note_readable(self, batch: ScheduledBatch) -> None:
        """Note that later work on the compute stream may read what an encode launch computes."""
        for group in batch.groups:
            group.job.readable += group.count
            if group.job.encoded:
                self._unblock(group.job.key)

    def _unblock_about(self, sequence: Sequence) -> None:
        for span in sequence.images:
            self._unblock(span.key)

    def _unblock(self, key: str) -> None:
        for queue in self.policy.queues:
            queue.unblock(key)

    def _find_heir(self, key: str) -> Sequence | None:
        return next((heir for queue in self.policy.queues if (heir := queue.first_about(key))), None)

    def _note_end(self, sequence: Sequence, now: float) -> None:
        if sequence.deadline is not None:
            self._deadlines.discard(sequence)
        self.running.router.note_end(sequence)
        self.policy.note_end(sequence, now)

    @property
    def _next_deadline(self) -> float:
        return _deadline(self._deadlines[0])[0] if self._deadlines else math.inf

    def _wake_at(self) -> float | None:
        wake_at = self._next_deadline
        if self.policy.kept_idle_until is not None and (self.num_waiting or len(self.running)):
            wake_at = min(wake_at, self.policy.kept_idle_until)
        return wake_at if wake_at < math.inf else None


def _deadline(sequence: Sequence) -> tuple[float, int]:
    return math.inf if sequence.deadline is None else sequence.deadline, sequence.number
