"""The engine's heart: one tick after another, on one thread, on any device. No torch.

```
tick      launch t+1  ──  commit t  ──  finalize t+1
          │               │             └ masks of grammars that have consumed t's tokens
          │               └ the only wait; tokens go out, sequences finish, references drop
          └ needs no mask: the device never waits for the host
```

A sequence that finishes while step t+1 carries it is a zombie: its result is out, its tokens are dropped, its pages and
row come free when the last step that carries it has committed. Nothing on the device is ever cancelled.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from photonlite.batch import BatchItem, Executor, SamplingParams, ScheduledBatch, Step
from photonlite.engine.accounting import Accountant
from photonlite.engine.faults import is_shortage, out_of_memory, without_frames
from photonlite.engine.requests import OpenRequests
from photonlite.errors import EngineDiedError, EngineError, RequestCancelledError, StepError
from photonlite.observe.metrics import EngineMetrics
from photonlite.observe.trace import Tracer
from photonlite.request import Allowed, Token
from photonlite.runner.pipeline import Pipeline
from photonlite.scheduler.scheduler import Scheduler
from photonlite.sequence import Sequence

_STRIKES = 3
"""Steps that may fail in a row before the device is taken for lost; those for which memory is short do not count."""

_logger = logging.getLogger("photonlite")


class EngineCore:
    """Scheduler, pipeline and runner, driven tick by tick.

    Args:
        scheduler: Decides what to launch.
        runner: Does the work.
        depth: Steps in flight: 1 or 2.
        metrics: Counts.
        tracer: Takes the spans of host phases.
        clock: Tells deadlines and the times of sequences, in seconds.
    """

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
        self.pipeline = Pipeline(depth)
        self.metrics = metrics or EngineMetrics()
        self._accounts = Accountant(self.metrics)
        self.tracer = tracer or Tracer(enabled=False)
        self._clock = clock
        self.requests = OpenRequests(scheduler, self._accounts, clock)
        self._strikes = 0
        self._struck: frozenset[str] = frozenset()
        self._progress = False

    @property
    def open(self) -> set[Sequence]:
        """Requests that have not ended."""
        return self.requests.open

    @property
    def idle(self) -> bool:
        """Whether nothing is open and nothing is in flight."""
        return not self.requests.open and not self.pipeline.in_flight

    @property
    def look_again_at(self) -> float | None:
        """When time alone may give something to do; None where only a call can."""
        return self.requests.look_again_at

    def prepare(self, sequence: Sequence) -> None:
        """Check a request and hash its prompt. Changes nothing of the engine: for the thread that asks.

        Raises:
            CapacityError: It could not run even alone.
            ValueError: It holds what a step could not carry.
        """
        self.scheduler.prepare(sequence)

    def submit(self, sequence: Sequence) -> None:
        """Take a prepared request on."""
        self.scheduler.submit(sequence)
        self.requests.add(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Give a request up; one that has ended stays as it is."""
        self.requests.end(sequence, RequestCancelledError("the request was cancelled"))

    def fail_all(self, error: BaseException) -> None:
        """End every open request with an error."""
        self.requests.end_all(error)

    def bury(self, error: BaseException) -> None:
        """The same after a fault that may have left the books wrong: nobody looks at them any more."""
        self.requests.bury(error)

    def tick(self) -> bool:
        """Launch, commit and finalize at most one step each; returns whether there was anything to do.

        Raises:
            EngineDiedError: Steps keep failing.
        """
        self._progress, ended = False, self.requests.ended
        self.requests.expire()
        step = self._launch()
        if step is not None and step.state == "launched" and self._knows_masks(step):
            self._finalize(step)
        oldest = self.pipeline.oldest
        if oldest is not None and (step is None or self.pipeline.full):
            self._commit(oldest)
        if step is not None and step.state == "launched":
            self._finalize(step)
        return self._progress or self.requests.ended > ended or bool(self.pipeline.in_flight)

    def _launch(self) -> Step | None:
        """Launch the next plan, if there is one and a free slot."""
        if self.pipeline.full:
            return None
        with self._phase("plan"):
            # First, so that no plan holds a job that is being forgotten, nor lacks the place of one.
            for job in self.scheduler.drop_idle_jobs():
                self.runner.forget(job)
            self.scheduler.realtime_near = self.requests.realtime_near()
            self.scheduler.realtime_soon = self.requests.realtime_soon()
            plan = self.scheduler.plan()
            self._sweep()
        if plan is None:
            return None
        self._progress = True
        if plan.kind != "decode":
            self.requests.rhythm.launched(realtime=plan.realtime)
        step = self.pipeline.launch(plan)
        for row in plan.rows:
            row.sequence.retain()
            row.sequence.times.admitted = row.sequence.times.admitted or self._clock()
        try:
            with self._phase("launch", step):
                self.runner.launch(step)
        except Exception as error:
            self._abandon(step, error)
            return None
        self._let_go_of_images(plan)
        if step.kind == "encode":
            self.pipeline.finalize(step)  # nothing is sampled
        self._accounts.launched(step)
        return step

    def _let_go_of_images(self, plan: ScheduledBatch) -> None:
        """Forget what was kept of images for this launch: it has been queued, and the prefix cache has the rest."""
        for row in plan.rows:
            if row.job is not None:
                self.runner.forget(row.job)
                if row.sequence.image is not None:
                    try:
                        row.sequence.image.drop_crops()
                    except Exception as error:  # an image is a plug-in
                        self.requests.end(row.sequence, error)

    def _finalize(self, step: Step) -> None:
        """Queue heads and sampling with masks that are current."""
        with self._phase("finalize", step):
            choices = [self._choice(row) for row in step.rows]
            self.pipeline.finalize(step)
            try:
                self.runner.finalize(step, choices)
            except Exception as error:
                step.failure = error  # the forward pass is queued: the commit reports it

    def _commit(self, step: Step) -> None:
        """Wait for the oldest step, hand out its tokens, let go of what it held."""
        self._progress = True
        self.pipeline.begin_commit(step)
        outcomes: list[Token | Exception | None]
        try:
            with self._phase("wait", step):
                outcomes = self.runner.collect(step)
            self._strikes, self._struck = 0, frozenset()
        except Exception as error:
            step.failure = error
            outcomes = [self._step_error(step, error)] * max(1, len(step.rows))
        with self._phase("commit", step):
            self.scheduler.commit(step, [isinstance(outcome, Exception) for outcome in outcomes] or [False])
            if step.kind == "encode":
                self._book_encoding(step, outcomes)
            for row, outcome in zip(step.rows, outcomes, strict=step.kind != "encode"):
                row.sequence.release()
                if not _starts_again(row):
                    self._deliver(row.sequence, step, outcome)
                self.scheduler.settle(row.sequence)
        self.pipeline.end_commit(step)
        if step.failure is not None:
            self._strike(step, step.failure)

    def _deliver(self, sequence: Sequence, step: Step, outcome: Token | Exception | None) -> None:
        """Give a sequence what a step made for it; a zombie gets nothing any more."""
        if sequence.finalized:
            self._accounts.zombie()
            return
        if step.kind == "prefill":
            sequence.times.prefill_s += step.device_s
        if isinstance(outcome, Exception):
            self.requests.end(sequence, outcome)
        elif outcome is None:
            self.requests.end(sequence)
        else:
            self.requests.accept(sequence, outcome)

    def _choice(self, row: BatchItem) -> SamplingParams | None:
        """Say how a row's token is chosen; None for a row whose token nobody wants."""
        sequence = row.sequence
        if sequence.finalized or row.index is None:
            return None
        try:
            allowed = self._allowed(sequence, row.index)
        except Exception as error:  # a grammar is a plug-in
            self.requests.end(sequence, error)
            return None
        return SamplingParams(allowed, sequence.temperature, sequence.top_p, sequence.seed, row.index)

    def _allowed(self, sequence: Sequence, index: int) -> Allowed:
        grammar = sequence.grammar
        outstanding = index - len(sequence.tokens)
        allowed = grammar.allowed if outstanding == 0 else grammar.ahead if outstanding == 1 else None
        if allowed is None:
            raise AssertionError(
                f"the mask of token {index} of sequence {sequence.number} needs tokens that are not committed: "
                f"{len(sequence.tokens)} are"
            )
        if not isinstance(allowed, Allowed):
            raise TypeError(f"a grammar says {type(allowed).__name__} where it must say what is allowed")
        return allowed

    def _knows_masks(self, step: Step) -> bool:
        """Tell whether every row's mask is known now, before earlier steps have committed."""
        return all(
            row.index is None
            or row.sequence.finalized
            or row.index == len(row.sequence.tokens)
            or (row.index == len(row.sequence.tokens) + 1 and _sees_ahead(row.sequence))
            for row in step.rows
        )

    def _abandon(self, step: Step, error: Exception) -> None:
        """Take back a launch that raised; its sequences fail, everybody else goes on."""
        plan = step.plan
        for row in plan.rows:
            row.sequence.release()
        self.scheduler.abandon(plan)
        self.pipeline.abandon(step)
        failed = self._step_error(step, error)
        for sequence in () if _may_be_split(plan, error) else _concerned(plan):
            self.requests.end(sequence, failed)
            self.scheduler.settle(sequence)
        for job in {row.job for row in plan.rows if row.job} | {group.job for group in plan.groups}:
            self.runner.forget(job)
        self._strike(step, error)

    def _book_encoding(self, step: Step, outcomes: list[Token | Exception | None]) -> None:
        """Share an encode step's time among its images; its failure ends those who led, followers start again.

        Where memory was short and the step can be split, those who led start again as well. A prompt that is in flight
        reads features that are not there: it starts again when its step has committed.
        """
        error = next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)
        spared = error is not None and _may_be_split(step.plan, error)
        crops = sum(group.count for group in step.plan.groups)
        for group in step.plan.groups:
            leader = group.job.leader
            if leader is not None and not leader.finalized:
                leader.times.encode_s += step.device_s * group.count / crops
                if error is not None and not spared:
                    self.requests.end(leader, error)
                elif error is not None and leader.row is not None:
                    leader.preempting = True
            if error is not None:
                self.runner.forget(group.job)

    def _sweep(self) -> None:
        """End sequences that need no launch."""
        scheduler = self.scheduler
        while scheduler.unusable:
            unusable = scheduler.unusable.pop()
            self.requests.end(unusable.sequence, unusable.error)
        while scheduler.satisfied:
            self.requests.end(scheduler.satisfied.pop())

    def _strike(self, step: Step, error: BaseException) -> None:
        """Count a failure towards the engine's death; an image that fails again and again counts once.

        Where memory is short none is counted: memory is freed, and the next launches take less.
        """
        if is_shortage(error):
            for job in self.scheduler.spare_memory(step.plan):
                self.runner.forget(job)
            self.runner.free_memory()
            return
        images = frozenset(group.job.key for group in step.plan.groups)
        if not images or images != self._struck:
            self._strikes += 1
        self._struck = images
        if self._strikes >= _STRIKES:
            reason = f"the engine has stopped: {_STRIKES} steps in a row have failed"
            raise EngineDiedError(f"{reason}, so the device counts as lost; load the model again") from error

    def _step_error(self, step: Step, cause: BaseException) -> EngineError:
        """Log why a step failed, and say it to its requests without the words of what lies below."""
        size = f"{len(step.rows)} sequences" if step.rows else f"{len(step.plan.groups)} images"
        without_frames(cause)  # its notes have the traceback, and whoever keeps lines of a log keeps no frames
        short = is_shortage(cause)
        level = logging.WARNING if short else logging.ERROR
        why = "memory ran out for" if short else "the device failed"
        _logger.log(level, "%s a %s step of %s", why, step.kind, size, exc_info=cause)
        if short:
            return out_of_memory(cause)
        error = StepError(f"the device failed a {step.kind} step that carried this request: try again")
        error.__cause__ = cause
        return error

    def _phase(self, name: str, step: Step | None = None) -> AbstractContextManager[object]:
        if not self.tracer.enabled:
            return nullcontext()
        return self.tracer.host(name, **({} if step is None else {"step": step.number}))


def _may_be_split(plan: ScheduledBatch, error: BaseException) -> bool:
    """Whether smaller launches can do what a failed one could not: memory was short for several crops or prompts."""
    several = len(plan.rows) > 1 or sum(group.count for group in plan.groups) > 1
    return plan.kind != "decode" and several and is_shortage(error)


def _starts_again(row: BatchItem) -> bool:
    """Whether a prompt read an image for which memory was short, so that its token is void."""
    return row.job is not None and row.job.failed and row.sequence.preempting


def _sees_ahead(sequence: Sequence) -> bool:
    try:
        return sequence.grammar.ahead is not None
    except Exception:  # whatever is wrong with the grammar comes out where its mask is needed
        return False


def _concerned(plan: ScheduledBatch) -> list[Sequence]:
    """Give the sequences that fail with a launch: those it carries, and those it encodes images for."""
    leaders = [group.job.leader for group in plan.groups if group.job.leader is not None]
    return [row.sequence for row in plan.rows] + leaders
