"""Real-time requests before bulk ones: the scheduling policy of the engine, on top of `fifo`.

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
  expected (`arrivals`). Such moments are bounded, and count as overtaking launches.
- When pages run out, the youngest bulk sequence gives its own back before any real-time one does.
- A request that cannot be in time any more is given up (`estimates`).

After `BULK_TURN` launches that overtook waiting bulk work, the next launch is bulk's; `BULK_STEP` decode steps may
leave a bulk sequence out, and as many are the longest time without a launch for waiting bulk work. A bulk request that
lacks pages at its turn holds real-time ones up, but only while some of these run: else it waits for other bulk work.

Seconds that launches may take between decode steps:

```
launches for       while bulk alone decodes           while real-time requests do    while nothing decodes
bulk               `Limits.pause_s`                   at its turn: launch_budget_s   unlimited
bulk, near         launch_budget_s                    at its turn: launch_budget_s   launch_budget_s each
bulk, soon         nothing                            at its turn: launch_budget_s   nothing
real-time          max_pause_s                        launch_budget_s                unlimited
```

Near means that real-time requests are open or come again and again, soon that one is about to be ready.
"""

import math
from functools import partial
from operator import attrgetter

from photonlite.batch import ScheduledBatch
from photonlite.cache.manager import CacheManager
from photonlite.errors import DeadlineError
from photonlite.scheduler.arrivals import ArrivalPredictor
from photonlite.scheduler.decision import Ended
from photonlite.scheduler.estimates import EstimateGuard, Need
from photonlite.scheduler.fifo import Choose, FifoPolicy, FifoQueue, PauseBudget, PauseClock, Resources, first_batch
from photonlite.scheduler.limits import REALTIME_JOBS, Limits
from photonlite.sequence import Sequence

BULK_TURN = 8
"""Launches that may overtake waiting bulk work in a row."""

BULK_STEP = 32
"""The same of decode steps: they are short, and the answer of a loop's request has about as many tokens."""

_LOOKED_AT = 16
"""Waiting real-time requests whose deadlines are checked against estimates in a tick: those that come next."""

_NOTHING = PauseBudget(0.0, fresh=False, over=True)


def rank(sequence: Sequence) -> tuple[bool, int]:
    """Return the sort key of sequences: real-time first, then the oldest."""
    return not sequence.realtime, sequence.number


class OvertakeCounter:
    """Counts how often in a row bulk work was overtaken; its turn is due when that is often enough."""

    def __init__(self, patience: int) -> None:
        self.overtaken = 0
        self._patience = patience

    @property
    def due(self) -> bool:
        return self.overtaken >= self._patience

    def book(self, *, overtakes: bool) -> None:
        """Count a launch: one that overtakes waiting bulk work, or another one."""
        self.overtaken = self.overtaken + 1 if overtakes else 0


class RealtimePolicy(FifoPolicy):
    """Two classes of requests, real-time and bulk."""

    def __init__(self, cache: CacheManager, limits: Limits) -> None:
        self.resources = Resources(cache, limits, rank, self.add_back)
        self.bulk = FifoQueue(
            self.resources,
            lambda sequence: not sequence.realtime,
            limits.max_jobs,
            lambda: self.resources.running.has_place,
            self._bulk_is_held_up,
        )
        self.urgent = FifoQueue(
            self.resources,
            attrgetter("realtime"),
            limits.max_jobs + REALTIME_JOBS,
            self._urgent_has_place,
            self._urgent_is_held_up,
            batches=False,
        )
        self.queues = self.urgent, self.bulk
        self.pause = PauseClock(self.resources.rates)
        self.arrivals = ArrivalPredictor()
        self.kept_free_until = None
        self._guard = EstimateGuard()
        self._launches = OvertakeCounter(BULK_TURN)  # encode and prefill launches that overtook waiting bulk work
        self._steps = OvertakeCounter(BULK_STEP)  # decode steps without a launch for waiting bulk work
        self._left_out = OvertakeCounter(BULK_STEP)  # decode steps without bulk rows
        self._was_idle = False

    @property
    def bulk_waits(self) -> bool:
        """Whether bulk requests wait that rows and the batch have room for."""
        return len(self.bulk.waiting) > 0 and self.resources.running.has_place

    def queue_of(self, sequence: Sequence) -> FifoQueue:
        return self.urgent if sequence.realtime else self.bulk

    def add(self, sequence: Sequence, now: float) -> None:
        super().add(sequence, now)
        if sequence.realtime:
            self.arrivals.note_arrival(now)

    def note_end(self, sequence: Sequence, now: float) -> None:
        if sequence.realtime:
            self.arrivals.note_end(now)

    def is_near(self, now: float) -> bool:
        """Whether real-time requests are open, or were a moment ago."""
        running = self.resources.running.sequences  # in the order of ranks
        open_now = len(self.urgent.waiting) > 0 or (bool(running) and running[0].realtime)
        return open_now or self.arrivals.is_near(now)

    def give_up(self, now: float) -> list[Ended]:
        """Return waiting real-time requests whose first token, by measured rates, would come after their deadlines."""
        ended: list[Ended] = []
        if not len(self.urgent.waiting):
            return ended
        for sequence in self.urgent.waiting.first(_LOOKED_AT):
            if sequence.deadline is None or sequence.times.admitted or self.resources.encoder.has_begun(sequence):
                continue  # work that was spent is not thrown away
            try:
                crops = self.resources.encoder.crops_missing(sequence)
            except Exception as error:  # an image is a plug-in
                ended.append(Ended(sequence, error))
                continue
            need = Need(crops, self.resources.positions(sequence))
            needed_s, left_s = need.least_s(self.resources.rates), sequence.deadline - now
            if needed_s > left_s and self._guard.may_give_up(self.resources.rates, need):
                late = f"image and prompt alone take about {needed_s:.3g} s, and the deadline is in {left_s:.3g} s"
                hopeless = DeadlineError(f"{late}: raise deadline_s, or ask for less at a time")
                ended.append(Ended(sequence, hopeless, "hopeless"))
        return ended

    def plan(self, now: float, *, admit: bool) -> ScheduledBatch | None:
        """Choose the next launch and take what it needs; see `FifoPolicy.plan`."""
        decoding = self.resources.running.decoding()
        urgent_decodes = bool(decoding) and decoding[0].realtime  # they are in the order of ranks
        waits = len(self.urgent.waiting) > 0
        self.kept_free_until = self.arrivals.idle_until(now, waiting=waits, bulk_waits=self.bulk_waits)
        self.bulk.lacks_pages = False

        decode = partial(self._plan_decode, decoding)
        order: tuple[Choose, ...] = (decode,)
        if admit:
            bulk, urgent = self._pauses(now, len(decoding), urgent_decodes=urgent_decodes)
            order = self._order(decode, bulk, urgent, urgent_decodes=urgent_decodes)
        batch = first_batch(order)
        if batch is not None:
            self._book(batch, urgent_decodes=urgent_decodes)
        self._book_idle(batch)
        return batch

    def _pauses(self, now: float, decoding: int, *, urgent_decodes: bool) -> tuple[PauseBudget, PauseBudget]:
        """Return what there is time for on behalf of bulk and of real-time requests: the table of this module."""
        limits, near = self.resources.limits, self.is_near(now)
        short = limits.launch_budget_s
        soon = self.kept_free_until is not None
        if not decoding:
            return _NOTHING if soon else PauseBudget(short if near else math.inf), PauseBudget()
        if soon:
            bulk = _NOTHING
        elif urgent_decodes:
            bulk = PauseBudget(short, over=True)
        else:
            waiting = len(self.urgent.waiting) + len(self.bulk.waiting)
            bulk = self.pause.budget(short if near else limits.pause_s(waiting, decoding))
        return bulk, self.pause.budget(short if urgent_decodes else max(short, limits.max_pause_s))

    def _order(
        self, decode: Choose, bulk_pause: PauseBudget, urgent_pause: PauseBudget, *, urgent_decodes: bool
    ) -> tuple[Choose, ...]:
        """Return the kinds of launches in the order in which to try them."""
        due = self._bulk_is_due
        turn = PauseBudget(self.resources.limits.launch_budget_s) if due else bulk_pause
        bulk = self.bulk.launches(turn, bulk_pause)
        bulk_over = bulk_pause.over and not (urgent_decodes and self._steps.due)
        if not self.urgent.waiting:
            return (decode, *bulk) if bulk_over else (*bulk, decode)
        urgent = self.urgent.launches(urgent_pause, urgent_pause)
        if urgent_pause.over:
            return (decode, *bulk, *urgent) if due else (decode, *urgent, *bulk)
        if due:
            return (*bulk, *urgent, decode)
        return (*urgent, decode, *bulk) if bulk_over else (*urgent, *bulk, decode)

    def _plan_decode(self, decoding: list[Sequence]) -> ScheduledBatch | None:
        """Decode real-time sequences alone, or with the oldest bulk ones at their turn."""
        most = self.resources.limits.max_batch
        if len(decoding) <= most and (not decoding or decoding[0].realtime == decoding[-1].realtime):
            return self.resources.running.plan_decode(decoding)
        able = [sequence for sequence in decoding if not sequence.preempting]
        urgent = [sequence for sequence in able if sequence.realtime]
        if urgent and len(urgent) < len(able):
            bulk_first = self._left_out.due
            self._left_out.book(overtakes=not bulk_first)
            bulk = able[len(urgent) :]
            able = sorted((bulk + urgent)[:most], key=rank) if bulk_first else urgent
        return self.resources.running.plan_decode(able[:most])

    def _book(self, batch: ScheduledBatch, *, urgent_decodes: bool) -> None:
        self.pause.book(batch)
        bulk_waits = len(self.bulk.waiting) > 0
        if batch.kind == "decode":
            self._steps.book(overtakes=urgent_decodes and bulk_waits)
            return
        realtime = any(leader.realtime for leader in [*batch.leaders, *(row.sequence for row in batch.rows)])
        (self.urgent if realtime else self.bulk).book(batch)
        self._launches.book(overtakes=realtime and bulk_waits)
        if not realtime:
            self._steps.book(overtakes=False)
        self.arrivals.note_launch(realtime=realtime)

    def _book_idle(self, batch: ScheduledBatch | None) -> None:
        """Count time in which the device is kept idle as one launch, which is still to come."""
        idle = batch is None and self.kept_free_until is not None and self.bulk_waits
        if idle and not self._was_idle:
            self._launches.book(overtakes=True)
        self._was_idle = idle

    @property
    def _bulk_is_due(self) -> bool:
        return self._launches.due and len(self.urgent.waiting) > 0

    def _urgent_has_place(self) -> bool:
        """Real-time sequences run up to a full batch of their own, beside bulk ones."""
        running = self.resources.running
        if len(running) and any(victim.realtime for victim in running.victims):
            return False
        return sum(one.realtime for one in running) < running.max_batch and bool(running.free_rows)

    def _urgent_is_held_up(self) -> bool:
        """Whether a bulk request lacked pages at its turn, while real-time ones have some."""
        running = self.resources.running
        return self.bulk.lacks_pages and any(one.realtime for one in (*running, *running.zombies))

    def _bulk_is_held_up(self) -> bool:
        """Whether a real-time request is ready that needs pages and rows, and it is not bulk's turn."""
        return not self._bulk_is_due and any(self.resources.needs_launch(one) for one in self.urgent.ready())
