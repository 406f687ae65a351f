"""Order of launches, checked independently of the scheduler: real-time first; neither bulk work nor adapters starve."""

from typing import TYPE_CHECKING

from photonlite.batch import Step
from photonlite.sequence import Sequence
from tests.simulation.body import Violation

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation

_TURN = 8
"""Launches that may overtake bulk work in a row."""

_STEP = 2 * 32 + 2
"""Steps in a row that may leave a bulk sequence out: at a turn of bulk ones, their runs may go without the others."""

_LOOKED_AT = 64

_KEPT_IDLE = 9
"""Milliseconds, of a tick each, for which the device may be kept idle while bulk work waits for its next launch."""


class Priority:
    """Watches launches.

    Args:
        simulation: Whose.
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._overtaken = 0
        self._overtaken_images = 0  # by images that are encoded beside the other steps
        self._went_on = 0  # of these launches, how many came before a part of a bulk prompt
        self._kept_idle = 0  # whole ticks
        self._idle_plans = 0  # plans that kept the device idle, for a part of a tick too: the policy counts these
        self._planned_at = 0.0
        self._bulk_waited = False  # when this tick was planned, and has not been launched since
        self._waited: set[tuple[Sequence, bool]] = set()  # sequences left out, and whether for a launch of runs
        self._bulk_ran = False  # before this tick was planned
        self._was_stuck = False  # some of them in the last launch
        self._left_out: dict[Sequence, int] = {}
        self._gave: set[Sequence] = set()
        self._slotless: set[Sequence] = set()  # asked for their adapters' slots, and have none
        self._first: Sequence | None = None  # of these
        self._holders: set[Sequence] = set()
        self._joined: set[int] = set()  # slots that sequences behind the first one have got since it is that

    def planning(self) -> None:
        """Note whether bulk work waits: what a commit makes room for is planned in the next tick."""
        scheduler = self._simulation.scheduler
        waits = any(not one.realtime for one in scheduler.waiting)
        self._bulk_waited = waits and scheduler.running.has_place
        self._planned_at = self._simulation.now
        self._bulk_ran = any(not one.realtime for one in scheduler.running)

    def launching(self, step: Step) -> None:
        """Check a launch that has been planned and not yet done."""
        if step.kind in ("decode", "run", "mixed"):
            self._check_decode(step)
        if not step.plan.groups and not any(row.begins for row in step.rows):
            if any(not (row.pending or row.sequence.realtime) for row in step.rows):
                self._went_on = self._overtaken  # it may have been bulk's turn, for a prompt that has begun
            return
        for row in step.rows:
            self._left_out.pop(row.sequence, None)  # a prompt, of one that was pre-empted too, gives it a token as well
        scheduler, seen = self._simulation.scheduler, self._simulation.seen
        led = [group.job.leader for group in step.plan.groups] + [row.sequence for row in step.rows if row.begins]
        classes = {one.realtime for one in led}
        if len(classes) != 1:
            raise Violation(f"step {step.number} is for real-time requests and for bulk ones")
        realtime = classes.pop()
        if self._simulation.beside.is_beside(step):
            self._encode_beside(step, realtime=realtime)
            return
        if realtime and self._overtaken - self._went_on >= _TURN:
            self._check_no_bulk(step)
        if not realtime:
            if self._overtaken + self._idle_plans < _TURN:
                self._check_no_realtime(step)
            self._kept_idle, self._idle_plans, self._bulk_waited = 0, 0, False
        seen["bulk's turns"] += not realtime and self._overtaken >= _TURN
        waits = any(not one.realtime for one in scheduler.waiting)
        self._overtaken = self._overtaken + 1 if realtime and waits else 0
        self._went_on = min(self._went_on, self._overtaken)
        seen["launches that overtook bulk work"] += realtime and waits

    def _encode_beside(self, step: Step, *, realtime: bool) -> None:
        goes_beside = self._simulation.beside.goes_beside
        jobs = [one for one in self._simulation.scheduler.encoder.jobs.values() if one.launched < one.total]
        jobs = [job for job in jobs if goes_beside(job)]
        left_out = [job for job in jobs if job.leader.realtime != realtime and not self.lacks(job.leader)]
        due = self._overtaken_images >= _TURN
        if left_out and realtime == due:
            raise Violation(f"step {step.number} encodes before image {left_out[0].key}, by {self._overtaken_images}")
        waits = any(one.images and not one.realtime for one in self._simulation.scheduler.waiting)
        self._simulation.seen["turns of bulk images beside others"] += due and not realtime
        self._overtaken_images = self._overtaken_images + 1 if realtime and waits else 0
        if not realtime:
            self._kept_idle = 0
        runs_beside = self._simulation.scheduler.policy.runs_beside
        waiting = scheduler_waiting(self._simulation, realtime=False) if step.rows else ()
        jobs = self._simulation.scheduler.encoder.jobs.values()
        begun = any(0 < one.launched < one.total and not (one.beside or one.leader.realtime) for one in jobs)
        if step.rows and not begun and all(runs_beside(one) for one in waiting if self._could_run(one, step)):
            self._went_on = self._overtaken  # nothing else of bulk waited for a turn

    def check(self) -> None:
        """Check the running sequences between two ticks."""
        scheduler, limit = self._simulation.scheduler, self._simulation.scenario.max_batch
        self._check_kept_idle()
        self._check_slots()
        for realtime in (True, False) if len(scheduler.running) > limit else ():
            running = [one for one in scheduler.running if one.realtime == realtime]
            if len(running) > limit:
                raise Violation(f"{len(running)} sequences of a class run, but a batch has {limit}")
        gave = {one for one in scheduler.running if one.preempting}
        if gave:
            flying = [row for step in self._simulation.core.pipeline.in_flight for row in step.rows]
            gave -= {row.sequence for row in flying if any(job.failed for job in row.jobs)}  # these lack their images
        for one in gave - self._gave:
            if one.realtime and any(not other.realtime and not other.preempting for other in scheduler.running):
                raise Violation(f"real-time sequence {one.number} gives its pages back before a bulk one")
        self._gave = gave

    def _check_kept_idle(self) -> None:
        """Check that bulk work is not held back forever by requests that are expected, or not ready."""
        kept_until = self._simulation.scheduler.policy.kept_idle_until
        if kept_until is None or kept_until <= self._planned_at or not self._bulk_waited:
            return
        self._idle_plans += 1
        self._kept_idle += kept_until > self._simulation.now
        if self._kept_idle > _KEPT_IDLE:
            raise Violation(f"bulk work waits, and the device has been kept idle for {self._kept_idle} ticks")

    def _check_slots(self) -> None:
        """Check that sequences behind the first one that waits for a slot leave it one."""
        scheduler, adapters = self._simulation.scheduler, self._simulation.scheduler.adapters
        asked = self._slotless | adapters._blocked.keys()
        asked &= {*scheduler.waiting} if asked else asked
        self._slotless = {one for one in asked if not one.adapter_slot}
        before, self._holders = self._holders, {one for one in self._simulation.core.open if one.adapter_slot}
        first_before, self._first = self._first, min(self._slotless, key=_rank, default=None)
        new = self._holders - before
        if self._first is None or self._first is not first_before:
            self._joined.clear()
            return
        first = _rank(self._first)
        urgent = any(one.realtime for one in before ^ self._holders)  # then another slot may be the one to drain
        free = adapters.used < adapters.count or self._first.adapter_key in adapters._slots
        if urgent or free or any(_rank(one) < first for one in new):
            self._joined.clear()
            return
        idle = {slot.number for slot in adapters._slots.values() if not slot.held}  # it has yet to take one
        self._joined = (self._joined - idle) | {one.adapter_slot for one in new}
        self._simulation.seen["ticks in which slots were waited for"] += 1
        if len(self._joined) == adapters.count:
            raise Violation(f"sequence {self._first.number} gets no slot: later ones have got each of them")

    def _check_no_realtime(self, step: Step) -> None:
        for sequence in scheduler_waiting(self._simulation, realtime=True):
            if step.rows and self._could_run(sequence, step):
                raise Violation(f"bulk step {step.number} overtakes real-time sequence {sequence.number}")
        goes_beside = self._simulation.beside.goes_beside
        for job in self._simulation.scheduler.encoder.jobs.values():
            led = job.leader.realtime and not self.lacks(job.leader) and not goes_beside(job)
            if step.kind == "encode" and led and job.launched < job.total:
                raise Violation(f"bulk crops overtake those of real-time image {job.key}")

    def _check_no_bulk(self, step: Step) -> None:
        """Check that bulk work had a reason to miss its turn."""
        simulation, scheduler = self._simulation, self._simulation.scheduler
        for job in scheduler.encoder.jobs.values():
            led = not job.leader.realtime and not self.lacks(job.leader) and not simulation.beside.goes_beside(job)
            if led and job.launched < job.total:
                raise Violation(f"bulk image {job.key} starves: {self._overtaken} launches have overtaken it")
        if any(one.times.preemptions for one in scheduler.waiting) or any(scheduler.running.swap):
            return  # a pre-empted sequence waits until another one finishes
        if False in scheduler.running.router.refused:
            return
        if any(one.cut and one.realtime for one in scheduler.running):
            return  # prompts that have begun go on first
        if len(scheduler.running) >= simulation.scenario.max_batch or not scheduler.running.free_rows:
            return
        free = simulation.pages.free + simulation.cache.prefix.idle_pages
        if scheduler.policy.mixes:  # rows that decode beside a prompt get their pages first
            ends = [(one, max(one.num_tokens, one.num_computed_tokens + 1)) for one in scheduler.running]
            free -= sum(max(0, simulation.pages.pages_for(end) - len(one.pages)) for one, end in ends)
        runs_beside = simulation.beside.ran_beside  # which takes no turn
        waiting = scheduler_waiting(simulation, realtime=False)
        ready = [one for one in waiting if self._could_run(one, step) and not runs_beside(one)]
        for sequence in ready[:1]:  # none behind it may take the pages that it lacks
            if simulation.cache.pages_needed(sequence) <= free:
                raise Violation(f"bulk sequence {sequence.number} starves: {self._overtaken} launches went first")

    def _check_decode(self, step: Step) -> None:
        simulation = self._simulation
        carried = {row.sequence for row in step.rows}
        bulk, realtime = (any(one.realtime == of for one in carried) for of in (False, True))
        full = len(carried) == simulation.scenario.max_batch
        able = [one for one in simulation.scheduler.running if could_decode(one, simulation.scenario.page_size)]
        out = [one for one in able if one not in carried]
        simulation.seen["decode steps that left sequences out"] += full and bool(out)
        simulation.seen["decode steps of real-time requests alone"] += realtime and not bulk and bool(out)
        for one in out:
            if (one.realtime and not (full and bulk)) or not (full or realtime) or one.cut:
                continue
            self._left_out[one] = self._left_out.get(one, 0) + 1
            if self._left_out[one] > (1 if one.realtime else _STEP):
                raise Violation(f"sequence {one.number} runs, and {self._left_out[one]} decode steps left it out")
        for one in carried:
            self._left_out.pop(one, None)
        self._check_turns(step, out)

    def _check_turns(self, step: Step, out: list[Sequence]) -> None:
        """Check that of launches of runs and decode steps neither comes twice while sequences wait for the other."""
        waited, classes = self._waited, {row.sequence.realtime for row in step.rows}
        if self._simulation.scheduler.policy.mixes:
            self._waited.clear()  # runs ride with decode steps, as far as there is room
            return
        other = step.kind == "decode"  # what goes in a launch of runs waits for one
        self._waited = {(one, other) for one in out if one.is_behind == other and one.realtime in classes}
        at_bulk_turn = len(classes) > 1  # for which real-time sequences wait once more
        full = len(step.rows) == self._simulation.scenario.max_batch
        stuck = waited & self._waited if not full and not at_bulk_turn else set()
        before, self._was_stuck = self._was_stuck, bool(stuck)
        # Bulk ones may lack pages at their turn, of which the next launch then is none.
        if stuck and (before or not self._bulk_ran):
            raise Violation(f"{[one.number for one, _ in stuck]} wait for another launch than {step.kind} steps")

    def lacks(self, sequence: Sequence) -> bool:
        """Whether a sequence has ended, or waits for its adapter."""
        return sequence.finalized or self._simulation.scheduler.adapters.is_blocked(sequence)

    def _could_run(self, sequence: Sequence, step: Step) -> bool:
        """Whether a waiting sequence lacked nothing but a row and pages when a step was planned."""
        scheduler = self._simulation.scheduler
        if sequence.answered or self.lacks(sequence):
            return False
        if not sequence.images:
            return True
        lacking = [span for span in sequence.images if scheduler.cache.image_state(span) != "ready"]
        if not lacking:
            return sequence.samples
        encoded_now = {group.job for group in step.plan.groups}
        for span in lacking:
            job = scheduler.encoder.jobs.get(span.key)
            missing = scheduler.cache.image_state(span) == "missing"
            if not missing or job is None or not job.encoded or job in encoded_now:
                return False
        return True


def scheduler_waiting(simulation: "Simulation", *, realtime: bool) -> list[Sequence]:
    """Return the waiting sequences of a class that the scheduler considers."""
    return [one for one in simulation.scheduler.waiting if one.realtime == realtime][:_LOOKED_AT]


def _rank(sequence: Sequence) -> tuple[bool, int]:
    return not sequence.realtime, sequence.number


def could_decode(sequence: Sequence, page_size: int) -> bool:
    """Whether a running sequence has a position to fill and room for it."""
    more = sequence.samples and sequence.next_index < sequence.budget
    end = max(sequence.num_computed_tokens + 1, sequence.num_tokens)
    return more and not (sequence.preempting or sequence.beside) and end <= len(sequence.pages) * page_size
