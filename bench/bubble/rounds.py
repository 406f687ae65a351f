"""Rounds: requests submitted together, prefilled together and decoded to their ends, with their measurements."""

import contextlib
import cProfile
import gc
import itertools
import math
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field

from bench.bubble.subjects import Subject
from photonlite.config import EngineConfig
from photonlite.engine.build import build
from photonlite.engine.core import EngineCore
from photonlite.engine.loop import EngineLoop
from photonlite.observe.trace import Span, Tracer
from photonlite.request import Request, Token
from photonlite.sequence import Sequence

Chosen = tuple[int, tuple[float, ...]]
"""Id and values of a token; its probabilities may differ in the last bits between batches of different sizes."""

_PATIENCE_S = 300.0
_GLANCE_S = 5e-5


@dataclass(frozen=True, slots=True)
class Round:
    """Measurements of one round; times in seconds of `time.perf_counter`.

    Attributes:
        tokens: Of each sequence, the end id included.
        submitted: When the requests were handed in.
        prefilled: When the last sequence's prefill was committed.
        first_end: When the first sequence ended: until then the batch was full.
        last_end: When the last one did.
        freed: When the engine had nothing in flight any more, zombies included.
        commits: When each token of the first request was committed while the batch was full.
        prefills: Prefill steps.
        steps: Decode steps.
        rows: Of decode steps, without padding.
        zombies: Of these, rows of sequences that had ended.
        spans: Trace spans of the round; empty without tracing.
    """

    tokens: list[list[Chosen]]
    submitted: float
    prefilled: float
    first_end: float
    last_end: float
    freed: float
    commits: list[float]
    prefills: int
    steps: int
    rows: int
    zombies: int
    spans: list[Span]

    @property
    def steady_spans(self) -> list[Span]:
        """Spans of steady decoding at full batch, complete ones only."""
        return [span for span in self.spans if span.start_s >= self.prefilled and span.end_s <= self.first_end]

    @property
    def period(self) -> float:
        """Mean seconds between commits at full batch; NaN with fewer than two of them."""
        steps = len(self.commits) - 1
        return (self.commits[-1] - self.commits[0]) / steps if steps > 0 else math.nan


@dataclass(eq=False, slots=True)
class Collector:
    """Receives the tokens of a sequence on the engine thread.

    Attributes:
        ended: Is released at the end.
        times: When each token was committed.
    """

    ended: threading.Semaphore
    times: list[float] = field(default_factory=list)

    def on_token(self, token: Token) -> None:
        """Record the time of a token."""
        self.times.append(time.perf_counter())

    def on_finish(self, sequence: Sequence) -> None:
        """Mark the request as finished."""
        self.ended.release()


class Rig:
    """An engine on its thread, run round by round.

    Args:
        subject: Whose model it runs.
        config: Of the engine.
        reason: Why sequences are to end; None for any reason.
        core: What ticks: the engine's own core, or a variant of it that an ablation measures.

    Attributes:
        depth: Steps in flight.
        loop: The engine's thread.
        graphs: What capturing took; None without graphs.
    """

    def __init__(
        self,
        subject: Subject,
        config: EngineConfig,
        *,
        reason: str | None = "stop",
        core: type[EngineCore] = EngineCore,
    ) -> None:
        parts = build(subject.model, subject.device, subject.dtype, config)
        built = parts.core
        self.depth = config.depth
        self.graphs = parts.graphs
        self._reason = reason
        self._core = core(built.scheduler, built.runner, config.depth, tracer=built.tracer)
        self._numbers = itertools.count()
        self.loop = EngineLoop(self._core)

    @property
    def tracer(self) -> Tracer:
        """The engine's tracer."""
        return self._core.tracer

    def run(self, requests: ListLike[Request], *, traced: bool) -> Round:
        """Run a round to its end. The garbage collector is off: its pauses are longer than a step.

        Args:
            requests: Handed in before the engine plans again, so that one launch prefills all that it has room for.
            traced: Whether to record spans; it takes the host some time in every tick.

        Raises:
            RuntimeError: The engine died, a request failed or took too long, or the trace lost spans.
        """
        ended = threading.Semaphore(0)
        sinks = [Collector(ended) for _ in requests]
        sequences = self._sequences(requests, sinks)
        self._prepare(traced)
        before = self._counts()
        with _resting_collector():
            submitted = time.perf_counter()
            self.loop.post(lambda: self._submit(sequences))
            for _ in sequences:
                self._await(ended)
            while not self._core.idle:
                time.sleep(_GLANCE_S)
            freed = time.perf_counter()
        self._check(sequences)
        if self.tracer.dropped:
            raise RuntimeError(f"the trace of a round lost {self.tracer.dropped} spans")
        prefills, steps, rows, zombies = (int(new - old) for new, old in zip(self._counts(), before, strict=True))
        prefilled = max(sequence.times.first_token for sequence in sequences)
        first_end = min(sequence.times.finished for sequence in sequences)
        return Round(
            tokens=[[(token.id, token.values) for token in sequence.tokens] for sequence in sequences],
            submitted=submitted,
            prefilled=prefilled,
            first_end=first_end,
            last_end=max(sequence.times.finished for sequence in sequences),
            freed=freed,
            commits=[at for at in sinks[0].times if prefilled <= at <= first_end],
            prefills=prefills,
            steps=steps,
            rows=rows,
            zombies=zombies,
            spans=self.tracer.spans() if traced else [],
        )

    def profile(self, requests: ListLike[Request], recorder: cProfile.Profile) -> int:
        """Run a round on the engine thread under a profiler, while no other thread runs any Python; returns its steps.

        Raises:
            RuntimeError: A request failed.
        """
        ended, over = threading.Semaphore(0), threading.Semaphore(0)
        sequences = self._sequences(requests, [Collector(ended) for _ in requests])
        steps = self._core.metrics.steps["decode"]

        def drive() -> None:
            self._submit(sequences)
            while not self._core.idle:
                self._core.tick()

        def note() -> None:
            try:
                recorder.runcall(drive)
            finally:
                over.release()

        self._prepare(traced=False)
        self.loop.post(note)
        self._await(over)
        self._check(sequences)
        return self._core.metrics.steps["decode"] - steps

    def close(self) -> None:
        """End the thread and free the device's memory."""
        self.loop.close(drain=False)

    def _counts(self) -> tuple[float, float, float, float]:
        metrics = self._core.metrics
        return metrics.steps["prefill"], metrics.steps["decode"], metrics.batch_size.sum, metrics.zombie_rows

    def _sequences(self, requests: ListLike[Request], sinks: ListLike[Collector]) -> list[Sequence]:
        sequences = [
            Sequence(next(self._numbers), request, sink, prefix_len=1)
            for request, sink in zip(requests, sinks, strict=True)
        ]
        for sequence in sequences:
            self._core.scheduler.prepare(sequence)
        return sequences

    def _prepare(self, traced: bool) -> None:
        self.tracer.clear()
        self.tracer.enabled = traced

    def _submit(self, sequences: ListLike[Sequence]) -> None:
        now = time.perf_counter()
        for sequence in sequences:
            sequence.times.submitted = now
            self._core.submit(sequence)

    def _await(self, ended: threading.Semaphore) -> None:
        deadline = time.perf_counter() + _PATIENCE_S
        while not ended.acquire(timeout=1.0):
            if not self.loop.alive:
                raise RuntimeError("the engine has died")
            if time.perf_counter() > deadline:
                raise RuntimeError(f"a round took more than {_PATIENCE_S:.0f} s")

    def _check(self, sequences: ListLike[Sequence]) -> None:
        for sequence in sequences:
            if sequence.error is not None:
                raise RuntimeError(f"request {sequence.number} failed") from sequence.error
            reason = sequence.request.grammar.finish_reason
            if self._reason is not None and reason != self._reason:
                raise RuntimeError(f"request {sequence.number} was to end by {self._reason!r}, not by {reason!r}")


@contextlib.contextmanager
def _resting_collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
