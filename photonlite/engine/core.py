"""The engine's tick: launch, commit, finalize, on one thread and on any device. No torch.

```
tick      launch t+1  ──  commit t  ──  finalize t+1
          │               │             └ masks of grammars that have consumed t's tokens
          │               └ the only wait; tokens go out, sequences finish, references drop
          └ needs no mask: the device never waits for the host
```

Where images are encoded beside the other steps, encode steps go their own way, and so may prompts about these images:
each tick commits those that have ended and launches the next, and waits for one only where there is nothing else to do.

A sequence that finishes while step t+1 carries it is a zombie: its result is out, its tokens are dropped, its pages and
row come free when the last step that carries it has committed. Nothing on the device is ever cancelled.
"""

import itertools
import logging
import time
from collections.abc import Callable

from photonlite.batch import Executor, ScheduledBatch, Step
from photonlite.engine.answers import Answers, Outcomes
from photonlite.engine.faults import is_shortage, may_be_split, request_error, step_error
from photonlite.engine.transfers import Transfers
from photonlite.errors import EngineDiedError, RequestCancelledError
from photonlite.observe.metrics import EngineMetrics
from photonlite.observe.trace import Tracer
from photonlite.request import Allowed
from photonlite.runner.slots import ENCODER_SLOTS, Pipeline
from photonlite.scheduler.adapters import AdapterLoad
from photonlite.scheduler.fifo import Ended
from photonlite.scheduler.queues import by_number
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence

_logger = logging.getLogger("photonlite")

_STRIKES = 3
"""Steps that may fail in a row before the device counts as lost; those for which memory is short do not count."""


class EngineCore:
    """Scheduler, pipeline of `depth` steps and executor, driven tick by tick; deadlines are times of the clock."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Executor,
        depth: int,
        metrics: EngineMetrics | None = None,
        tracer: Tracer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        numbers = itertools.count()
        self.pipeline = Pipeline(depth, numbers)
        self._encodes_beside = scheduler.limits.encodes_beside
        self.encodings = Pipeline(ENCODER_SLOTS, numbers) if self._encodes_beside else self.pipeline
        self.metrics = metrics or EngineMetrics()
        self.tracer = tracer or Tracer(enabled=False)
        self.answers = Answers(scheduler, self.metrics, clock, self.end)
        self.load_adapter: Callable[[AdapterLoad], None] = no_adapters  # begins; the end is told to `note_adapter`
        self.wake_at: float | None = None  # when time alone may give something to do; None where only an event can
        self.open: set[Sequence] = set()  # submitted and not ended
        self.open_realtime = 0
        self._clock = clock
        self._ended = 0
        self.transfers = Transfers(scheduler, runner, self.metrics, self.tracer)
        self._strikes = 0  # steps that have failed in a row
        self._failed_images: frozenset[str] = frozenset()  # of the last of them

    @property
    def in_flight(self) -> tuple[Step, ...]:
        """Steps launched and not yet committed."""
        beside = self.encodings.in_flight if self._encodes_beside else ()
        return self.pipeline.in_flight + beside

    @property
    def idle(self) -> bool:
        return not self.open and not self.in_flight and not self.transfers.open

    def submit(self, sequence: Sequence) -> None:
        self.scheduler.submit(sequence, self._clock())
        self.open.add(sequence)
        self.open_realtime += sequence.realtime
        self.metrics.requests_submitted += 1
        self.answers.take_opening(sequence)

    def cancel(self, sequence: Sequence) -> None:
        self.end(sequence, RequestCancelledError("the request was cancelled"))

    def end(self, sequence: Sequence, error: BaseException | None = None) -> None:
        """End a request, unless it has ended: the result goes out now, pages are released when no step carries it."""
        if sequence in self.open:
            now = self._clock()
            # Before pages are released: the cache keeps nothing of an answer that failed.
            sequence.error = error = None if error is None else request_error(sequence, error)
            self.scheduler.finish(sequence, now)
            self._close(sequence, error, now)

    def note_adapter(self, load: AdapterLoad, error: BaseException | None = None) -> None:
        """Take note that an adapter has been loaded, or why not: that ends the requests that wait for it."""
        for sequence in self.scheduler.adapters.note_loaded(load, failed=error is not None):
            self.end(sequence, error)

    def end_all(self, error: BaseException) -> None:
        for sequence in sorted(self.open, key=by_number):
            self.end(sequence, error)

    def end_all_after_fault(self, error: BaseException) -> None:
        """Fail all requests without touching scheduler state that may be inconsistent."""
        for sequence in sorted(self.open, key=by_number):
            sequence.finalized = True
            self._close(sequence, error, self._clock())

    def tick(self) -> bool:
        """Launch, commit and finalize at most one step each; returns whether there was anything to do.

        Raises an EngineDiedError if steps keep failing.
        """
        ended, oldest, moved = self._ended, self.pipeline.oldest, self.transfers.finish(wait=False)
        moved |= self._commit_encodings(wait=False)
        batch, encoding = self._plan()
        self.transfers.start()
        beside = encoding is not None or (self._encodes_beside and bool(self.encodings.in_flight))
        step = self._launch(batch, beside=beside)
        self._launch(encoding)  # behind the step: meanwhile the device has work
        moved |= self._commit(step)
        self._finalize(step)
        busy = batch is not None or encoding is not None or oldest is not None
        moved |= not (busy or moved) and (self.transfers.finish(wait=True) or self._commit_encodings(wait=True))
        return busy or self._ended > ended or moved

    def _plan(self) -> tuple[ScheduledBatch | None, ScheduledBatch | None]:
        """Return what to launch, and the images to encode beside it."""
        notes: dict[str, float] = {}
        with self.tracer.host("plan", pages=notes):
            room = self._encodes_beside and not self.encodings.full
            decision = self.scheduler.plan(self._clock(), encodes=room)
            if self.tracer.enabled:
                notes |= self.scheduler.running.router.figures()
            self.wake_at = decision.wake_at
            for job in decision.dropped:
                self.runner.forget(job)
            for load in decision.loads:
                self.load_adapter(load)
            for ended in decision.ended:
                self._end_unlaunched(ended)
            # Both, before either is launched: one that ends in between keeps its pages.
            for batch in (decision.batch, decision.encoding):
                for row in batch.rows if batch is not None else ():
                    row.sequence.retain()
            return decision.batch, decision.encoding

    def _launch(self, batch: ScheduledBatch | None, *, beside: bool = False) -> Step | None:
        """Queue a forward pass, and sample it at once where no mask depends on steps in flight."""
        if batch is None:
            return None
        pipeline = self._pipeline_of(batch)
        step = pipeline.launch(batch)
        step.beside = beside
        try:
            with self.tracer.host("launch", step=step.number):
                self.runner.launch(step)
        except Exception as error:
            self._abandon(step, error)
            return None
        self._count_launch(step)
        if batch.kind not in ("encode", "decode"):
            self._free_images(batch)
        if batch.kind == "encode" or batch.beside:
            pipeline.finalize(step)  # nothing is sampled
            return step
        allowed = self.answers.read_allowed(step, ahead=self.pipeline.oldest is not step)
        if allowed is not None:
            self._sample(step, allowed)
        return step

    def _commit(self, launched: Step | None) -> bool:
        """Commit the oldest step if the next launch needs its slot, or there was nothing to launch.

        Returns whether one was committed.
        """
        oldest = self.pipeline.oldest
        if oldest is None or (launched is not None and not self.pipeline.full):
            return False
        self._commit_step(self.pipeline, oldest)
        return True

    def _commit_encodings(self, *, wait: bool) -> bool:
        """Commit encode steps beside the others that have ended, or wait for the oldest; returns whether one has."""
        moved = False
        while self._encodes_beside and (step := self.encodings.oldest) is not None:
            if not self.runner.has_ended(step) and (moved or not wait):
                break
            self._commit_step(self.encodings, step)
            moved = True
        return moved

    def _commit_step(self, pipeline: Pipeline, step: Step) -> None:
        pipeline.begin_commit(step)
        outcomes = self._collect(step)
        with self.tracer.host("commit", step=step.number):
            self.scheduler.commit(step, outcomes)
            if step.kind == "encode":
                self._commit_images(step, outcomes)
            else:
                self.answers.commit_rows(step, outcomes, pipeline.in_flight[-1])
        pipeline.end_commit(step)
        if step.failure is not None:
            self._fail(step, step.failure)

    def _finalize(self, step: Step | None) -> None:
        """Sample a launched step with masks that are current, unless that was done at launch."""
        if step is not None and step.state == "launched" and (allowed := self.answers.read_allowed(step)) is not None:
            self._sample(step, allowed)

    def _sample(self, step: Step, allowed: list[Allowed | None]) -> None:
        with self.tracer.host("finalize", step=step.number):
            self.pipeline.finalize(step)
            try:
                self.runner.finalize(step, allowed)
            except Exception as error:
                step.failure = error  # the forward pass is queued: the commit reports it

    def _collect(self, step: Step) -> Outcomes:
        try:
            with self.tracer.host("wait", step=step.number):
                outcomes = self.runner.collect(step)
        except Exception as error:
            step.failure = error
            return [step_error(step, error)] * max(1, len(step.rows))
        self._strikes, self._failed_images = 0, frozenset()
        return outcomes

    def _commit_images(self, step: Step, outcomes: Outcomes) -> None:
        """Share an encode step's time among its images; its failure ends their leaders, followers start again.

        Where memory was short and the step can be split, leaders start again as well. A prompt that is in flight reads
        features that are not there: it starts again when its step has committed.
        """
        error = next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)
        split = error is not None and may_be_split(step.plan, error)
        for group in step.plan.groups:
            leader = group.job.leader
            if not leader.finalized:
                leader.times.encode_s += step.device_s * group.count / step.plan.crops
                if error is not None and not split:
                    self.end(leader, error)
                elif error is not None and leader.row is not None:
                    leader.preempting = True
            if error is not None:
                self.runner.forget(group.job)

    def _free_images(self, batch: ScheduledBatch) -> None:
        """Free what was kept of images for prompts: all of these has been queued, and the prefix cache has the rest."""
        for row in batch.rows:
            if row.cut or not row.jobs:
                continue
            for job in row.jobs:
                self.runner.forget(job)
            for span in row.sequence.images:
                try:
                    span.image.drop_crops()
                except Exception as error:  # an image is a plug-in
                    self.end(row.sequence, error)

    def _abandon(self, step: Step, error: Exception) -> None:
        """Undo a launch that raised: its sequences fail, unless smaller launches may succeed."""
        batch = step.plan
        for row in batch.rows:
            row.sequence.release()
        self.scheduler.abandon(batch)
        self._pipeline_of(batch).abandon(step)
        failed = step_error(step, error)
        if not may_be_split(batch, error):
            leaders = (group.job.leader for group in batch.groups)
            for sequence in [*(row.sequence for row in batch.rows), *leaders]:
                self.end(sequence, failed)
                self.scheduler.release_if_unused(sequence)
        for job in {job for row in batch.rows for job in row.jobs} | {group.job for group in batch.groups}:
            self.runner.forget(job)
        self._fail(step, error)

    def _pipeline_of(self, batch: ScheduledBatch) -> Pipeline:
        return self.encodings if batch.beside else self.pipeline

    def _fail(self, step: Step, error: BaseException) -> None:
        """Count a failed step, an image once in a row, or free memory that was short. May raise EngineDiedError."""
        if is_shortage(error):
            for job in self.scheduler.reduce_memory(step.plan):
                self.runner.forget(job)
            self.runner.free_memory()
            return
        images = frozenset(group.job.key for group in step.plan.groups)
        if not images or images != self._failed_images:
            self._strikes += 1
        self._failed_images = images
        if self._strikes >= _STRIKES:
            reason = f"the engine has stopped: {_STRIKES} steps in a row have failed"
            raise EngineDiedError(f"{reason}, so the device counts as lost; call the model's restart()") from error

    def _end_unlaunched(self, ended: Ended) -> None:
        if ended.dropped is not None:
            name = f"dropped_{ended.dropped}"
            setattr(self.metrics, name, getattr(self.metrics, name) + 1)
        self.end(ended.sequence, ended.error)

    def _close(self, sequence: Sequence, error: BaseException | None, now: float) -> None:
        self.open.discard(sequence)
        self.open_realtime -= sequence.realtime
        self._ended += 1
        if error is None and sequence.answered:
            try:
                sequence.hand_out(now)
            except Exception as fault:  # a sink is a plug-in
                error = fault
        sequence.error = error
        sequence.times.finished = now
        self.metrics.count_end(sequence)
        try:
            sequence.sink.on_finish(sequence)
        except Exception:  # there is no other way to report it
            _logger.exception("request %d has ended, but its sink raised", sequence.number)

    def _count_launch(self, step: Step) -> None:
        metrics, kind = self.metrics, step.kind
        metrics.steps[kind] += 1
        if decoding := len(step.rows) if kind == "decode" else sum(row.pending for row in step.rows):
            metrics.batch_size.observe(decoding)
            metrics.padding_rows += step.padded - len(step.rows)
        if kind == "encode":
            stored = step.plan.stored_images
            metrics.crops_encoded += step.plan.crops - stored
            metrics.images_restored += stored
        elif kind != "decode":
            for row in step.rows:
                metrics.pages_restored += sum(place.stop - first for _, place, first in row.restored)
                if row.begins and row.sequence.images and not row.sequence.times.preemptions:
                    metrics.prefix_hits += not row.jobs
                    metrics.prefix_misses += bool(row.jobs)
        metrics.graph_replays += step.graphed
        metrics.steps_in_part += step.in_part
        metrics.eager_steps += not step.graphed


def no_adapters(load: AdapterLoad) -> None:
    raise AssertionError(f"adapter {load.adapter.name!r} was asked for, and this engine has no adapters")
