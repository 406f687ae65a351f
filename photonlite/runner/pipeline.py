"""The two-slot pipeline: which steps are in flight, and what may happen to them next. No torch.

```
              tick n                        tick n+1
 host    ┌ launch B ─ commit A ─ finalize B ┬ launch A ─ commit B ─ finalize A ┬
 compute │ ... A ┐┌──── forward B ───────┐┌ sample B ┐┌──── forward A ──────┐┌ sample A ┐
 slot 0  │ A: pending  committing  free     │ C: launched              pending
 slot 1  │ B: launched            pending   │ B: pending  committing  free

 free ── launch ──> launched ── finalize ──> pending ── begin_commit ──> committing ── end_commit ──> free
```

Steps are committed in the order in which they were launched, whatever their kind. With `depth=1` the same code runs one
step at a time: nothing is launched before the step in flight has been committed.
"""

from collections import deque

from photonlite.batch import ScheduledBatch, State, Step


class Pipeline:
    """The slots and the steps in them; a depth of 1 is blocking, 2 is pipelined."""

    def __init__(self, depth: int) -> None:
        if depth not in (1, 2):
            raise ValueError(f"a pipeline has a depth of 1 or 2, not {depth}")
        self.depth = depth
        self._free = deque(range(depth))
        self._in_flight: deque[Step] = deque()
        self._launched = 0

    @property
    def in_flight(self) -> tuple[Step, ...]:
        """Steps launched and not yet committed, oldest first."""
        return tuple(self._in_flight)

    @property
    def full(self) -> bool:
        return not self._free

    @property
    def oldest(self) -> Step | None:
        return self._in_flight[0] if self._in_flight else None

    def launch(self, plan: ScheduledBatch) -> Step:
        if not self._free:
            raise AssertionError("a launch needs a free slot, and all are taken")
        if self._in_flight and self._in_flight[-1].state == "launched":
            raise AssertionError(f"step {self._in_flight[-1].number} must be finalized before the next launch")
        step = Step(self._launched, plan, self._free.popleft())
        self._launched += 1
        self._in_flight.append(step)
        return step

    def abandon(self, step: Step) -> None:
        """Undo the newest launch, which raised."""
        if not self._in_flight or self._in_flight[-1] is not step or step.state not in ("launched", "pending"):
            raise AssertionError(f"step {step.number} is {step.state} and not the newest: it cannot be taken back")
        self._in_flight.pop()
        self._free.appendleft(step.slot)
        step.state = "free"

    def finalize(self, step: Step) -> None:
        """Mark heads and sampling as queued: every earlier step is committed, or no mask depends on it."""
        _advance(step, "launched", "pending", "only a launched step is finalized")

    def begin_commit(self, step: Step) -> None:
        if self.oldest is not step:
            raise AssertionError(f"step {step.number} is not the oldest in flight: commits keep the order of launches")
        _advance(step, "pending", "committing", "only a finalized step is committed")

    def end_commit(self, step: Step) -> None:
        _advance(step, "committing", "free", "its commit has not begun")
        self._in_flight.popleft()
        self._free.append(step.slot)


def _advance(step: Step, expected: State, state: State, objection: str) -> None:
    if step.state != expected:
        raise AssertionError(f"step {step.number} is {step.state}: {objection}")
    step.state = state
