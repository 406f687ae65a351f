"""What the engine counts: steps, tokens and requests turned into metrics."""

from photonlite.batch import Step
from photonlite.errors import RequestCancelledError
from photonlite.observe.metrics import EngineMetrics
from photonlite.scheduler.fifo import DropCause
from photonlite.sequence import Sequence


class Accountant:
    """Counts in :class:`EngineMetrics` what happens; tokens are collected and counted once a step."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self.metrics = metrics
        self._tokens = 0  # of this step, as are
        self._gaps: dict[float, int] = {}  # seconds since the tokens before: most had theirs in the same step

    def count_submitted(self) -> None:
        self.metrics.requests_submitted += 1

    def count_launch(self, step: Step) -> None:
        """Count a step by kind, size and how it ran."""
        metrics = self.metrics
        metrics.steps[step.kind] += 1
        if step.kind == "decode":
            metrics.batch_size.observe(len(step.rows))
            metrics.padding_rows += step.padded - len(step.rows)
        elif step.kind == "encode":
            metrics.crops_encoded += step.plan.crops
        else:
            for row in step.rows:
                if row.sequence.image is not None and not row.sequence.times.preemptions:
                    metrics.prefix_hits += row.start > 0
                    metrics.prefix_misses += row.start == 0
        if step.graphed:
            metrics.graph_replays += 1
        else:
            metrics.eager_steps += 1

    def add_token(self, last: float, now: float) -> None:
        """Collect a committed token, given when the one before it was committed; 0 for the first."""
        self._tokens += 1
        if last:
            gap = now - last
            self._gaps[gap] = self._gaps.get(gap, 0) + 1

    def count_commit(self, zombies: int) -> None:
        """Count the collected tokens, and rows that carried a finished sequence."""
        metrics, gaps = self.metrics, self._gaps
        metrics.zombie_rows += zombies
        metrics.tokens += self._tokens
        for gap, count in gaps.items():
            metrics.token_s.observe(gap, count)
        gaps.clear()
        self._tokens = 0

    def count_dropped(self, cause: DropCause) -> None:
        """Count a request whose deadline ended it."""
        name = f"dropped_{cause}"
        setattr(self.metrics, name, getattr(self.metrics, name) + 1)

    def count_ended(self, sequence: Sequence) -> None:
        """Count a request that has ended, and where its time went if it was answered."""
        metrics, times = self.metrics, sequence.times
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
