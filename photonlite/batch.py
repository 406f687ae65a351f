"""The contract between scheduler, engine and runner: plans and steps, in plain values. No torch.

```
scheduler.plan ──> ScheduledBatch(kind, rows) ──launch──> Step(plan, slot) ──collect──> a Token or an error for each row
                        │
                        └─ BatchItem(sequence, start, count): positions [start, start + count) get their keys and values
```
"""

from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field
from typing import Literal, Protocol

from photonlite.request import Allowed, Token
from photonlite.sequence import CutImage, Sequence, UncutImage

Kind = Literal["encode", "prefill", "decode"]


@dataclass(eq=False, slots=True)
class EncodeJob:
    """An image on its way through the vision encoder, crop group by crop group.

    Attributes:
        number: Unique; names its features on the device.
        key: Of the image.
        crops: Of the image, or what the device makes them of.
        leader: The sequence it is encoded for; others may wait for it too.
        launched: Crops that launched steps have taken.
        failed: A step failed; what it has computed is worth nothing.
    """

    number: int
    key: str
    crops: CutImage | UncutImage
    leader: Sequence | None = None
    launched: int = 0
    failed: bool = False

    @property
    def total(self) -> int:
        """Crops of the image."""
        return self.crops.count

    @property
    def image_bytes(self) -> int:
        """Bytes that its first launch copies to the device, to make all crops there; 0 where the host has cut them."""
        return self.crops.packed.nbytes if isinstance(self.crops, UncutImage) else 0

    @property
    def encoded(self) -> bool:
        """Whether launched steps encode every crop, so that later work on the compute stream may use the features."""
        return self.launched == self.total and not self.failed


@dataclass(frozen=True, eq=False, slots=True)
class CropGroup:
    """Crops ``[first, first + count)`` of a job, in one encoder batch with others."""

    job: EncodeJob
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class PageCopy:
    """A page to copy on the compute stream, all positions of it."""

    source: int
    target: int


@dataclass(frozen=True, eq=False, slots=True)
class BatchItem:
    """One sequence in a launch.

    Attributes:
        sequence: Whose.
        start: First position that gets keys and values.
        count: How many do; 1 when decoding.
        index: Which token of the sequence is sampled; None where none is.
        job: Where the image's embeddings come from, when `start` is 0 and there is an image.
    """

    sequence: Sequence
    start: int
    count: int
    index: int | None
    job: EncodeJob | None = None


@dataclass(frozen=True, eq=False, slots=True)
class ScheduledBatch:
    """What the next launch does.

    Attributes:
        kind: Which path it takes.
        rows: Sequences of a prefill or decode launch, in the order of the batch.
        groups: Crops of an encode launch.
        copies: Pages to copy before the forward pass.
        saves: Pages to copy after it.
    """

    kind: Kind
    rows: tuple[BatchItem, ...] = ()
    groups: tuple[CropGroup, ...] = ()
    copies: tuple[PageCopy, ...] = ()
    saves: tuple[PageCopy, ...] = ()

    @property
    def realtime(self) -> bool:
        """Whether an encode or prefill launch is for real-time requests: none is for both classes."""
        leaders = [group.job.leader for group in self.groups] + [row.sequence for row in self.rows]
        return any(leader is not None and leader.realtime for leader in leaders)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one row's token is chosen.

    Attributes:
        allowed: What may stand there.
        temperature: 0 is greedy.
        top_p: Probability mass to consider.
        seed: Of the sequence.
        index: Which token of the sequence: seed and index give the random numbers, whatever the batch.
    """

    allowed: Allowed
    temperature: float
    top_p: float
    seed: int
    index: int


State = Literal["launched", "pending", "committing", "free"]


@dataclass(eq=False, slots=True)
class Step:
    """A launch, from its forward pass to its commit.

    Attributes:
        number: In order of launch.
        plan: What it does.
        slot: Whose buffers it uses.
        state: Launched (the forward pass is queued), pending (sampled, on its way back), committing, free (committed).
        failure: What went wrong with it as a whole, on the device or before.
        faults: What was wrong with single rows before they reached the device, by index.
        scored: How many probabilities come back for single rows, by index; most want none.
        device_s: Seconds that its forward pass took on the device; known once collected.
        graphed: Whether it ran as a CUDA graph.
        padded: Rows of the batch that ran, the unused ones included.
    """

    number: int
    plan: ScheduledBatch
    slot: int
    state: State = "launched"
    failure: BaseException | None = None
    faults: dict[int, Exception] = field(default_factory=dict)
    scored: dict[int, int] = field(default_factory=dict)
    device_s: float = 0.0
    graphed: bool = False
    padded: int = 0

    @property
    def kind(self) -> Kind:
        """Of the plan."""
        return self.plan.kind

    @property
    def rows(self) -> tuple[BatchItem, ...]:
        """Of the plan."""
        return self.plan.rows


class Executor(Protocol):
    """Does the work of steps on a device; none of its methods waits for the device but `collect` and `close`."""

    def launch(self, step: Step) -> None:
        """Queue copies and the forward pass; raises where the launch itself fails."""
        ...

    def finalize(self, step: Step, choices: ListLike[SamplingParams | None]) -> None:
        """Queue heads, masks, sampling and the copy of the results; None for rows whose token nobody wants."""
        ...

    def collect(self, step: Step) -> list[Token | Exception | None]:
        """Wait for the results: a token for each row, why it has none, or None where none was sampled.

        Raises:
            Exception: The step failed as a whole.
        """
        ...

    def forget(self, job: EncodeJob) -> None:
        """Let go of an image's features once the work queued so far is done."""
        ...

    def free_memory(self) -> None:
        """Give memory back that is kept for later work only."""
        ...

    def close(self) -> None:
        """Wait for all work and let go of the device's memory."""
        ...
