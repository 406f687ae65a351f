"""The contract between scheduler, engine and runner: batches and steps, in plain values. No torch.

```
scheduler.plan ──> ScheduledBatch(kind, rows) ──launch──> Step(plan, slot) ──collect──> a Token or an error for each row
                        │
                        └─ BatchItem(sequence, start, count): positions [start, start + count) get their keys and values
```
"""

from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from photonlite.image_inputs import ImageInput, PatchImage, PrefixPages, StoredImage, StoredPages, UncutImage
from photonlite.request import Allowed, Token
from photonlite.sequence import Sequence

Kind = Literal["encode", "prefill", "decode", "run", "mixed"]
"""What a launch computes: crops; prompts; one position of each row; tokens that are forced, or assumed to be forced
behind the one in flight; one position of some rows, and prompts or parts of them beside these."""


@dataclass(eq=False, slots=True)
class EncodeJob:
    """An image on its way through the vision encoder, crop group by crop group."""

    number: int  # unique; names its features on the device
    key: str
    crops: ImageInput
    leader: Sequence  # it is encoded for; others may wait for it too
    launched: int = 0  # crops that launched steps have taken
    beside: bool = False  # they run on the encoder's stream, all of them or none
    readable: int = 0  # crops whose features later work on the compute stream may read
    failed: bool = False  # a step failed: what it has computed is void
    pages: StoredPages | None = None  # that are copied to the device with a stored image

    @property
    def total(self) -> int:
        return self.crops.count

    @property
    def is_whole(self) -> bool:
        """Whether one launch must take all of it."""
        return isinstance(self.crops, PatchImage)

    @property
    def is_stored(self) -> bool:
        """Whether its embeddings are copied to the device, and nothing is encoded."""
        return isinstance(self.crops, StoredImage)

    @property
    def image_bytes(self) -> int:
        """Bytes that its first launch copies to the device, to make all crops there; 0 where the host has cut them."""
        return self.crops.packed.nbytes if isinstance(self.crops, UncutImage) else 0

    @property
    def encoded(self) -> bool:
        """Whether later work on the compute stream may use the features of every crop."""
        return self.readable == self.total and not self.failed


@dataclass(frozen=True, eq=False, slots=True)
class CropGroup:
    """Crops ``[first, first + count)`` of a job, in one encoder batch with others."""

    job: EncodeJob
    first: int
    count: int
    adapter_slot: int = 0  # of the adapter that it is encoded with


class PageCopy(NamedTuple):
    """A page to copy on the compute stream, all positions of it."""

    source: int
    target: int


class RestoredPages(NamedTuple):
    """Stored pages that are written to those of a sequence before its prompt begins behind them."""

    job: EncodeJob  # that they came with
    place: PrefixPages
    first: int  # of the pages that are written: those before it are shared


class BatchItem(NamedTuple):
    """One sequence in a launch."""

    sequence: Sequence
    start: int  # first position that gets keys and values
    count: int  # type: ignore[assignment]  # how many do: 1 when decoding; a field, no method
    index: int | None  # type: ignore[assignment]  # which token of the sequence is sampled; None where none is
    jobs: tuple[EncodeJob, ...] = ()  # have the embeddings of its prompt's images, and stored pages
    begins: bool = False  # its sequence has just got its row and pages
    cut: bool = False  # leaves known positions to later launches, so that nothing is sampled
    pending: bool = False  # decodes: its input, or the first one, is in the pending table
    restored: tuple[RestoredPages, ...] = ()
    assumed: tuple[int, ...] = ()  # the inputs behind a pending one; the row is dropped where others must follow

    @property
    def is_prompt(self) -> bool:
        """Whether it computes positions of a prompt, which runs are not."""
        return not self.pending and self.start < self.sequence.prompt_length

    @property
    def is_void(self) -> bool:
        """Whether a prompt read an image for which memory was short, so that its token does not count."""
        return self.sequence.preempting and any(job.failed for job in self.jobs)


# Not frozen: thousands are made a second, and frozen ones take five times as long to make.
@dataclass(eq=False, slots=True)
class ScheduledBatch:
    """What the next launch does; never changed once made."""

    kind: Kind
    rows: tuple[BatchItem, ...] = ()  # of any launch but an encode one, in the order of the batch; pending ones first
    groups: tuple[CropGroup, ...] = ()  # of an encode launch
    copies: tuple[PageCopy, ...] = ()  # before the forward pass
    saves: tuple[PageCopy, ...] = ()  # after it
    beside: bool = False  # on the encoder's stream: images, or prompts but for each row's last position, to be decoded
    in_part: bool = False  # of an encode launch: on the encoder's own SMs alone

    @property
    def crops(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def stored_images(self) -> int:
        """Images of an encode launch that are copied from the host; each counts as one of its crops."""
        return sum(group.job.is_stored for group in self.groups)

    @property
    def size(self) -> int:
        """Crops of an encode launch, positions of another one."""
        return self.crops or sum(row.count for row in self.rows)

    @property
    def known_positions(self) -> int:
        """Positions whose tokens come from the host: those of prompts and runs."""
        return sum(row.count - row.pending for row in self.rows)


State = Literal["launched", "pending", "committing", "free"]


@dataclass(eq=False, slots=True)
class Step:
    """A launch, from its forward pass to its commit."""

    number: int  # in order of launch
    plan: ScheduledBatch
    slot: int  # whose buffers it uses
    state: State = "launched"  # forward pass queued; "pending": sampling queued; "committing"; "free": committed
    failure: BaseException | None = None  # of the step as a whole, on the device or before
    faults: dict[int, Exception] = field(default_factory=dict)  # of single rows before they reached the device
    dropped: set[Sequence] = field(default_factory=set)  # whose rows do not count: what they assumed did not follow
    scored: dict[int, int] = field(default_factory=dict)  # probabilities that come back, by row; most rows want none
    device_s: float = 0.0  # of the forward pass; known once collected
    graphed: bool = False  # ran as a CUDA graph
    padded: int = 0  # rows of the batch that ran, the unused ones included
    beside: bool = False  # images are encoded meanwhile, on a stream of their own
    in_part: bool = False  # ran in decoding's part of the card

    @property
    def kind(self) -> Kind:
        return self.plan.kind

    @property
    def rows(self) -> tuple[BatchItem, ...]:
        return self.plan.rows


@dataclass(eq=False, slots=True)
class Transfer:
    """Pages of a sequence that are copied to host memory or back, with what the pending table has of it."""

    number: int  # unique, in order
    direction: Literal["out", "in"]
    sequence: Sequence
    row: int  # of the pending table
    pages: tuple[int, ...]
    places: tuple[int, ...]  # in host memory, from 1 on, one for each page
    first: int  # the place of its first page, with which what the pending table has is kept
    failure: BaseException | None = None  # on the device or before
    device_s: float = 0.0  # known once it has ended


class Executor(Protocol):
    """Runs steps on a device; only `collect`, `close` and `transferred`, where told to, wait for the device.

    Where images are encoded beside the other steps, these steps have slots of their own, and run in their own order;
    so have prompts that are computed there.
    """

    def launch(self, step: Step) -> None:
        """Queue copies and the forward pass; raises where the launch itself fails."""

    def finalize(self, step: Step, allowed: ListLike[Allowed | None]) -> None:
        """Queue heads, masks, sampling and the copy of the results, given what may stand at each row's next position.

        None for rows whose token is not wanted.
        """

    def collect(self, step: Step) -> list[Token | Exception | None]:
        """Wait for the results: a token, an error, or None for each row; raises where the step failed as a whole."""

    def has_ended(self, step: Step) -> bool:
        """Whether the device is done with a step on the encoder's stream, so that `collect` does not wait."""

    def transfer(self, transfer: Transfer) -> None:
        """Queue copies of pages on a stream of their own; what fails is kept with the transfer."""

    def transferred(self, transfer: Transfer, *, wait: bool) -> bool:
        """Whether a transfer has ended, of which it then tells the time; the oldest one ends first."""

    def forget(self, job: EncodeJob) -> None:
        """Free an image's features once the work queued so far is done."""

    def free_memory(self) -> None:
        """Free memory that is kept for later work only."""

    def close(self) -> None:
        """Wait for all work and free the device's memory."""
