"""What the scheduler decides in a tick."""

from typing import Literal, NamedTuple

from photonlite.batch import EncodeJob, ScheduledBatch
from photonlite.sequence import Sequence

DropCause = Literal["waiting", "hopeless", "running"]
"""Where a deadline met a request: before its prompt ran, before it could be in time at all, while it was answered."""


class Ended(NamedTuple):
    """A sequence that ends without a launch: with an error, or answered by what is cached."""

    sequence: Sequence
    error: BaseException | None = None
    dropped: DropCause | None = None


class Decision(NamedTuple):
    """What to do in a tick."""

    batch: ScheduledBatch | None  # to launch
    ended: tuple[Ended, ...] = ()  # sequences that have left the scheduler's queues
    dropped: tuple[EncodeJob, ...] = ()  # images that no request waits for: the device frees their features
    wake_at: float | None = None  # when time alone may change the decision; None where only an event can
