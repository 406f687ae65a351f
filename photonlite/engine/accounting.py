"""What the engine counts: steps, tokens and requests turned into metrics."""

from typing import Literal

from photonlite.batch import Step
from photonlite.errors import RequestCancelledError
from photonlite.observe.metrics import EngineMetrics
from photonlite.sequence import Sequence

Cause = Literal["waiting", "hopeless", "running"]


class Accountant:
    """Books what happens in :class:`EngineMetrics`.

    Args:
        metrics: Where.
    """

    def __init__(self, metrics: EngineMetrics) -> None:
        self.metrics = metrics
        self._last_token: dict[Sequence, float] = {}

    def submitted(self) -> None:
        """Count a request that was taken in."""
        self.metrics.requests_submitted += 1

    def launched(self, step: Step) -> None:
        """Count a step by kind, size and how it ran."""
        metrics = self.metrics
        metrics.steps[step.kind] += 1
        if step.kind == "decode":
            metrics.batch_size.observe(len(step.rows))
            metrics.padding_rows += step.padded - len(step.rows)
        elif step.kind == "encode":
            metrics.crops_encoded += sum(group.count for group in step.plan.groups)
        else:
            for row in step.rows:
                if row.sequence.image is not None and not row.sequence.times.preemptions:
                    metrics.prefix_hits += row.start > 0
                    metrics.prefix_misses += row.start == 0
        if step.graphed:
            metrics.graph_replays += 1
        else:
            metrics.eager_steps += 1

    def dropped(self, cause: Cause) -> None:
        """Count a request whose deadline ended it, by where that met it."""
        metrics = self.metrics
        if cause == "waiting":
            metrics.dropped_waiting += 1
        elif cause == "hopeless":
            metrics.dropped_hopeless += 1
        else:
            metrics.dropped_running += 1

    def zombie(self) -> None:
        """Count a row that carried a finished sequence."""
        self.metrics.zombie_rows += 1

    def token(self, sequence: Sequence, now: float) -> None:
        """Count a committed token."""
        self.metrics.tokens += 1
        last = self._last_token.get(sequence)
        if last is not None:
            self.metrics.token_s.observe(now - last)
        self._last_token[sequence] = now

    def ended(self, sequence: Sequence) -> None:
        """Count a request that has ended, and where its time went if it was answered."""
        metrics, times = self.metrics, sequence.times
        self._last_token.pop(sequence, None)
        metrics.preemptions += times.preemptions
        if isinstance(sequence.error, RequestCancelledError):
            metrics.requests_cancelled += 1
            return
        if sequence.error is not None:
            metrics.requests_failed += 1
            return
        metrics.requests_finished += 1
        if times.admitted:
            metrics.queue_s.observe(times.queue_s)
        if sequence.image is not None:
            metrics.preprocess_s.observe(times.preprocess_s)
            if times.encode_s:
                metrics.encode_s.observe(times.encode_s)
        if sequence.tokens:
            metrics.prefill_s.observe(times.prefill_s)
            metrics.time_to_first_token_s.observe(max(0.0, times.first_token - times.submitted))
            metrics.decode_s.observe(max(0.0, times.finished - times.first_token))
