"""Real-time requests before bulk ones: the scheduling policy from the first real-time request on, on top of `fifo`.

```
real-time   R R R R R R R R   R R ...
bulk                        B            at its turn, after BULK_TURN launches that overtook it
```

Each class is first come, first served, and has launches of its own:

- Real-time crops and prompts go first, also where the pause of bulk work is over.
- While a real-time request is ready to run and cannot, no bulk prompt is admitted: pages and rows that come free are
  left to it.
- Real-time requests run beside a full batch, and are decoded in steps of their own: each row more makes a step longer.
- No bulk prompt or image is launched between these steps, nor in the moments before the next request of a loop is
  expected. Such moments are bounded, and count as overtaking launches.
- When pages run out, the youngest bulk sequence gives its own back before any real-time one does.
- A request that cannot be in time any more is given up.

After `BULK_TURN` launches that overtook waiting bulk work, the next launch is bulk's; `BULK_STEP` decode steps may
leave a bulk sequence out, and as many are the longest time without a launch for waiting bulk work. A bulk request that
lacks pages at its turn holds real-time ones up, but only while some of these run: else it waits for other bulk work.
So does one that was swapped, at its turn, until it has worked.

Seconds that launches may take between decode steps:

```
launches for       while bulk alone decodes           while real-time requests do    while nothing decodes
bulk               `pause_s`                          at its turn: launch_budget_s   unlimited
bulk, near         launch_budget_s                    at its turn: launch_budget_s   launch_budget_s each
bulk, soon         nothing                            at its turn: launch_budget_s   nothing
real-time          max_pause_s                        launch_budget_s                unlimited
```

Near means that real-time requests are open or come again and again, soon that one is about to be ready, or that its
image is being encoded where the encoder has a stream of its own: there, or in turn with crops left.

Where real-time requests have a part of the card (`Limits.realtime_part`), bulk images and the prompts about them run in
the other part while real-time requests are near, at any time: they hold up nothing here. A prompt that gets no row or
page there, of what real-time requests have left, has its turn as all others have. Where real-time requests are late
beside them, or nearly so, bulk images take turns for a while (`PartTrial`).
"""

import math
from typing import Any

from photonlite.batch import ScheduledBatch
from photonlite.errors import DeadlineError
from photonlite.scheduler.arrivals import ArrivalPredictor
from photonlite.scheduler.chunks import Admitted
from photonlite.scheduler.fifo import NO_PROMPTS, Ended, FifoPolicy, Runs
from photonlite.scheduler.limits import REALTIME_JOBS, PauseBudget
from photonlite.scheduler.part_trial import PartTrial
from photonlite.scheduler.queues import WaitingQueue
from photonlite.scheduler.swap import TURN
from photonlite.sequence import Sequence

BULK_TURN = 8
"""Launches that may overtake waiting bulk work in a row."""

BULK_STEP = 32
"""The same of decode steps: they are short, and the answer of a loop's request has about as many tokens."""

_LOOKED_AT = 16
"""Waiting real-time requests whose deadlines are checked against estimates in a tick: those that come next."""

_GIVEN_UP = 3
"""Requests that are given up by the same measurements; then one is tried: only work renews the measurements."""

_NOTHING = PauseBudget(0.0, fresh=False, over=True)


class RealtimePolicy(FifoPolicy):
    def __init__(self, fifo: FifoPolicy, second: float = 1.0) -> None:
        """Take over from a policy that has had bulk requests alone; `second` as in `ArrivalPredictor`."""
        vars(self).update(vars(fifo))
        (self.bulk,) = fifo.queues
        self.urgent = WaitingQueue(self.limits.max_jobs + REALTIME_JOBS, realtime=True)
        self.queues = self.urgent, self.bulk
        self.running.rank, self.running.requeue = self.rank, self.requeue
        self.running.swap.recompute_s = self.recompute_s
        self.arrivals, self.part = ArrivalPredictor(second), PartTrial(second)
        # In a row: encode and prefill launches that overtook waiting bulk work, decode steps without a launch for it,
        # and decode steps without bulk rows.
        self._overtaking_launches = self._overtaking_steps = self._steps_without_bulk = 0
        self._overtaking_encodings = 0  # launches in a row that overtook bulk images, where they run beside the steps
        self._ran_at_turn = False  # the last of these steps with bulk rows was a launch of their runs
        # At bulk's turn a prompt got no place in the encoder's part, of what real-time ones had left in the same plan.
        self.lacked_place_beside = False
        self._was_idle = False
        self._overtaking_swapped = 0  # launches in a row that overtook swapped bulk sequences
        self._due: Sequence | None = None  # a bulk one that was swapped, whose turn it is to work
        # Requests that may be given up by the measurements made so far, and how many of crops and prompts these were.
        self._may_give_up, self._measured = _GIVEN_UP, (-1, -1)

    @property
    def bulk_waits(self) -> bool:
        """Whether bulk requests wait that rows and the batch have room for."""
        return len(self.bulk) > 0 and self.running.has_place

    def rank(self, sequence: Sequence) -> Any:
        return not sequence.realtime, sequence.number

    def queue_of(self, sequence: Sequence) -> WaitingQueue:
        return self.urgent if sequence.realtime else self.bulk

    def add(self, sequence: Sequence, now: float) -> None:
        super().add(sequence, now)
        if sequence.realtime:
            self.arrivals.note_arrival(now)

    def note_end(self, sequence: Sequence, now: float) -> None:
        if not sequence.realtime:
            return
        self.arrivals.note_end(now)
        if self.limits.realtime_part and sequence.deadline is not None and self._has_bulk_beside:
            # A client may take its request back at the deadline, before this is seen here.
            late = now >= sequence.deadline or isinstance(sequence.error, DeadlineError)
            if late or sequence.error is None:
                self.part.note_end(now, sequence.deadline, late=late)

    @property
    def _has_bulk_beside(self) -> bool:
        """Whether a bulk image, or a prompt about one, runs in its part of the card."""
        images = (job.beside and not job.encoded for job in self.encoder.jobs_of(self.bulk))
        return any(images) or any(one.beside for one in self.running)

    def is_near(self, now: float) -> bool:
        """Whether real-time requests are open, or were a moment ago."""
        running = self.running.sequences  # in the order of ranks
        return len(self.urgent) > 0 or (bool(running) and running[0].realtime) or self.arrivals.is_near(now)

    def give_up(self, now: float) -> list[Ended]:
        """Return waiting real-time requests whose first token, by measured rates, would come after their deadlines."""
        ended: list[Ended] = []
        if not len(self.urgent):
            return ended
        for sequence in self.urgent.first(_LOOKED_AT):
            if sequence.deadline is None or sequence.times.admitted or self.encoder.is_begun(sequence):
                continue  # work that was spent is not thrown away
            try:
                crops = self.encoder.crops_missing(sequence)
            except Exception as error:  # an image is a plug-in
                ended.append(Ended(sequence, error))
                continue
            needed_s = self.crops.least(crops) + self.prompts.least(self.positions(sequence))
            left_s = sequence.deadline - now
            if needed_s > left_s and self._trusts_measurements(crops):
                late = f"image and prompt alone take about {needed_s:.3g} s, and the deadline is in {left_s:.3g} s"
                hopeless = DeadlineError(f"{late}: raise deadline_s, or ask for less at a time")
                ended.append(Ended(sequence, hopeless, "hopeless"))
        return ended

    def _trusts_measurements(self, crops: int) -> bool:
        """Whether measured times may decide that a request is given up; counts it if so.

        The count is limited: if everything were given up after a slow moment, nothing would ever be measured again.
        """
        encoded, prefilled = self.crops.observed, self.prompts.observed
        if prefilled != self._measured[1] and (encoded != self._measured[0] or not crops):
            self._may_give_up, self._measured = _GIVEN_UP, (encoded, prefilled)
        self._may_give_up -= 1
        return self._may_give_up >= 0

    def plan(self, now: float, *, admit: bool) -> ScheduledBatch | None:
        decoding = self.running.decoding()
        urgent_decodes = bool(decoding) and decoding[0].realtime  # they are in the order of ranks
        if admit:
            self.bring_back()
        waits = len(self.urgent) > 0
        self.kept_idle_until = self.arrivals.idle_until(now, waiting=waits, bulk_waits=self.bulk_waits)
        self.bulk.lacks_pages = False

        if admit and (waits or len(self.bulk)):
            batch = self._plan_any(now, decoding, urgent_decodes=urgent_decodes)
        else:
            batch = self.plan_decode(decoding)
        if batch is not None and batch.kind in ("decode", "run", "mixed"):
            overtakes = urgent_decodes and len(self.bulk) > 0
            self._overtaking_steps = self._overtaking_steps + 1 if overtakes else 0
        # Time in which the device is kept idle counts as one launch, which is still to come.
        idle = batch is None and self.kept_idle_until is not None and self.bulk_waits
        self._overtaking_launches += idle and not self._was_idle
        self._was_idle = idle
        return batch

    def plan_beside(self, now: float) -> ScheduledBatch | None:
        """Choose real-time images first, and bulk ones at their turn; these only for a short time if others are near.

        What is launched cannot be recalled, and the next real-time image waits for it; not where real-time requests
        have a part of their own.
        """
        due, reserved = self._overtaking_encodings >= BULK_TURN, self.images.reserved
        short = self.is_near(now) and not reserved
        bulk_room = PauseBudget(self.limits.launch_budget_s if short else math.inf)

        def urgent() -> ScheduledBatch | None:
            return self.images.plan(self.urgent, PauseBudget(), beside=True)

        def bulk() -> ScheduledBatch | None:
            if self.kept_idle_until is None or due or reserved:
                return self.plan_prompts_beside(self.bulk) or self.images.plan(self.bulk, bulk_room, beside=True)
            return None

        self.lacked_place_beside = False  # else none would run beside here
        batch = bulk() or urgent() if due else urgent() or bulk()
        prompts = batch is not None and bool(batch.rows)
        if reserved and self._bulk_is_due and not prompts:
            self.lacked_place_beside = any(map(self.runs_beside, self.ready(self.bulk)))
        if batch is not None:
            realtime = bool(batch.groups) and batch.groups[0].job.leader.realtime
            overtakes = realtime and self.bulk.wants_images
            self._overtaking_encodings = self._overtaking_encodings + 1 if overtakes else 0
            if prompts and not self._waits_for_turn():
                self._overtaking_launches = 0
            if realtime or not reserved:
                self.arrivals.note_launch(realtime=realtime)
        return batch

    def _waits_for_turn(self) -> bool:
        """Whether a bulk prompt, or the rest of a bulk image, waits for a turn on all of the card."""
        jobs = self.encoder.jobs_of(self.bulk)
        begun = any(0 < job.launched < job.total and not job.beside for job in jobs)
        return begun or not all(map(self.runs_beside, self.ready(self.bulk)))

    def _plan_any(self, now: float, decoding: list[Sequence], *, urgent_decodes: bool) -> ScheduledBatch | None:
        bulk_pause, urgent_pause = self._pauses(now, len(decoding), urgent_decodes=urgent_decodes)
        due = self._bulk_is_due
        turn = PauseBudget(self.limits.launch_budget_s) if due else bulk_pause
        bulk_over = bulk_pause.over and not (urgent_decodes and self._overtaking_steps >= BULK_STEP)

        def decode() -> ScheduledBatch | None:
            return self.plan_decode(decoding)

        def bulk() -> ScheduledBatch | None:
            return self.plan_launch(self.bulk, turn, bulk_pause)

        def urgent() -> ScheduledBatch | None:
            return self.plan_launch(self.urgent, urgent_pause, urgent_pause)

        if not len(self.urgent):
            return decode() or bulk() if bulk_over else bulk() or decode()
        if urgent_pause.over:
            return decode() or (bulk() or urgent() if due else urgent() or bulk())
        if due:
            return bulk() or urgent() or decode()
        return urgent() or (decode() or bulk() if bulk_over else bulk() or decode())

    def _pauses(self, now: float, decoding: int, *, urgent_decodes: bool) -> tuple[PauseBudget, PauseBudget]:
        """Return what there is time for on behalf of bulk and of real-time requests: the table of this module."""
        limits, near = self.limits, self.is_near(now)
        short = limits.launch_budget_s
        soon = self.kept_idle_until is not None or self._encodes_urgent
        if not decoding:
            return _NOTHING if soon else PauseBudget(short if near else math.inf), PauseBudget()
        if soon:
            bulk = _NOTHING
        elif urgent_decodes:
            bulk = PauseBudget(short, over=True)
        else:
            waiting = len(self.urgent) + len(self.bulk)
            bulk = self.pause(short if near else self.pause_s(waiting, decoding))
        return bulk, self.pause(short if urgent_decodes else max(short, limits.max_pause_s))

    @property
    def _encodes_urgent(self) -> bool:
        """Whether a real-time image is being encoded, there or in turn, behind which its prompt is to come at once."""
        jobs = self.encoder.jobs.values() if self.limits.encodes_beside else ()
        return any(job.leader.realtime and job.launched > 0 and not job.encoded for job in jobs)

    @property
    def mixes(self) -> bool:
        """As of the other policy, and only while no real-time request is open: turns keep their bounds."""
        running = self.running.sequences
        return super().mixes and not len(self.urgent) and not (running and running[0].realtime)

    def choose_parts(self, now: float) -> None:
        """As of the other policy; while real-time requests are near, bulk images keep to their part or take turns.

        They take turns, which are short, where real-time requests have no part, or are late in spite of it.
        """
        if self.is_near(now):
            self.images.reserve(reserved=self.limits.realtime_part and self.part.holds(now))
        else:
            self.images.divide(self.bulk, self.run_cost.decode_s)
        self.lacked_place_beside &= self.images.reserved

    def runs_beside(self, sequence: Sequence) -> bool:
        """As of the other policy, but at its turn a bulk prompt does not wait for the encoder's stream.

        It does where real-time requests have the other part of the card, unless it got no place there.
        """
        stays = self.images.reserved and not self.lacked_place_beside
        return super().runs_beside(sequence) and (stays or not self._bulk_is_due)

    def choose_rows(self, decoding: list[Sequence]) -> list[Sequence]:
        """Choose real-time sequences alone, or with the oldest bulk ones at their turn."""
        most = self.limits.max_batch
        if len(decoding) <= most and (not decoding or decoding[0].realtime == decoding[-1].realtime):
            return decoding
        able = [sequence for sequence in decoding if not sequence.preempting]
        urgent = [sequence for sequence in able if sequence.realtime]
        if not urgent or len(urgent) == len(able):
            return able
        if self._steps_without_bulk < BULK_STEP:
            # What has just come back works at once, before real-time sequences need its pages again.
            returned = [one for one in able[len(urgent) :] if one.has_turn]
            return urgent + returned[: max(0, most - len(urgent))]
        return sorted((able[len(urgent) :] + urgent)[:most], key=self.rank)

    def plan_decode(self, decoding: list[Sequence], prompts: Admitted = NO_PROMPTS) -> ScheduledBatch | None:
        able = [one for one in decoding if not one.preempting] if decoding and decoding[0].realtime else decoding
        both = bool(able) and able[0].realtime != able[-1].realtime
        turn = both and self._steps_without_bulk >= BULK_STEP
        if turn and (self._steps_without_bulk - BULK_STEP) % 2 == 0:  # bulk ones may lack pages for many turns
            # A turn of their runs follows one of their steps: others have further runs before these have had a step.
            behind = any(one.is_behind and not one.realtime for one in able)
            self.running.ran_last = self._ran_at_turn or not behind
        batch = super().plan_decode(decoding, prompts)
        if both:
            # A sequence that has just been swapped in and decodes alone does not count as a turn of bulk requests.
            has_bulk = turn and batch is not None and any(not row.sequence.realtime for row in batch.rows)
            self._steps_without_bulk = 0 if has_bulk else self._steps_without_bulk + 1
            if batch is not None and has_bulk:
                self._ran_at_turn = batch.kind == "run"
        return batch

    def choose_expecting(self, chosen: list[Sequence], decoding: int) -> frozenset[Sequence]:
        """Choose real-time sequences alone where some decode, as `choose_runs` does."""
        urgent = [one for one in chosen if one.realtime]
        return super().choose_expecting(urgent or chosen, len(urgent) or decoding)

    def choose_runs(self, runs: Runs) -> Runs:
        """Take runs of bulk sequences only where no real-time one decodes, which each launch more would hold up."""
        decoding = self.running.decoding()
        urgent = [sequence for sequence in decoding if sequence.realtime]
        if not urgent or len(urgent) == len(decoding):
            return super().choose_runs(runs)
        own = [(sequence, run) for sequence, run in runs if sequence.realtime]
        return self.worth_a_launch(own, len(urgent))

    def note_launch(self, queue: WaitingQueue, batch: ScheduledBatch) -> None:
        super().note_launch(queue, batch)
        realtime = queue is self.urgent
        self._overtaking_launches = self._overtaking_launches + 1 if realtime and len(self.bulk) else 0
        swapped = self.running.swap.has_swapped(realtime=False)
        self._overtaking_swapped = self._overtaking_swapped + 1 if realtime and swapped else 0
        if not realtime:
            self._overtaking_steps = 0
        self.arrivals.note_launch(realtime=realtime)

    @property
    def _bulk_is_due(self) -> bool:
        return self._overtaking_launches >= BULK_TURN and len(self.urgent) > 0

    def has_place(self, queue: WaitingQueue) -> bool:
        """Whether one more may run; real-time sequences run up to a full batch of their own, beside bulk ones."""
        running = self.running
        if running.swap.has_swapped(realtime=queue.realtime):
            return False
        return running.has_place if queue is self.bulk else self._has_urgent_place()

    def _has_urgent_place(self) -> bool:
        running = self.running
        if len(running) and any(victim.realtime for victim in running.victims):
            return False
        taken = sum(one.realtime for one in (*running, *running.swap.returning))
        return taken < running.max_batch and bool(running.free_rows)

    def bring_back(self) -> None:
        """Let swapped sequences come back as prompts of their class may start; bulk ones have a turn of their own."""
        running = self.running
        while self._has_urgent_place() and running.swap.bring_back(realtime=True):
            pass
        if self._due is not None and not self._is_owed_a_step(self._due):
            self._due = None
        if self._due is None and self._overtaking_swapped >= BULK_TURN:
            self._due = running.swap.first(realtime=False)
        if running.swap.has_swapped(realtime=True) or (self.is_held_up(self.bulk) and self._due is None):
            return
        while running.has_place and (one := running.swap.first(realtime=False)) is not None:
            if self._was_in_vain(one) or not running.swap.bring_back(realtime=False, due=one is self._due):
                break
            self._overtaking_swapped = 0

    def _was_in_vain(self, sequence: Sequence) -> bool:
        """Whether a sequence has twice left within its turn: beside real-time ones it waits until it is due then."""
        return self._has_realtime and sequence.turn_room > 2 * TURN and sequence is not self._due

    def _is_owed_a_step(self, sequence: Sequence) -> bool:
        """Whether a sequence is swapped, or has come back and computed nothing yet."""
        swap = self.running.swap
        back = sequence in swap.returning or sequence.row is not None
        idle = sequence in swap.swapped or (back and sequence.turn_end - sequence.num_computed_tokens == TURN)
        return idle and not sequence.finalized

    def is_held_up(self, queue: WaitingQueue) -> bool:
        """Whether the other class needs the pages and rows that come free.

        Bulk prompts wait while a real-time request is ready, unless it is their turn. Real-time ones wait if a bulk
        request lacked pages at its turn, or until a swapped one has worked at its turn, while real-time ones have some.
        """
        if queue is self.bulk:
            if self._bulk_is_due:
                return False
            swapped = self.running.swap.has_swapped(realtime=True)
            return swapped or any(self.needs_launch(one) for one in self.ready(self.urgent))
        due = self._due
        if due is not None and due not in self.running.swap.swapped:  # its pages are there
            return self._is_owed_a_step(due)
        return (self.bulk.lacks_pages or due is not None) and self._has_realtime

    @property
    def _has_realtime(self) -> bool:
        """Whether real-time sequences have pages."""
        return any(one.realtime for one in (*self.running, *self.running.zombies))
